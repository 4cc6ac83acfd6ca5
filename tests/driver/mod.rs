//! Drives a store by a string of bytes, on a simulated disk that crashes now and then, and compares
//! it with the model after every step. Shared by `tests/model_ops.rs` and the fuzz target `ops`.
//!
//! What is checked: the log read back is the log read before plus what was acknowledged since, and
//! after a crash plus a prefix of what was not; the consumer's rows, waiting events, letters and
//! counters are the model's; replay changes nothing; a rebuild and a verification agree.

#[path = "../model/mod.rs"]
mod model;

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::sequence::Sequence;
use foldlog::state::fake::{FakeStates, Keep};
use foldlog::storage::Storage;
use foldlog::storage::sim::{CrashMode, SimDisk};
use foldlog::{
    Body, Class, Consumer, ConsumerOptions, DeadLetter, Error, Event, MapSource, Offset, Record,
    Resolved, Store,
};
use model::{How, Letter, Model, State};

/// Enough for what matters; more would only be slow.
const STEPS_MAX: usize = 64;
const NAME: &str = "c";

/// How often each thing happened, so that a caller can see that all of them did.
pub(crate) type Counts = BTreeMap<&'static str, usize>;

/// The choices, one byte each; all zero when they run out.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn below(&mut self, n: u8) -> u8 {
        self.next() % n
    }
}

struct Driver<'a> {
    choices: Choices<'a>,
    disk: SimDisk,
    states: FakeStates,
    store: Option<Store>,
    consumer: Option<Consumer<Sequence>>,
    /// The log as it was read last.
    log: Vec<Body>,
    /// Appended since, and acknowledged.
    acked: Vec<Event>,
    /// Written after that, and not synced.
    written: Vec<Event>,
    /// Where the upstream stands, by what was acknowledged; 0 before anything was.
    upstream: u64,
    max_attempts: Option<u32>,
    counts: Counts,
}

/// Runs the steps that `bytes` describe. Panics where the store and the model differ.
pub(crate) fn run(bytes: &[u8]) -> Counts {
    let mut driver = Driver {
        choices: Choices(bytes),
        disk: SimDisk::new(),
        states: FakeStates::new(),
        store: None,
        consumer: None,
        log: Vec::new(),
        acked: Vec::new(),
        written: Vec::new(),
        upstream: 0,
        max_attempts: None,
        counts: Counts::new(),
    };
    driver.open();
    for _ in 0..STEPS_MAX {
        if driver.choices.0.is_empty() {
            break;
        }
        driver.step();
    }
    driver.reopen();
    driver.compare("at the end");
    driver.counts
}

