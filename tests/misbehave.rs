//! Machines that misbehave, each in a child process: those that take the process down (abort, stack
//! overflow, out of memory), and those that do not (panics, huge texts, states that cannot be
//! kept). The crash loop ends after `max_attempts` careful starts with one `Crashed` decision;
//! every other key is as if nothing had happened; the same handle goes on; live equals rebuilt.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests panic, index and count"
)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use foldlog::{
    Action, Body, Class, Consumer, ConsumerOptions, Event, Filter, MapSource, Offset, Poison,
    StateMachine, Store, limits, partition,
};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const CHILD: &str = "FOLDLOG_MISBEHAVE_CHILD";
const MAX_ATTEMPTS: u32 = 3;
/// Address space of a child in KiB: enough for a store, not for a machine that eats all of it.
const MEMORY_KIB: u64 = 1024 * 1024;
const PARTITIONS: [u32; 2] = [1, 3];

/// A count, and how the state itself misbehaves.
#[derive(Clone, Debug, PartialEq)]
struct Odd {
    count: u64,
    trait_: Trait,
    ballast: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trait {
    Sound,
    FailsToEncode,
    PanicsWhenEncoded,
    FailsToDecode,
    PanicsWhenDecoded,
    PanicsWhenDropped,
}

impl Serialize for Odd {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let code = match self.trait_ {
            Trait::FailsToEncode => return Err(S::Error::custom("no")),
            Trait::PanicsWhenEncoded => panic!("a panic of serialize"),
            Trait::FailsToDecode => 1_u8,
            Trait::PanicsWhenDecoded => 2,
            Trait::Sound | Trait::PanicsWhenDropped => 0,
        };
        (self.count, code, &self.ballast).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Odd {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (count, code, ballast) = <(u64, u8, Vec<u8>)>::deserialize(from)?;
        match code {
            1 => return Err(D::Error::custom("no way back")),
            2 => panic!("a panic of deserialize"),
            _ => {}
        }
        Ok(Self {
            count,
            trait_: Trait::Sound,
            ballast,
        })
    }
}

impl Drop for Odd {
    fn drop(&mut self) {
        let panics = self.trait_ == Trait::PanicsWhenDropped && !std::thread::panicking();
        assert!(!panics, "a panic of drop");
    }
}

fn odd(count: u64, trait_: Trait) -> Odd {
    Odd {
        count,
        trait_,
        ballast: Vec::new(),
    }
}

#[expect(unconditional_recursion, reason = "it is to overflow the stack")]
fn deep(n: u64) -> u64 {
    let frame = std::hint::black_box([n; 64]);
    deep(n + 1) + frame[7]
}

/// Counts events; the kind of an event says how to misbehave.
struct Fragile;

impl StateMachine for Fragile {
    type State = Odd;
    const REVISION: u32 = 1;

    fn check(&self, event: &Event) -> Result<(), Poison> {
        match event.kind.as_str() {
            "check aborts" => std::process::abort(),
            "check panics" => panic!("a panic of check, with an address in it: {self:p}"),
            "check refuses" => Err(Poison::new("x".repeat(100 * 1024 * 1024))),
            _ => Ok(()),
        }
    }

