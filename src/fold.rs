//! The fold: `(rows, waiting, letters) × record → outcome + changes`, and nothing else.
//!
//! It knows no clock, no randomness, no I/O and no hash-map order; it reads through [`Ground`] and
//! changes an [`Overlay`]. Live handling, catch-up, replay, rebuild and verify are this one fold
//! with different bounds.
//!
//! - Every event is accounted for exactly once, after every record; per key, applied versions rise
//!   by one but where a fix or skip put the row; the kept digest is the one computed from scratch;
//!   the result does not depend on flushes, evictions or partitions: all four in
//!   `every_record_does_what_the_rules_say_and_nothing_is_lost`.
//! - A key the overlay knows is judged without asking the ground:
//!   `a_known_key_costs_no_look_up_in_the_ground`.
//! - The machine is called only after the watch was told, and never where a crash is on record:
//!   `the_watch_is_told_of_every_event_before_the_machine_sees_it`,
//!   `a_crash_takes_effect_at_its_record_without_calling_the_machine`.
//!
//! `judge.rs` has the order of judgement for an event, `drain.rs` what a moved row lets go,
//! `decide.rs` the decisions, `desk.rs` and `overlay.rs` the state they change.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::Result;
use crate::event::{Body, Decision, Event, Record};
use crate::limits::MAX_ATTEMPTS_DEFAULT;
use crate::machine::StateMachine;
use crate::offset::Offset;

pub(crate) mod call;
pub(crate) mod counters;
mod decide;
mod desk;
pub(crate) mod digest;
mod drain;
pub(crate) mod ground;
pub(crate) mod judge;
pub(crate) mod key;
pub(crate) mod letter;
pub(crate) mod overlay;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use counters::up;
use ground::Ground;
pub(crate) use judge::{Place, place};
use letter::Resolved;
use overlay::Overlay;

/// What became of one delivery of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[must_use]
pub enum Outcome {
    /// It advanced its row.
    Applied,
    /// Its row has that version already.
    Duplicate,
    /// It came too early: it waits, or was merged into its own earlier delivery that waits.
    Retry,
    /// It is a dead letter, or the delivery it was merged into is one now.
    Dead,
}

impl Outcome {
    /// The word for it: `applied`, `duplicate`, `retry` or `dead`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Retry => "retry",
            Self::Dead => "dead",
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a decision did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecisionEffect {
    /// The retry budget is this from here on.
    Configured {
        /// The budget in force.
        max_attempts: u32,
    },
    /// A redelivery round was run.
    Redelivered {
        /// How many events spent an attempt.
        spent: u64,
        /// How many of them died of it.
        dead: u64,
    },
    /// The letter was resolved and its event judged again, with this outcome.
    Redriven(Outcome),
    /// The letter was resolved without applying it.
    Discarded,
    /// The letter was resolved and the row moved past it.
    Skipped,
    /// The row is repaired.
    Fixed,
    /// The row was no longer what the fix was computed against; nothing changed.
    Stale,
    /// The fix was written under another revision of the machine and cannot be read; nothing
    /// changed.
    Unreadable,
    /// A crash was noted; it takes effect at the record it names.
    Noted,
    /// No event of this key has a letter there; nothing changed.
    NotFound,
    /// The letter was resolved before; nothing changed.
    AlreadyResolved(Resolved),
    /// A skip of an event that is not the next of its key; nothing changed.
    NotNext {
        /// The event's version.
        version: i64,
        /// The key's next version.
        next: i64,
    },
}

/// What folding one record did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// For an event: what became of it.
    pub(crate) outcome: Option<Outcome>,
    /// For a decision of this consumer: what it did.
    pub(crate) decision: Option<DecisionEffect>,
}

/// Told just before the machine is called, so that a crash in it can be blamed on the right event.
pub(crate) trait Watch {
    /// While folding the record `at`, the event at `event` is about to be judged.
    fn judging(&mut self, at: Offset, event: Offset) -> Result<()>;
}

