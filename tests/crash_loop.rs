//! A machine that takes the whole process down: the crash loop ends by itself, the event that
//! caused it is a dead letter, innocent events never pay, and a rebuild comes to the same state.
#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "tests panic and count"
)]

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use foldlog::{Class, Consumer, ConsumerOptions, Event, Filter, Poison, StateMachine, Store};

const CHILD: &str = "FOLDLOG_CRASH_LOOP_CHILD";
const MAX_ATTEMPTS: u32 = 3;

/// Counts events; `bomb` takes the process down, in the way the environment says.
struct Fragile;

impl StateMachine for Fragile {
    type State = u64;
    const REVISION: u32 = 1;

    fn apply(&self, state: Option<&u64>, event: &Event) -> Result<u64, Poison> {
        if event.kind == "bomb" {
            if event.payload == b"exit" {
                std::process::exit(7);
            }
            std::process::abort();
        }
        Ok(state.copied().unwrap_or(0).saturating_add(1))
    }
}

fn open(dir: &Path, partitions: u32) -> (Store, Consumer<Fragile>) {
    let store = Store::open(dir).unwrap();
    let options = ConsumerOptions::default()
        .partitions(partitions)
        .max_attempts(MAX_ATTEMPTS);
    let consumer = store.consumer_with("fragile", Fragile, options).unwrap();
    (store, consumer)
}

/// Not a test of its own: opens the consumer, which folds everything.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else {
        return;
    };
    let (partitions, dir) = dir.split_once(':').unwrap();
    let (_store, consumer) = open(Path::new(dir), partitions.parse().unwrap());
    consumer.flush().unwrap();
}

fn start(dir: &Path, partitions: u32) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{partitions}:{}", dir.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
}

fn append(store: &Store, how: &str) {
    for n in 0..50_i64 {
        let key = format!("k{}", n % 5);
        store
            .append(&Event::new(format!("e{n}"), key, n / 5 + 1, "count"))
            .unwrap();
    }
    let bomb = Event::new("bomb", "k0", 11, "bomb").with_payload(how);
    store.append(&bomb).unwrap();
    for n in 0..5_i64 {
        let key = format!("k{n}");
        let version = if n == 0 { 12 } else { 11 };
        store
            .append(&Event::new(format!("late{n}"), key, version, "count"))
            .unwrap();
    }
}

#[test]
fn machine_that_aborts_is_ended_after_max_attempts_starts() {
    if std::env::var(CHILD).is_ok() {
        return;
    }
    for (how, partitions) in [("abort", 1), ("abort", 3), ("exit", 2)] {
        let dir = tempfile::tempdir().unwrap();
        append(&Store::open(dir.path()).unwrap(), how);
        let mut deaths = 0_u32;
        while !start(dir.path(), partitions).success() {
            deaths = deaths.saturating_add(1);
            assert!(deaths < 20, "the crash loop never ends");
        }
        // One start finds out that something is wrong, then the careful ones count.
        assert_eq!(
            deaths,
            MAX_ATTEMPTS.saturating_add(1),
            "{how}, {partitions} partitions"
        );
        for _ in 0..2 {
            let (_store, consumer) = open(dir.path(), partitions);
            let letters: Vec<_> = consumer.dead_letters().map(Result::unwrap).collect();
            assert_eq!(letters.len(), 1);
            assert_eq!(
                (letters[0].id.as_str(), letters[0].class()),
                ("bomb", Class::Crashed)
            );
            assert_eq!(letters[0].attempts(), MAX_ATTEMPTS);
            let counters = consumer.counters();
            assert_eq!(
                (counters.applied, counters.waiting, counters.held),
                (54, 1, 1)
            );
            assert!(consumer.verify().unwrap().is_sound());
            assert_eq!(consumer.rebuild().unwrap().after, consumer.digest());
            assert_eq!(consumer.get("k4").unwrap().unwrap().version, 11);
        }
        // The way on: skip it, and what it held is applied.
        let (_store, consumer) = open(dir.path(), partitions);
        assert_eq!(
            consumer
                .skip_all(&Filter::all(), 9, Some("a bomb"))
                .unwrap()
                .len(),
            1
        );
        assert_eq!(consumer.counters().waiting, 0);
        assert!(consumer.verify().unwrap().is_sound());
        println!("{how}, {partitions} partitions: {deaths} deaths, then the loop ended");
    }
}
