//! A ground in memory and a harness around the fold, for tests of this crate.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use super::ground::Ground;
use super::key::KeyState;
use super::letter::DeadLetter;
use super::overlay::{Changes, Overlay, Totals};
use super::{Crashes, DecisionEffect, Effect, Judge, Outcome, Pass, Unwatched};
use crate::error::{Error, Result};
use crate::event::{Action, Body, Decision, Event, Record};
use crate::limits::MAX_ATTEMPTS_DEFAULT;
use crate::machine::StateMachine;
use crate::offset::Offset;

pub(crate) const CONSUMER: &str = "test";

pub(crate) type Log = Rc<RefCell<Vec<Record>>>;

/// State as flushes leave it.
#[derive(Debug, Default)]
pub(crate) struct MemoryGround {
    log: Log,
    keys: RefCell<BTreeMap<String, KeyState>>,
    letters: RefCell<BTreeMap<Offset, DeadLetter>>,
    waiting: RefCell<BTreeMap<Offset, String>>,
}

impl MemoryGround {
    pub(crate) fn new(log: Log) -> Self {
        Self {
            log,
            ..Self::default()
        }
    }
}

/// Sorts changes by what a flush does with them, so that the overlay can be borrowed again.
type Owned = (
    Vec<(String, Option<KeyState>)>,
    Vec<DeadLetter>,
    Vec<(Offset, Option<String>)>,
);

fn owned(changes: &Changes<'_>) -> Owned {
    let keys = changes.keys.iter();
    let waiting = changes.waiting.iter();
    (
        keys.map(|(key, state)| ((*key).to_owned(), state.cloned()))
            .collect(),
        changes.letters.iter().map(|l| (*l).clone()).collect(),
        waiting
            .map(|(o, key)| (*o, key.map(str::to_owned)))
            .collect(),
    )
}

impl MemoryGround {
    fn apply(&self, (keys, letters, waiting): Owned) {
        for (key, state) in keys {
            match state {
                Some(state) => drop(self.keys.borrow_mut().insert(key, state)),
                None => drop(self.keys.borrow_mut().remove(&key)),
            }
        }
        for letter in letters {
            self.letters.borrow_mut().insert(letter.offset, letter);
        }
        for (offset, key) in waiting {
            let mut known = self.waiting.borrow_mut();
            if let Some(key) = key {
                known.insert(offset, key);
            } else {
                let gone = known.remove(&offset);
                assert!(gone.is_some(), "removes {offset}, which is not there");
            }
        }
    }
}

impl Ground for MemoryGround {
    fn key(&self, key: &str) -> Result<Option<KeyState>> {
        Ok(self.keys.borrow().get(key).cloned())
    }

    fn letter(&self, offset: Offset) -> Result<Option<DeadLetter>> {
        Ok(self.letters.borrow().get(&offset).cloned())
    }

    fn waiting_after(&self, from: Offset, limit: usize) -> Result<Vec<(Offset, String)>> {
        let waiting = self.waiting.borrow();
        let page = waiting.range(from..).take(limit);
        Ok(page.map(|(offset, key)| (*offset, key.clone())).collect())
    }

    fn letters_after(&self, from: Offset, limit: usize) -> Result<Vec<DeadLetter>> {
        let letters = self.letters.borrow();
        let page = letters.range(from..).take(limit);
        Ok(page.map(|(_, letter)| letter.clone()).collect())
    }

    fn keys_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, KeyState)>> {
        let keys = self.keys.borrow();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = keys.range::<str, _>((from, Bound::Unbounded)).take(limit);
        Ok(page.map(|(key, s)| (key.clone(), s.clone())).collect())
    }

    fn event(&self, offset: Offset) -> Result<Event> {
        read_event(&self.log, offset)
    }
}

pub(crate) fn read_event(log: &Log, offset: Offset) -> Result<Event> {
    let index = usize::try_from(offset.get()).unwrap();
    match log.borrow().get(index).map(|record| &record.body) {
        Some(Body::Event(event)) => Ok(event.clone()),
        Some(Body::Decision(_)) | None => Err(Error::NotFound { offset }),
    }
}

/// A log and its fold, record by record.
pub(crate) struct Harness<M> {
    pub(crate) machine: M,
    pub(crate) log: Log,
    pub(crate) overlay: Overlay<MemoryGround>,
    pub(crate) budget: u32,
    pub(crate) crashes: Crashes,
}

impl<M: StateMachine> Harness<M> {
    pub(crate) fn new(machine: M) -> Self {
        Self::with_cache(machine, u64::MAX)
    }

    pub(crate) fn with_cache(machine: M, clean_bytes_max: u64) -> Self {
        let log = Log::default();
        let ground = MemoryGround::new(Rc::clone(&log));
        Self {
            machine,
            log,
            overlay: Overlay::new(ground, Totals::default(), clean_bytes_max),
            budget: MAX_ATTEMPTS_DEFAULT,
            crashes: Crashes::new(),
        }
    }

    pub(crate) fn end(&self) -> Offset {
        Offset::new(u64::try_from(self.log.borrow().len()).unwrap())
    }

    pub(crate) fn append(&mut self, body: Body) -> Effect {
        let record = Record {
            offset: self.end(),
            recorded_at_ms: 0,
            body,
        };
        self.log.borrow_mut().push(record.clone());
        let mut pass = Pass {
            budget: self.budget,
            crashes: &self.crashes,
            watch: &mut Unwatched,
            counts_shared: true,
        };
        let effect = Judge::new(&self.machine, CONSUMER)
            .record(&mut self.overlay, &mut pass, &record)
            .unwrap();
        self.budget = pass.budget;
        effect
    }

    pub(crate) fn event(&mut self, event: Event) -> Outcome {
        self.append(Body::Event(event)).outcome.unwrap()
    }

    pub(crate) fn decide(&mut self, action: Action) -> DecisionEffect {
        let decision = Decision {
            consumer: CONSUMER.to_owned(),
            note: None,
            action,
        };
        self.append(Body::Decision(decision)).decision.unwrap()
    }

    /// Redelivery rounds until none spends.
    pub(crate) fn settle(&mut self) {
        loop {
            let below = self.end();
            let round = self.decide(Action::Redeliver { below });
            if matches!(round, DecisionEffect::Redelivered { spent: 0, .. }) {
                return;
            }
        }
    }

    pub(crate) fn flush(&mut self) {
        let owned = owned(&self.overlay.changes());
        self.overlay.ground().apply(owned);
        self.overlay.flushed();
    }

    pub(crate) fn state(&self, key: &str) -> KeyState {
        self.overlay.key(key).unwrap().unwrap_or_default()
    }

    pub(crate) fn letter(&self, offset: u64) -> DeadLetter {
        self.overlay.letter(Offset::new(offset)).unwrap().unwrap()
    }
}
