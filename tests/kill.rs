//! Real processes, really killed: a child appends from several threads, folds, flushes, rebuilds,
//! and says on a pipe what was acknowledged; the parent kills it at a random moment, again and
//! again on one directory, and then looks.
//!
//! `FOLDLOG_KILL_ROUNDS=1000 cargo test --all-features --test kill -- --nocapture` is the long run.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests panic, index and count"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use foldlog::orders::Orders;
use foldlog::{Body, ConsumerOptions, Event, Filter, Offset, Store};

const CHILD: &str = "FOLDLOG_KILL_CHILD";
const THREADS: usize = 4;

/// Not a test of its own: what the child process runs.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else {
        return;
    };
    let store = Store::options()
        .segment_bytes(256 * 1024)
        .open(dir)
        .unwrap();
    let options = ConsumerOptions::default().partitions(2).flush_entries(50);
    let orders = store.consumer_with("orders", Orders, options).unwrap();
    say(&format!("open {}", store.durable_end()));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || produce(store, thread));
        }
        for round in 0.. {
            orders.settle().unwrap();
            match round % 4 {
                0 => orders.flush().unwrap(),
                1 => drop(orders.redrive_all(&Filter::all(), 3, None).unwrap()),
                2 => assert!(
                    orders
                        .rebuild()
                        .is_ok_and(|rebuilt| rebuilt.before == rebuilt.after)
                ),
                _ => drop(
                    orders
                        .discard_all(&Filter::all(), 1, Some("enough"))
                        .unwrap(),
                ),
            }
        }
    });
}

fn produce(store: &Store, thread: usize) {
    for n in 0_u64.. {
        let key = format!("{}-{thread}-{}", std::process::id(), n / 4);
        let version = i64::try_from(n % 4).unwrap() + 1;
        let kind = ["reserve", "pay", "fulfill", "refund"][usize::try_from(n % 4).unwrap()];
        let event = Event::new(format!("{key}-{version}"), key, version, kind);
        let payload = vec![b'p'; usize::try_from(n % 700).unwrap()];
        let offset = store.append(&event.clone().with_payload(payload)).unwrap();
        say(&format!("ack {offset} {}", event.id));
    }
}

/// One write, so that a kill never leaves half a line in the middle of others.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("@{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn run_and_kill(dir: &Path, wait: Duration, acked: &mut BTreeMap<u64, String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(out).split(b'\n') {
            let line = String::from_utf8(line.unwrap()).unwrap();
            // The test harness writes before the first line of ours without a line feed.
            if let Some((_, said)) = line.split_once('@') {
                lines.push(said.to_owned());
            }
        }
        lines
    });
    std::thread::sleep(wait);
    assert!(
        child.try_wait().unwrap().is_none(),
        "the child ended by itself"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    for line in reader.join().unwrap() {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["ack", offset, id] = words[..] {
            let before = acked.insert(offset.parse().unwrap(), id.to_owned());
            assert_eq!(before, None, "offset {offset} was acknowledged twice");
        }
    }
}

fn check(dir: &Path, acked: &BTreeMap<u64, String>) {
    let store = Store::open(dir).unwrap();
    let mut from = Offset::ZERO;
    let mut found = 0;
    while from < store.durable_end() {
        let batch = store.next_batch(from, 1000).unwrap();
        for record in batch.records {
            let Some(id) = acked.get(&record.offset.get()) else {
                continue;
            };
            let Body::Event(event) = record.body else {
                panic!("a decision at {}", record.offset)
            };
            assert_eq!(event.id, *id, "offset {}", record.offset);
            found += 1;
        }
        from = batch.next;
    }
    assert_eq!(found, acked.len(), "acknowledged events are missing");
    let orders = store.consumer("orders", Orders).unwrap();
    let verified = orders.verify().unwrap();
    assert!(verified.is_sound(), "{verified:?}");
}

#[test]
fn kill_9_at_random_moments_loses_nothing_acknowledged() {
    if std::env::var(CHILD).is_ok() {
        return;
    }
    let rounds = std::env::var("FOLDLOG_KILL_ROUNDS").map_or(20, |n| n.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut acked = BTreeMap::new();
    let mut seed = u64::from(std::process::id());
    println!("seed {seed}");
    for round in 0..rounds {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // From in the middle of opening to well under way.
        run_and_kill(
            dir.path(),
            Duration::from_millis((seed >> 33) % 400 + 5),
            &mut acked,
        );
        // Looking costs more as the log grows: not after every round.
        if round % 5 == 4 || round + 1 == rounds {
            check(dir.path(), &acked);
        }
    }
    println!(
        "{rounds} kills, {} acknowledged events, all of them there",
        acked.len()
    );
    assert!(acked.len() > rounds, "too few: {}", acked.len());
}
