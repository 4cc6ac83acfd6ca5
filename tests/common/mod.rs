//! What several integration tests share.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test uses a part of it"
)]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::io::Write;
use std::path::PathBuf;

use foldlog::orders::OrderStatus;
use foldlog::{Event, MapSource};
use serde_json::Value;

/// The file of real data, or `None` with a printed reason: the data may not be copied into the
/// repository (its licence), so a clone with nothing beside it goes without.
pub(crate) fn real_data(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../shared/data")
        .join(name);
    if path.exists() {
        return Some(path);
    }
    // Past the test harness, which hides what a passing test prints: CI looks for these words.
    let mut err = std::io::stderr().lock();
    writeln!(err, "data test skipped: ../shared/data/{name} is not here").unwrap();
    None
}

fn lines(path: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The events of a JSON-lines file, with everything but the four known members as payload.
pub(crate) fn events(path: &PathBuf) -> Vec<Event> {
    lines(path)
        .into_iter()
        .map(|mut line| {
            let members = line.as_object_mut().unwrap();
            let mut text =
                |name: &str| members.remove(name).map(|v| v.as_str().unwrap().to_owned());
            let id = text("id").unwrap();
            let key = text("key").or_else(|| text("order_id")).unwrap();
            let kind = text("type").unwrap();
            let version = members.remove("version").unwrap().as_i64().unwrap();
            Event::new(id, key, version, kind).with_payload(serde_json::to_vec(&members).unwrap())
        })
        .collect()
}

/// What the marketplace says of its orders, and the keys it knows.
pub(crate) fn truth(path: &PathBuf) -> (MapSource<OrderStatus>, Vec<String>) {
    let mut source = MapSource::new();
    let mut keys = Vec::new();
    for line in lines(path) {
        let key = line["order_id"].as_str().unwrap().to_owned();
        let status: OrderStatus = serde_json::from_value(line["status"].clone()).unwrap();
        source.insert(key.clone(), line["version"].as_i64().unwrap(), status);
        keys.push(key);
    }
    (source, keys)
}