/// Watches nothing.
#[derive(Debug)]
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn judging(&mut self, _at: Offset, _event: Offset) -> Result<()> {
        Ok(())
    }
}

/// Every crash of a consumer, from its `Crashed` decisions in the whole durable log: record being
/// folded and event being judged, to the number of starts that died there.
pub(crate) type Crashes = BTreeMap<(Offset, Offset), u32>;

/// What a run of the fold over many records carries along.
pub(crate) struct Pass<'a> {
    /// The retry budget in force, stored with the checkpoint: [`budget`] of the last `Configure`.
    pub(crate) budget: u32,
    /// Known beforehand, because they take effect at the record they name.
    pub(crate) crashes: &'a Crashes,
    pub(crate) watch: &'a mut dyn Watch,
    /// Whether this partition counts the decisions that every partition folds, so that the count
    /// does not depend on the number of partitions. True for exactly one of them.
    pub(crate) counts_shared: bool,
}

impl std::fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass")
            .field("budget", &self.budget)
            .field("crashes", self.crashes)
            .finish_non_exhaustive()
    }
}

/// The retry budget that `max_attempts` stands for: below 1 it means the default.
pub(crate) const fn budget(max_attempts: u32) -> u32 {
    if max_attempts == 0 {
        MAX_ATTEMPTS_DEFAULT
    } else {
        max_attempts
    }
}

/// The rules: one machine, for one consumer.
#[derive(Debug)]
pub(crate) struct Judge<'m, M> {
    machine: &'m M,
    consumer: &'m str,
}

impl<'m, M: StateMachine> Judge<'m, M> {
    /// The rules of `machine`. Decisions for other consumers than `consumer` have no effect.
    pub(crate) const fn new(machine: &'m M, consumer: &'m str) -> Self {
        Self { machine, consumer }
    }

    /// Folds one record. Records come in the order of their offsets; events, and decisions about
    /// one key, only those of the partition.
    ///
    /// After an error the overlay is spoiled and must be thrown away: the caller starts again from
    /// the last flush.
    pub(crate) fn record<G: Ground>(
        &self,
        overlay: &mut Overlay<G>,
        pass: &mut Pass<'_>,
        record: &Record,
    ) -> Result<Effect> {
        match &record.body {
            Body::Event(event) => Ok(Effect {
                outcome: Some(self.event(overlay, pass, record.offset, event)?),
                decision: None,
            }),
            Body::Decision(decision) => Ok(Effect {
                outcome: None,
                decision: self.decision(overlay, pass, record.offset, decision)?,
            }),
        }
    }

    /// Folds an event record.
    pub(crate) fn event<G: Ground>(
        &self,
        overlay: &mut Overlay<G>,
        pass: &mut Pass<'_>,
        offset: Offset,
        event: &Event,
    ) -> Result<Outcome> {
        overlay.begin(self.consumer)?;
        let delivery = judge::Delivery {
            at: offset,
            offset,
            attempts: 0,
            event,
        };
        let outcome = self.deliver(overlay, pass, &delivery)?;
        let counters = overlay.counters_mut();
        up(&mut counters.events);
        if outcome == Outcome::Retry {
            up(&mut counters.retry);
        }
        overlay.commit();
        Ok(outcome)
    }

    /// Folds a decision record; `None` if it is for another consumer.
    pub(crate) fn decision<G: Ground>(
        &self,
        overlay: &mut Overlay<G>,
        pass: &mut Pass<'_>,
        at: Offset,
        decision: &Decision,
    ) -> Result<Option<DecisionEffect>> {
        if decision.consumer != self.consumer {
            return Ok(None);
        }
        overlay.begin(self.consumer)?;
        let effect = self.decide(overlay, pass, at, &decision.action)?;
        overlay.commit();
        Ok(Some(effect))
    }
}
