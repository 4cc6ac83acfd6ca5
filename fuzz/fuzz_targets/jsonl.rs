//! Any bytes as a file of JSON lines: each line is an event that append takes, or is refused with a
//! reason; an event written as a line is read as the same event.
#![no_main]

use foldlog::cli::event_of_line;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

fuzz_target!(|data: &[u8]| {
    for line in data.split(|byte| *byte == b'\n') {
        let event = match event_of_line(line) {
            Ok(Some(event)) => event,
            Ok(None) => continue,
            Err(reason) => {
                assert!(!reason.is_empty(), "a refusal without a reason");
                continue;
            }
        };
        event.check().expect("what was parsed can be appended");
        let members = [
            ("id", json!(event.id)),
            ("key", json!(event.key)),
            ("version", json!(event.version)),
            ("type", json!(event.kind)),
        ];
        let members = members.map(|(name, value)| (name.to_owned(), value));
        let bare = Value::Object(Map::from_iter(members)).to_string();
        // The other members, as they were kept, put back behind the four.
        let line = match event.payload.strip_prefix(b"{") {
            Some(rest) => [bare.trim_end_matches('}').as_bytes(), b",", rest].concat(),
            None => bare.into_bytes(),
        };
        assert_eq!(event_of_line(&line), Ok(Some(event)));
    }
});
