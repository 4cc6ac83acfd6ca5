//! The log against an independent model, over the simulated disk: every crash, every failing call.
//!
//! The model is a list of frames. After anything that happened, the log must hold the records and
//! upstream positions of the first k of them, for a k that covers every acknowledged one.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::case_sensitive_file_extension_comparisons,
    clippy::cast_possible_truncation,
    clippy::wildcard_enum_match_arm,
    reason = "small numbers, in tests"
)]

mod concurrent;
mod crash;
mod face;
mod probe;
mod roll;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Ingested, Log, LogOptions};
use crate::error::{Error, Result};
use crate::event::{Body, Event};
use crate::limits::SEGMENT_BYTES_MIN;
use crate::offset::Offset;
use crate::storage::Storage;

/// The smallest segments there are: three of the `BIG` frames fill one.
pub(super) fn options() -> LogOptions {
    LogOptions {
        segment_bytes: SEGMENT_BYTES_MIN,
        ..LogOptions::default()
    }
}

const BIG: usize = 1200;

/// One call on the log.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// One durable frame with one event per length.
    Append(&'static [usize]),
    Write(usize),
    Sync,
    /// One frame from an upstream, with so many small events.
    From(&'static str, u64, usize),
    Reopen,
}

/// What one call tried to store.
#[derive(Clone, Debug, Default)]
struct Attempt {
    events: Vec<Event>,
    upstream: Option<(String, u64)>,
}

/// What was tried, in order, and how much of it was acknowledged.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    attempts: Vec<Attempt>,
    acked: usize,
    made: usize,
}

type Image = (Vec<Event>, BTreeMap<String, u64>);

impl Model {
    fn events(&mut self, lens: &[usize]) -> Vec<Event> {
        let events = lens.iter().map(|len| {
            self.made += 1;
            let made = self.made;
            Event::new(format!("e{made}"), "k", 1, "x").with_payload(vec![made as u8; *len])
        });
        events.collect()
    }

    /// What the first `k` attempts leave.
    fn image(&self, k: usize) -> Image {
        let mut image = Image::default();
        for attempt in &self.attempts[..k] {
            image.0.extend(attempt.events.iter().cloned());
            if let Some((name, position)) = &attempt.upstream {
                image.1.insert(name.clone(), *position);
            }
        }
        image
    }

    fn end(&self) -> Offset {
        Offset::new(self.image(self.attempts.len()).0.len() as u64)
    }

    /// Takes the answer of the call behind the last attempt.
    fn answer<T>(&mut self, durable: bool, answer: Result<T>) -> Result<T> {
        match &answer {
            Ok(_) if durable => self.acked = self.attempts.len(),
            Ok(_) | Err(Error::OutcomeUnknown { .. }) => {}
            // Every other error says: nothing was stored by this call.
            Err(_) => {
                self.attempts.pop();
            }
        }
        answer
    }

    fn step(&mut self, log: &Log, step: Step) -> Result<()> {
        let first = self.end();
        match step {
            Step::Append(lens) => {
                let events = self.events(lens);
                self.attempts.push(Attempt {
                    events: events.clone(),
                    upstream: None,
                });
                let offsets = self.answer(true, log.append(&events))?;
                assert_eq!(offsets, first..first.plus(lens.len() as u64));
            }
            Step::Write(len) => {
                let events = self.events(&[len]);
                self.attempts.push(Attempt {
                    events: events.clone(),
                    upstream: None,
                });
                let offset = self.answer(false, log.write(&events[0]))?;
                assert_eq!(offset, first);
            }
            Step::Sync => {
                assert_eq!(log.sync()?, first);
                self.acked = self.attempts.len();
            }
            Step::From(name, position, n) => {
                let events = self.events(&vec![20; n]);
                let upstream = Some((name.to_owned(), position));
                self.attempts.push(Attempt {
                    events: events.clone(),
                    upstream,
                });
                let stored = self.answer(true, log.append_from(name, position, &events))?;
                assert_eq!(stored, Ingested::Stored(first..first.plus(n as u64)));
            }
            Step::Reopen => {
                log.close()?;
                self.acked = self.attempts.len();
            }
        }
        if matches!(step, Step::Append(_) | Step::From(..) | Step::Sync) {
            assert_eq!(log.durable_end(), self.end());
            assert_eq!(log.upstreams(), self.image(self.acked).1);
        }
        Ok(())
    }

    /// Opens a log and walks through the steps to the end or to the first error that means it
    /// (all but those after which the handle must go on).
    fn run(&mut self, storage: &Arc<dyn Storage>, steps: &[Step]) -> Result<()> {
        let mut log = Log::open(Arc::clone(storage), options())?;
        for step in steps {
            // After any other failure the next call must work as if this one had not been made.
            if let Err(
                error @ (Error::OutcomeUnknown { .. } | Error::Stopped { .. } | Error::Closed),
            ) = self.step(&log, *step)
            {
                return Err(error);
            }
            if matches!(step, Step::Reopen) {
                drop(log);
                log = Log::open(Arc::clone(storage), options())?;
            }
        }
        log.close()?;
        self.acked = self.attempts.len();
        Ok(())
    }

    /// What the log shows must be what some allowed number of attempts left; those count as stored
    /// from now on.
    fn settle(&mut self, log: &Log) -> Result<(), String> {
        let found = image(log);
        let fitting = (self.acked..=self.attempts.len()).find(|k| self.image(*k) == found);
        let Some(k) = fitting else {
            let ids: Vec<&str> = found.0.iter().map(|event| event.id.as_str()).collect();
            let allowed = self.acked..=self.attempts.len();
            return Err(format!(
                "found {ids:?} and {:?}, allowed are {allowed:?}",
                found.1
            ));
        };
        self.attempts.truncate(k);
        self.acked = k;
        Ok(())
    }

    /// Opens what a crash left, twice, with an append between.
    pub(super) fn check(&mut self, storage: &Arc<dyn Storage>) -> Result<(), String> {
        for round in 0..2 {
            let fail = |error: Error| format!("round {round}: {error}");
            let log = Log::open(Arc::clone(storage), options()).map_err(fail)?;
            self.settle(&log)?;
            self.step(&log, Step::Append(&[30])).map_err(fail)?;
            self.step(&log, Step::From("late", round + 1, 1))
                .map_err(fail)?;
            log.close().map_err(fail)?;
        }
        let log = Log::open(Arc::clone(storage), options()).map_err(|error| error.to_string())?;
        self.settle(&log)
    }
}

/// Everything a log shows.
pub(super) fn image(log: &Log) -> Image {
    let mut events = Vec::new();
    let mut from = Offset::ZERO;
    loop {
        let batch = log.next_batch(from, 3).unwrap();
        if batch.records.is_empty() {
            assert_eq!(from, log.durable_end());
            return (events, log.upstreams());
        }
        for record in batch.records {
            assert_eq!(record.offset, from);
            from = from.next();
            let Body::Event(event) = record.body else {
                panic!("no decision was written");
            };
            events.push(event);
        }
        assert_eq!(batch.next, from);
    }
}