impl Driver<'_> {
    fn count(&mut self, what: &'static str) {
        let count = self.counts.entry(what).or_default();
        *count = count.saturating_add(1);
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("open")
    }

    fn consumer(&self) -> &Consumer<Sequence> {
        self.consumer.as_ref().expect("open")
    }

    fn open(&mut self) {
        let disk: Arc<dyn Storage> = Arc::new(self.disk.clone());
        let store = Store::options()
            .segment_bytes(4096)
            .storage(disk)
            .state_backend(Arc::new(self.states.clone()))
            .open("store")
            .expect("a store opens after any crash");
        let options = ConsumerOptions::default()
            .partitions(1 + u32::from(self.choices.below(3)))
            .flush_entries(1 + usize::from(self.choices.below(8)));
        let options = match self.max_attempts {
            Some(max_attempts) => options.max_attempts(max_attempts),
            None => options,
        };
        let consumer = store.consumer_with(NAME, Sequence, options);
        self.consumer = Some(consumer.expect("a consumer opens after any crash"));
        self.store = Some(store);
    }

    fn close(&mut self) {
        self.consumer = None;
        if let Some(store) = self.store.take() {
            store.close().expect("close");
        }
        self.acked.append(&mut self.written);
    }

    fn reopen(&mut self) {
        self.close();
        self.open();
        self.count("reopen");
    }

    fn crash(&mut self) {
        let all = CrashMode::ALL;
        let mode = all[usize::from(self.choices.next()) % all.len()];
        let seed = u64::from(self.choices.next());
        // The image is taken before anything is closed: a close writes.
        let image = self.disk.crash(mode, seed);
        let keep = match self.choices.below(3) {
            0 => Keep::All,
            1 => Keep::Synced,
            _ => Keep::Lose(usize::from(self.choices.below(8))),
        };
        self.states.crash(keep);
        self.consumer = None;
        self.store = None;
        self.disk = image;
        self.open();
        self.count("crash");
    }

    fn event(&mut self) -> Event {
        let key = ["a", "b", "c"][usize::from(self.choices.below(3))];
        let version = i64::from(self.choices.below(8));
        let id = format!("{key}{version}{}", self.choices.below(2));
        let payload = vec![7; usize::from(self.choices.next()) * 4];
        Event::new(&id, key, version, id.clone()).with_payload(payload)
    }

    fn events(&mut self) -> Vec<Event> {
        (0..self.choices.below(4)).map(|_| self.event()).collect()
    }

    fn step(&mut self) {
        let what = match self.choices.below(16) {
            0..3 => self.append(),
            3 => self.append_batch(),
            4 => self.append_from(),
            5 => {
                let event = self.event();
                self.store().write(&event).expect("write");
                self.written.push(event);
                "write"
            }
            6 => {
                self.store().sync().expect("sync");
                self.acked.append(&mut self.written);
                "sync"
            }
            7 => {
                self.consumer().settle().expect("settle");
                "settle"
            }
            8..11 => self.decide(),
            11 => self.reconcile(),
            12 => self.replay(),
            13 => self.check_rebuild(),
            14 => {
                self.max_attempts = Some(u32::from(self.choices.below(5)));
                self.reopen();
                "budget"
            }
            _ => {
                self.crash();
                "crash"
            }
        };
        self.count(what);
        self.compare(what);
    }

    /// An acknowledged call made everything written before it durable too.
    fn acknowledged(&mut self, events: Vec<Event>) {
        self.acked.append(&mut self.written);
        self.acked.extend(events);
    }

    fn append(&mut self) -> &'static str {
        let event = self.event();
        self.store().append(&event).expect("append");
        self.acknowledged(vec![event]);
        "append"
    }

    fn append_batch(&mut self) -> &'static str {
        let events = self.events();
        if !events.is_empty() {
            self.store().append_batch(&events).expect("append_batch");
            self.acknowledged(events);
        }
        "append_batch"
    }

    fn append_from(&mut self) -> &'static str {
        let events = self.events();
        let position = 1 + u64::from(self.choices.next());
        let _stored = self
            .store()
            .append_from("up", position, &events)
            .expect("append_from");
        if position > self.upstream {
            self.upstream = position;
            self.acknowledged(events);
        }
        "append_from"
    }

    fn decide(&mut self) -> &'static str {
        let consumer = self.consumer().clone();
        consumer.catch_up().expect("catch_up");
        let letters: Vec<DeadLetter> = list(consumer.dead_letters());
        let choice = usize::from(self.choices.next());
        let verb = self.choices.below(3);
        // Sometimes a letter that is resolved, or none at all.
        let offset = match letters.get(choice % letters.len().saturating_add(1)) {
            Some(letter) => letter.offset,
            None => Offset::new(0),
        };
        let decided = match verb {
            0 => consumer.redrive(offset, None),
            1 => consumer.discard(offset, None),
            _ => consumer.skip(offset, Some("fuzz")),
        };
        match decided {
            Ok(_) => "decided",
            Err(Error::NotFound { .. } | Error::AlreadyResolved { .. } | Error::NotNext { .. }) => {
                "refused decision"
            }
            Err(error) => panic!("a decision failed: {error}"),
        }
    }

    fn reconcile(&mut self) -> &'static str {
        let mut source = MapSource::default();
        for _ in 0..self.choices.below(3) {
            let event = self.event();
            source.insert(event.key, event.version, event.kind);
        }
        let keys: Vec<String> = source.keys().map(str::to_owned).collect();
        let consumer = self.consumer();
        consumer.reconcile(&source, &keys, None).expect("reconcile");
        let again = consumer.reconcile(&source, &keys, None).expect("reconcile");
        assert!(again.is_empty(), "a second run found {again:?}");
        "reconcile"
    }

    fn replay(&mut self) -> &'static str {
        let from = u64::from(self.choices.next());
        let consumer = self.consumer();
        consumer.catch_up().expect("catch_up");
        let before = (consumer.digest(), consumer.counters());
        let from = Offset::new(from.min(consumer.checkpoint().get()));
        consumer.replay(from).expect("replay");
        assert_eq!((consumer.digest(), consumer.counters()), before);
        "replay"
    }

    fn check_rebuild(&mut self) -> &'static str {
        let consumer = self.consumer();
        consumer.catch_up().expect("catch_up");
        let verified = consumer.verify().expect("verify");
        assert!(verified.is_sound(), "{verified:?}");
        let before = consumer.digest();
        consumer.rebuild().expect("rebuild");
        assert_eq!(consumer.digest(), before);
        "rebuild"
    }

    /// Reads the log back, and compares it with what must be in it and the consumer with the model.
    fn compare(&mut self, step: &str) {
        let upstream = self.store().upstream_position("up");
        assert_eq!(upstream.unwrap_or(0), self.upstream, "{step}: upstream");
        let log = self.read();
        let known = log.get(..self.log.len()).expect("nothing durable is lost");
        assert!(known == self.log, "{step}: the log has changed");
        let fresh: Vec<&Event> = log[known.len()..].iter().filter_map(as_event).collect();
        let acked: Vec<&Event> = self.acked.iter().collect();
        assert_eq!(
            fresh.get(..acked.len()),
            Some(&*acked),
            "{step}: acknowledged is lost"
        );
        // What was only written may have become durable, in order.
        let more = &fresh[acked.len()..];
        let written: Vec<&Event> = self.written.iter().take(more.len()).collect();
        assert_eq!(more, written, "{step}: not what was written");
        if self.written.len() == more.len() || step == "crash" {
            self.written.clear();
        } else {
            self.written.drain(..more.len());
        }
        self.acked.clear();
        self.log = log;

        let consumer = self.consumer();
        consumer.catch_up().expect("catch_up");
        let log = self.read();
        let mut model = Model::new(model::sequence(), NAME);
        model.log.extend(log);
        let state = model.fold(consumer.checkpoint().get());
        state.assert_sound();
        same(&state, consumer, step);
    }

    fn read(&self) -> Vec<Body> {
        let store = self.store();
        let mut records: Vec<Record> = Vec::new();
        let mut from = Offset::ZERO;
        loop {
            let batch = store.next_batch(from, 5).expect("next_batch");
            if batch.records.is_empty() {
                break;
            }
            from = batch.next;
            records.extend(batch.records);
        }
        for (place, record) in (0..).zip(&records) {
            assert_eq!(record.offset, Offset::new(place), "offsets have no gap");
        }
        assert_eq!(from, store.durable_end());
        records.into_iter().map(|record| record.body).collect()
    }
}

