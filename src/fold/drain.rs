//! What a moved row lets go: the key's waiting events are judged again, in version order, then
//! offset order. This spends nothing.

use super::counters::up;
use super::desk::{Desk, Name};
use super::ground::Ground;
use super::judge::{Place, crash, place};
use super::letter::Class;
use super::{Judge, Pass};
use crate::error::Result;
use crate::machine::StateMachine;
use crate::offset::Offset;

impl<M: StateMachine> Judge<'_, M> {
    /// One pass is enough: the events come in version order, so once one is in a gap, all are.
    pub(super) fn drain<G: Ground>(
        &self,
        desk: &mut Desk<'_, G>,
        pass: &mut Pass<'_>,
        at: Offset,
    ) -> Result<()> {
        loop {
            let (row, first) = (desk.state().version(), desk.state().waiting.front());
            let place = first.map_or(Place::Gap, |first| place(row, first.version));
            if place == Place::Gap {
                return Ok(());
            }
            let Some(waiting) = desk.unwait(0) else {
                return Ok(());
            };
            if place == Place::Passed {
                up(&mut desk.counters().duplicate);
                continue;
            }
            let name = Name::of(&waiting);
            if let Some(starts) = pass.crashes.get(&(at, waiting.offset)) {
                let (reason, attempts) = crash(waiting.attempts, *starts);
                desk.die(name, at, (Class::Crashed, &reason), attempts)?;
                continue;
            }
            let event = desk.event(waiting.offset)?;
            pass.watch.judging(at, waiting.offset)?;
            if let Err(poison) = self.apply(desk, at, &event)? {
                let attempts = waiting.attempts.saturating_add(1);
                desk.die(name, at, (Class::Poison, poison.reason()), attempts)?;
            }
        }
    }
}
