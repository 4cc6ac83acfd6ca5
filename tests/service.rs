//! The example service under load from several connections, killed with `kill -9`, started again:
//! every acknowledged event is there, and a rebuild comes to the live digest.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests panic, index and count"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const CLIENTS: usize = 6;
const ROUNDS: usize = 3;

/// Cargo builds examples next to the test binaries' folder before it runs the tests.
fn service_binary() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let path = deps
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/service");
    assert!(
        path.exists(),
        "{} is not built: run `cargo test` without `--test`, or `cargo build --examples`",
        path.display()
    );
    path
}

struct Service {
    child: Child,
    address: String,
}

impl Service {
    fn start(dir: &Path) -> Self {
        let mut child = Command::new(service_binary())
            .arg(dir)
            .arg("127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .expect("its address")
            .to_owned();
        Self { child, address }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn get(&self, path: &str) -> Value {
        request(&self.address, "GET", path, "")
            .expect("an answer")
            .1
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// One request on a connection of its own; `None` if the service died meanwhile.
fn request(address: &str, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

#[test]
fn kill_9_under_load_loses_no_acknowledged_event() {
    let dir = tempfile::tempdir().unwrap();
    let acked: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
    for round in 0..ROUNDS {
        let service = Service::start(dir.path());
        let address = service.address.clone();
        let started = Instant::now();
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (address, acked) = (&address, &acked);
                scope.spawn(move || load(address, round, client, acked));
            }
            while started.elapsed() < Duration::from_millis(600) {
                std::thread::sleep(Duration::from_millis(20));
            }
            service.kill();
        });
    }
    let acked = acked.into_inner().unwrap();
    assert!(
        acked.len() > 50,
        "only {} events were acknowledged",
        acked.len()
    );

    let service = Service::start(dir.path());
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        let status = service.get("/status");
        if status["checkpoint"] == status["durable_end"] {
            break status;
        }
        assert!(Instant::now() < deadline, "never caught up: {status}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let (code, rebuilt) = request(&service.address, "POST", "/rebuild", "").unwrap();
    assert_eq!(code, 200);
    assert_eq!(
        rebuilt["before"], rebuilt["after"],
        "a rebuild comes to another state"
    );
    assert_eq!(rebuilt["after"], service.get("/status")["digest"]);
    service.kill();

    // Read the log itself: each acknowledged offset holds the event it was acknowledged for.
    let store = foldlog::Store::open(dir.path()).unwrap();
    let mut stored = BTreeMap::new();
    let mut from = foldlog::Offset::ZERO;
    loop {
        let batch = store.next_batch(from, 1000).unwrap();
        if batch.records.is_empty() {
            break;
        }
        from = batch.next;
        for record in batch.records {
            if let foldlog::Body::Event(event) = record.body {
                stored.insert(record.offset.get(), event.id);
            }
        }
    }
    for (offset, id) in &acked {
        assert_eq!(
            stored.get(offset),
            Some(id),
            "acknowledged event {id} at offset {offset}"
        );
    }
    println!(
        "{} acknowledged events over {ROUNDS} kills, all of them there; status {status}",
        acked.len()
    );
}

fn load(address: &str, round: usize, client: usize, acked: &Mutex<BTreeMap<u64, String>>) {
    for order in 0.. {
        for (version, kind) in [(1, "reserve"), (2, "pay"), (3, "fulfill")] {
            let id = format!("{round}-{client}-{order}-{version}");
            let event = json!({
                "id": id,
                "key": format!("order-{round}-{client}-{order}"),
                "version": version,
                "type": kind,
            });
            match request(address, "POST", "/events", &event.to_string()) {
                Some((201, body)) => {
                    let before = acked
                        .lock()
                        .unwrap()
                        .insert(body["offset"].as_u64().unwrap(), id);
                    assert_eq!(before, None, "one offset for two events");
                }
                Some((status, body)) => panic!("{status} {body}"),
                None => return,
            }
        }
    }
}