fn as_event(body: &Body) -> Option<&Event> {
    match body {
        Body::Event(event) => Some(event),
        Body::Decision(_) => None,
    }
}

fn list<T>(items: impl Iterator<Item = foldlog::Result<T>>) -> Vec<T> {
    items.map(|item| item.expect("a list")).collect()
}

/// The consumer says what the model says.
fn same(state: &State<String>, consumer: &Consumer<Sequence>, step: &str) {
    let rows = list(consumer.rows());
    let rows = rows.into_iter().map(|(key, row)| {
        let moved_at = row.moved_at.get();
        let (version, state) = (row.version, row.state);
        let row = model::Row {
            version,
            state,
            moved_at,
        };
        (key, row)
    });
    assert_eq!(rows.collect::<BTreeMap<_, _>>(), state.rows, "{step}: rows");

    let waiting = list(consumer.waiting()).into_iter().map(|waiting| {
        let entry = (waiting.id, waiting.key, waiting.version);
        (
            waiting.offset.get(),
            entry,
            waiting.attempts,
            waiting.spent,
            waiting.held,
        )
    });
    let expected = state.waiting.iter().map(|(offset, waiting)| {
        let held = state.is_held(&waiting.key, waiting.version);
        let entry = (waiting.id.clone(), waiting.key.clone(), waiting.version);
        (*offset, entry, waiting.attempts, waiting.spent, held)
    });
    assert_eq!(
        waiting.collect::<Vec<_>>(),
        expected.collect::<Vec<_>>(),
        "{step}: waiting"
    );

    let letters = list(consumer.dead_letters());
    let letters = letters
        .iter()
        .map(|letter| (letter.offset.get(), as_letter(letter)));
    let mut expected = state.letters.clone();
    for death in expected.values_mut().flat_map(|letter| &mut letter.history) {
        // The words for what foldlog itself finds are foldlog's.
        death.reason.clear();
    }
    assert_eq!(
        letters.collect::<BTreeMap<_, _>>(),
        expected,
        "{step}: letters"
    );

    let counters = consumer.counters();
    let figures = state.figures();
    let expected = [
        (figures.events, counters.events, "events"),
        (figures.applied, counters.applied, "applied"),
        (figures.duplicate, counters.duplicate, "duplicate"),
        (figures.merged, counters.merged, "merged"),
        (figures.retry, counters.retry, "retry"),
        (figures.waiting, counters.waiting, "waiting"),
        (figures.held, counters.held, "held"),
        (figures.dead, counters.dead, "dead"),
        (figures.discarded, counters.discarded, "discarded"),
        (figures.skipped, counters.skipped, "skipped"),
        (figures.rows, counters.rows, "rows"),
        (figures.fixes, counters.fixes, "fixes"),
        (figures.stale_fixes, counters.stale_fixes, "stale fixes"),
    ];
    for (model, consumer, name) in expected {
        let shown = format!("{step}: {name} of {figures:?} and {counters:?}");
        assert_eq!(u64::try_from(model), Ok(consumer), "{shown}");
    }
    assert!(counters.add_up(), "{step}: {counters:?}");
}

fn as_letter(letter: &DeadLetter) -> Letter {
    let history = letter.history.iter().map(|death| model::Death {
        class: match death.class {
            Class::Poison => model::Class::Poison,
            Class::Conflict => model::Class::Conflict,
            Class::Crashed => model::Class::Crashed,
            _ => panic!("a class that the model does not know"),
        },
        reason: String::new(),
        attempts: death.attempts,
        at: death.at.get(),
        resolved: death.resolved.map(|resolution| {
            let how = match resolution.how {
                Resolved::Redriven => How::Redriven,
                Resolved::Discarded => How::Discarded,
                Resolved::Skipped => How::Skipped,
            };
            (how, resolution.at.get())
        }),
    });
    Letter {
        id: letter.id.clone(),
        key: letter.key.clone(),
        version: letter.version,
        history: history.collect(),
    }
}