    fn apply(&self, state: Option<&Odd>, event: &Event) -> Result<Odd, Poison> {
        let count = state.map_or(0, |state| state.count) + 1;
        match event.kind.as_str() {
            "aborts" => std::process::abort(),
            "exits" => std::process::exit(7),
            "overflows the stack" => panic!("{}", deep(0)),
            "eats all memory" => {
                let mut eaten = Vec::new();
                loop {
                    eaten.push(std::hint::black_box(vec![1_u8; 16 * 1024 * 1024]));
                }
            }
            "kills itself" => {
                let me = std::process::id().to_string();
                drop(Command::new("kill").args(["-9", &me]).status());
                std::thread::sleep(Duration::from_secs(20));
                panic!("still alive");
            }
            "panics" => panic!("a panic of apply at {:?}", Instant::now()),
            "panics with a value" => std::panic::panic_any(vec![1_u8, 2, 3]),
            "is slow" => {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(300) {
                    std::hint::spin_loop();
                }
                Ok(odd(count, Trait::Sound))
            }
            "refuses at length" => Err(Poison::new("é".repeat(50 * 1024 * 1024))),
            "grows" => Ok(Odd {
                ballast: vec![7; limits::STATE_BYTES_MAX],
                ..odd(count, Trait::Sound)
            }),
            "grows to the limit" => Ok(Odd {
                // Count 1, code 1, length 5: what bincode writes around it.
                ballast: vec![7; limits::STATE_BYTES_MAX - 7],
                ..odd(count, Trait::Sound)
            }),
            "fails to encode" => Ok(odd(count, Trait::FailsToEncode)),
            "panics when encoded" => Ok(odd(count, Trait::PanicsWhenEncoded)),
            "fails to decode" => Ok(odd(count, Trait::FailsToDecode)),
            "panics when decoded" => Ok(odd(count, Trait::PanicsWhenDecoded)),
            "panics when dropped" => Ok(odd(count, Trait::PanicsWhenDropped)),
            _ => Ok(odd(count, Trait::Sound)),
        }
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

/// Starts the child under a cap of its address space; answers whether it ended well.
fn start(dir: &Path, partitions: u32) -> bool {
    Command::new("sh")
        .arg("-c")
        .arg(format!(
            "ulimit -c 0; ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\""
        ))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{partitions}:{}", dir.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// Ten good events for each of five keys, the bad one as the eleventh of `k0`, and one more for
/// each key: that of `k0` is held if the bad one dies.
fn append(store: &Store, kind: &str) -> Offset {
    let mut events = Vec::new();
    for n in 0..50_i64 {
        events.push(Event::new(
            format!("e{n}"),
            format!("k{}", n % 5),
            n / 5 + 1,
            "counts",
        ));
    }
    store.append_batch(&events).unwrap();
    let bad = store.append(&Event::new("bad", "k0", 11, kind)).unwrap();
    for n in 0..5_i64 {
        let version = if n == 0 { 12 } else { 11 };
        store
            .append(&Event::new(
                format!("late{n}"),
                format!("k{n}"),
                version,
                "counts",
            ))
            .unwrap();
    }
    bad
}

/// The `Crashed` decisions in the log.
fn crashes(store: &Store) -> Vec<(u64, u64, u32)> {
    let mut found = Vec::new();
    let mut from = Offset::ZERO;
    while from < store.durable_end() {
        let batch = store.next_batch(from, 1000).unwrap();
        for record in batch.records {
            if let Body::Decision(decision) = record.body
                && let Action::Crashed {
                    at,
                    event,
                    attempts,
                } = decision.action
            {
                found.push((at.get(), event.get(), attempts));
            }
        }
        from = batch.next;
    }
    found
}

/// What must hold after the bad event died, in this start and the next: one letter, everything else
/// untouched, the same handle goes on, no lock is poisoned, live equals rebuilt.
fn check_dead(dir: &Path, partitions: u32, bad: Offset, class: Class, reason: &str) {
    for round in 0..2_i64 {
        let (store, consumer) = open(dir, partitions);
        let letters: Vec<_> = consumer.dead_letters().map(Result::unwrap).collect();
        assert_eq!(letters.len(), 1, "{letters:?}");
        assert_eq!((letters[0].offset, letters[0].class()), (bad, class));
        assert!(letters[0].reason().len() <= limits::REASON_BYTES_MAX);
        assert!(
            letters[0].reason().starts_with(reason),
            "{}",
            letters[0].reason()
        );
        let counters = consumer.counters();
        let applied = 54 + 4 * u64::try_from(round).unwrap();
        assert_eq!(
            (
                counters.applied,
                counters.waiting,
                counters.held,
                counters.dead
            ),
            (applied, 1, 1, 1)
        );
        assert_eq!(consumer.get("k0").unwrap().unwrap().version, 10);
        // The same handle goes on, in every partition.
        for n in 1..5_i64 {
            let next = Event::new(
                format!("more{round}-{n}"),
                format!("k{n}"),
                12 + round,
                "counts",
            );
            store.append(&next).unwrap();
        }
        consumer.settle().unwrap();
        for n in 1..5 {
            let row = consumer.get(&format!("k{n}")).unwrap().unwrap();
            assert_eq!(row.version, 12 + round);
            let count = u64::try_from(row.version).unwrap();
            assert_eq!(row.state.as_ref().unwrap().count, count);
        }
        assert!(consumer.verify().unwrap().is_sound());
        let live = consumer.digest();
        let rebuilt = consumer.rebuild().unwrap();
        assert_eq!((rebuilt.before, rebuilt.after), (live, live));
        store.close().unwrap();
    }
    // The way on: skip it, and what it held is applied.
    let (_store, consumer) = open(dir, partitions);
    let skipped = consumer.skip_all(&Filter::all(), 9, Some("bad")).unwrap();
    assert_eq!(skipped.len(), 1);
    assert_eq!(consumer.counters().waiting, 0);
    assert_eq!(consumer.get("k0").unwrap().unwrap().version, 12);
    assert!(consumer.verify().unwrap().is_sound());
}

fn is_child() -> bool {
    std::env::var(CHILD).is_ok()
}

fn report(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}

#[test]
fn machine_that_takes_the_process_down_is_ended_after_max_attempts_starts() {
    if is_child() {
        return;
    }
    let kinds = [
        "aborts",
        "check aborts",
        "overflows the stack",
        "eats all memory",
        "kills itself",
    ];
    let mut cases = 0;
    for kind in kinds {
        for partitions in PARTITIONS {
            let dir = tempfile::tempdir().unwrap();
            let bad = append(&Store::open(dir.path()).unwrap(), kind);
            let mut deaths = 0;
            while !start(dir.path(), partitions) {
                deaths += 1;
                let store = Store::open(dir.path()).unwrap();
                assert_eq!(crashes(&store), [], "{kind}: decided too early");
                assert!(deaths < 10, "{kind}: the crash loop never ends");
            }
            // One start finds out that something is wrong, then the careful ones count.
            assert_eq!(deaths, MAX_ATTEMPTS + 1, "{kind}, {partitions} partitions");
            let decided = crashes(&Store::open(dir.path()).unwrap());
            assert_eq!(decided, [(bad.get(), bad.get(), MAX_ATTEMPTS)], "{kind}");
            check_dead(
                dir.path(),
                partitions,
                bad,
                Class::Crashed,
                "took the process down",
            );
            cases += 1;
        }
    }
    report(&format!(
        "misbehave: {cases} machines that die, each {} starts",
        MAX_ATTEMPTS + 2
    ));
    assert!(cases >= 10);
}

#[test]
fn machine_that_misbehaves_and_lives_costs_one_dead_letter_and_no_start() {
    if is_child() {
        return;
    }
    let kinds = [
        ("panics", "panicked"),
        ("panics with a value", "panicked"),
        ("check panics", "panicked"),
        ("check refuses", "xxx"),
        ("refuses at length", "ééé"),
        ("grows", "the state after it is too large"),
        (
            "fails to encode",
            "the state after it is too large or cannot be encoded",
        ),
        ("panics when encoded", "panicked"),
        (
            "fails to decode",
            "the state after it cannot be decoded again",
        ),
        ("panics when decoded", "panicked"),
        ("panics when dropped", "panicked"),
    ];
    let mut cases = 0;
    for (kind, reason) in kinds {
        for partitions in PARTITIONS {
            let dir = tempfile::tempdir().unwrap();
            let bad = append(&Store::open(dir.path()).unwrap(), kind);
            assert!(start(dir.path(), partitions), "{kind}: the process died");
            assert_eq!(crashes(&Store::open(dir.path()).unwrap()), [], "{kind}");
            check_dead(dir.path(), partitions, bad, Class::Poison, reason);
            cases += 1;
        }
    }
    report(&format!("misbehave: {cases} machines that live"));
    assert!(cases >= 22);
}

#[test]
fn slow_machine_and_state_at_its_limit_are_applied() {
    if is_child() {
        return;
    }
    for kind in ["is slow", "grows to the limit"] {
        let dir = tempfile::tempdir().unwrap();
        append(&Store::open(dir.path()).unwrap(), kind);
        assert!(start(dir.path(), 2), "{kind}");
        let (_store, consumer) = open(dir.path(), 2);
        let counters = consumer.counters();
        assert_eq!(
            (counters.applied, counters.dead, counters.waiting),
            (56, 0, 0)
        );
        assert_eq!(consumer.get("k0").unwrap().unwrap().version, 12);
        assert!(consumer.verify().unwrap().is_sound());
    }
}

/// Two partitions, the same kind of event in both: one fails, the other has to go on, in the same
/// call, and on the same handle afterwards.
#[test]
fn panic_in_one_partition_leaves_the_other_and_the_handle_alone() {
    if is_child() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, consumer) = open(dir.path(), 2);
    let in_partition = |wanted| {
        (0..1000)
            .map(|n| format!("key{n}"))
            .find(|key| partition(key, 2) == wanted)
            .unwrap()
    };
    let (hurt, well) = (in_partition(0), in_partition(1));
    for version in 1..=20_i64 {
        let kind = if version % 2 == 0 { "panics" } else { "counts" };
        let id = format!("hurt{version}");
        store
            .append(&Event::new(id, hurt.clone(), version, kind))
            .unwrap();
        let id = format!("well{version}");
        store
            .append(&Event::new(id, well.clone(), version, "counts"))
            .unwrap();
        consumer.settle().unwrap();
        assert_eq!(consumer.get(&well).unwrap().unwrap().version, version);
        // The dead letter holds the key; skipped, it goes on.
        consumer.skip_all(&Filter::all(), 9, None).unwrap();
        assert_eq!(consumer.get(&hurt).unwrap().unwrap().version, version);
    }
    consumer.flush().unwrap();
    assert!(consumer.verify().unwrap().is_sound());
    assert_eq!(consumer.rebuild().unwrap().after, consumer.digest());
}

/// A repair to a state that cannot be read back would be appended again and again, without effect.
#[test]
fn source_whose_state_does_not_decode_is_an_error_and_writes_nothing() {
    if is_child() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, consumer) = open(dir.path(), 1);
    store.append(&Event::new("e", "k", 1, "counts")).unwrap();
    consumer.catch_up().unwrap();
    let end = store.durable_end();
    for trait_ in [
        Trait::FailsToDecode,
        Trait::PanicsWhenDecoded,
        Trait::FailsToEncode,
        Trait::PanicsWhenEncoded,
    ] {
        let source: MapSource<Odd> = [("k", 2, odd(5, trait_))].into_iter().collect();
        let error = consumer
            .reconcile(&source, &["k".to_owned()], None)
            .unwrap_err();
        assert!(matches!(error, foldlog::Error::Codec { .. }), "{error}");
        assert_eq!(store.durable_end(), end);
    }
    assert!(consumer.verify().unwrap().is_sound());
}
