//! The order of judgement for one delivery of an event.

use super::counters::up;
use super::desk::{Desk, Name};
use super::ground::Ground;
use super::key::Waiting;
use super::letter::Class;
use super::overlay::Overlay;
use super::{Judge, Outcome, Pass, call};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::machine::{Poison, StateMachine};
use crate::offset::Offset;

/// Where a version stands to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The row has it already.
    Passed,
    /// It is the next.
    Next,
    /// Versions before it are missing.
    Gap,
}

/// Where `version` stands to a row at version `row` (0 if there is none).
pub(crate) fn place(row: i64, version: i64) -> Place {
    if version <= row {
        Place::Passed
    } else if row.checked_add(1) == Some(version) {
        Place::Next
    } else {
        Place::Gap
    }
}

/// The reason of an event whose version no row can ever have next.
pub(crate) const VERSION_BELOW_1: &str = "the version is below 1";
/// The reason of an event whose predecessor did not come in time.
pub(crate) const BUDGET_SPENT: &str = "versions before it did not come within the retry budget";

/// One delivery: a first one, or a redrive of a dead letter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery<'a> {
    /// The record being folded.
    pub(super) at: Offset,
    /// Where the event is.
    pub(super) offset: Offset,
    /// Attempts before this one.
    pub(super) attempts: u32,
    pub(super) event: &'a Event,
}

impl<'a> Delivery<'a> {
    fn name(&self) -> Name<'a> {
        Name {
            offset: self.offset,
            version: self.event.version,
            id: &self.event.id,
        }
    }
}

/// The reason and the attempts of a crash; both come from the `Crashed` decision.
pub(super) fn crash(before: u32, starts: u32) -> (String, u32) {
    let reason = format!("took the process down {starts} times");
    (reason, before.saturating_add(starts))
}

impl<M: StateMachine> Judge<'_, M> {
    pub(super) fn deliver<G: Ground>(
        &self,
        overlay: &mut Overlay<G>,
        pass: &mut Pass<'_>,
        delivery: &Delivery<'_>,
    ) -> Result<Outcome> {
        let Delivery {
            at, offset, event, ..
        } = *delivery;
        let name = delivery.name();
        if let Some(starts) = pass.crashes.get(&(at, offset)) {
            let (reason, attempts) = crash(delivery.attempts, *starts);
            overlay.with(&event.key, |desk| {
                desk.die(name, at, (Class::Crashed, &reason), attempts)
            })?;
            return Ok(Outcome::Dead);
        }
        pass.watch.judging(at, offset)?;
        let checked = call::check(self.machine, event);
        overlay.with(&event.key, |desk| {
            let attempts = delivery.attempts.saturating_add(1);
            let verdict = match checked {
                Err(poison) => Err(poison),
                Ok(()) if event.version < 1 => Err(Poison::new(VERSION_BELOW_1)),
                Ok(()) => match place(desk.state().version(), event.version) {
                    Place::Passed => {
                        up(&mut desk.counters().duplicate);
                        return Ok(Outcome::Duplicate);
                    }
                    Place::Next => self.apply(desk, at, event)?,
                    Place::Gap => return Self::too_early(desk, pass, delivery),
                },
            };
            match verdict {
                Ok(()) => {
                    self.drain(desk, pass, at)?;
                    Ok(Outcome::Applied)
                }
                Err(poison) => {
                    desk.die(name, at, (Class::Poison, poison.reason()), attempts)?;
                    Ok(Outcome::Dead)
                }
            }
        })
    }

    /// Applies the next event of the key: moves and counts the row, or says why not.
    pub(super) fn apply<G: Ground>(
        &self,
        desk: &mut Desk<'_, G>,
        at: Offset,
        event: &Event,
    ) -> Result<Result<(), Poison>> {
        let (state, out) = desk.row_state();
        let verdict =
            call::apply(self.machine, state, event, out).map_err(|reason| Error::Codec {
                key: event.key.clone(),
                verb: "decoded",
                reason,
            })?;
        if verdict.is_ok() {
            desk.advance(event.version, at);
            up(&mut desk.counters().applied);
        }
        Ok(verdict)
    }

    /// A gap: the event is merged into its own delivery that waits, waits itself, or has spent its
    /// budget.
    fn too_early<G: Ground>(
        desk: &mut Desk<'_, G>,
        pass: &Pass<'_>,
        delivery: &Delivery<'_>,
    ) -> Result<Outcome> {
        let Delivery {
            at, offset, event, ..
        } = *delivery;
        let held = desk.state().is_held(event.version);
        if let Some(index) = desk.state().find_waiting(event.version, &event.id) {
            up(&mut desk.counters().merged);
            if held {
                return Ok(Outcome::Retry);
            }
            return Self::spend(desk, pass, at, index);
        }
        let spent = u32::from(!held);
        let attempts = delivery.attempts.saturating_add(spent);
        if spent >= pass.budget {
            let why = (Class::Conflict, BUDGET_SPENT);
            desk.die(delivery.name(), at, why, attempts)?;
            return Ok(Outcome::Dead);
        }
        desk.wait(Waiting {
            offset,
            version: event.version,
            id: event.id.clone(),
            attempts,
            spent,
        });
        Ok(Outcome::Retry)
    }

    /// One more attempt of an event that waits unheld.
    pub(super) fn spend<G: Ground>(
        desk: &mut Desk<'_, G>,
        pass: &Pass<'_>,
        at: Offset,
        index: usize,
    ) -> Result<Outcome> {
        if desk.spend(index) < pass.budget {
            return Ok(Outcome::Retry);
        }
        if let Some(dead) = desk.unwait(index) {
            let why = (Class::Conflict, BUDGET_SPENT);
            desk.die(Name::of(&dead), at, why, dead.attempts)?;
        }
        Ok(Outcome::Dead)
    }
}
