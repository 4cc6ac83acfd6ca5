//! Replay: deliver past events again over the live state, to check and to show.
//!
//! Nothing is written and no stored counter moves: what the state already explains is reported as
//! it stands, and only what it lost would be judged, in an overlay that is thrown away. On sound
//! state there is nothing to judge, for every start
//! (`state_taken_at_any_offset_and_caught_up_is_the_whole_fold`).

use crate::consumer::Inner;
use crate::consumer::projection::Projection;
use crate::error::{Error, Result};
use crate::event::{Body, Event, Record};
use crate::fold::ground::Ground;
use crate::fold::key::KeyState;
use crate::fold::letter::DeadLetter;
use crate::fold::overlay::{Overlay, Totals};
use crate::fold::{Crashes, Judge, Outcome, Pass, Unwatched};
use crate::machine::StateMachine;
use crate::offset::Offset;

/// Examples kept of what the state lost.
const LOST_SHOWN: usize = 20;
/// Unchanged keys kept in memory while judging what the state lost.
const WHAT_IF_BYTES: u64 = 1024 * 1024;
/// Letters looked at per step.
const PAGE: usize = 1000;

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replay {
    /// The first offset delivered again.
    pub from: Offset,
    /// The checkpoint, where it stopped.
    pub offset: Offset,
    /// Events delivered again.
    pub events: u64,
    /// Events that the state holds as applied, or that were duplicates already.
    pub duplicate: u64,
    /// Events that wait.
    pub waiting: u64,
    /// Repeats of an event that waits or became a dead letter.
    pub merged: u64,
    /// Events with a dead letter, in whatever state.
    pub letters: u64,
    /// Events that the state does not account for: they would be judged. 0 on sound state.
    pub lost: u64,
    /// Of those, how many would be applied.
    pub would_apply: u64,
    /// The first offsets of such events.
    pub lost_offsets: Vec<Offset>,
}

/// How the live state accounts for an event.
enum Standing {
    Duplicate,
    Waiting,
    Merged,
    Letter,
    Lost,
}

/// The live projection as the ground of a what-if.
pub(crate) struct Live<'a> {
    pub(crate) projection: &'a Projection,
    pub(crate) log: &'a crate::log::Log,
}

impl Ground for Live<'_> {
    fn key(&self, key: &str) -> Result<Option<KeyState>> {
        self.projection.key(key)
    }

    fn letter(&self, offset: Offset) -> Result<Option<DeadLetter>> {
        self.projection.letter(offset)
    }

    fn waiting_after(&self, from: Offset, limit: usize) -> Result<Vec<(Offset, String)>> {
        self.projection.waiting_after(from, limit)
    }

    fn letters_after(&self, from: Offset, limit: usize) -> Result<Vec<DeadLetter>> {
        self.projection.letters_after(from, limit)
    }

    fn keys_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, KeyState)>> {
        self.projection.keys_after(after, limit)
    }

    fn event(&self, offset: Offset) -> Result<Event> {
        crate::consumer::projection::event_at(self.log, offset)
    }
}

fn standing(live: &Live<'_>, offset: Offset, event: &Event) -> Result<Standing> {
    if live.letter(offset)?.is_some() {
        return Ok(Standing::Letter);
    }
    let state = live.key(&event.key)?.unwrap_or_default();
    if state.waiting.iter().any(|waiting| waiting.offset == offset) {
        return Ok(Standing::Waiting);
    }
    let version = state.row.as_ref().map_or(0, |row| row.version);
    let moved_at = state.row.as_ref().map(|row| row.moved_at);
    if moved_at.is_some_and(|moved| offset <= moved) || event.version <= version {
        return Ok(Standing::Duplicate);
    }
    let same = |w: &&crate::fold::key::Waiting| {
        w.version == event.version && w.id == event.id && w.offset < offset
    };
    if state.waiting.iter().any(|waiting| same(&waiting)) {
        return Ok(Standing::Merged);
    }
    // A repeat that was merged into a waiting event which died later: the letter tells. Letters
    // have no index by event; this path is rare.
    let mut from = Offset::ZERO;
    loop {
        let page = live.letters_after(from, PAGE)?;
        let Some(last) = page.last() else {
            return Ok(Standing::Lost);
        };
        from = last.offset.next();
        let merged = page.iter().any(|letter| {
            letter.offset < offset
                && letter.version == event.version
                && letter.id == event.id
                && letter.key == event.key
                && letter.history.iter().any(|death| death.at >= offset)
        });
        if merged {
            return Ok(Standing::Merged);
        }
        if from > offset {
            return Ok(Standing::Lost);
        }
    }
}

impl<M: StateMachine> Inner<M> {
    pub(crate) fn replay(&self, from: Offset) -> Result<Replay> {
        // Held for the whole replay: the state must not move under it.
        let drive = self.drive();
        let projection = self.live();
        let to = projection.checkpoint();
        if from > to {
            return Err(Error::OffsetOutOfRange {
                requested: from,
                first: Offset::ZERO,
                end: to,
            });
        }
        let live = Live {
            projection: &projection,
            log: &self.log,
        };
        let ground = Live {
            projection: &projection,
            log: &self.log,
        };
        let mut what_if = Overlay::new(ground, Totals::default(), WHAT_IF_BYTES);
        let budget = projection.budget();
        let fold = Judge::new(&self.machine, &self.name);
        let mut report = Replay {
            from,
            offset: to,
            ..Replay::default()
        };
        let mut cursor = self.log.cursor(from, to)?;
        while let Some(raw) = cursor.next()? {
            let record = raw
                .record()
                .map_err(|error| self.log.undecodable(raw.offset, &error))?;
            let Body::Event(event) = &record.body else {
                continue;
            };
            report.events = report.events.saturating_add(1);
            let count = match standing(&live, record.offset, event)? {
                Standing::Duplicate => &mut report.duplicate,
                Standing::Waiting => &mut report.waiting,
                Standing::Merged => &mut report.merged,
                Standing::Letter => &mut report.letters,
                Standing::Lost => {
                    let outcome = judge_lost(&fold, &mut what_if, budget, &record)?;
                    if outcome == Some(Outcome::Applied) {
                        report.would_apply = report.would_apply.saturating_add(1);
                    }
                    if report.lost_offsets.len() < LOST_SHOWN {
                        report.lost_offsets.push(record.offset);
                    }
                    &mut report.lost
                }
            };
            *count = count.saturating_add(1);
        }
        drop(drive);
        Ok(report)
    }
}

fn judge_lost<M: StateMachine>(
    judge: &Judge<'_, M>,
    what_if: &mut Overlay<Live<'_>>,
    budget: u32,
    record: &Record,
) -> Result<Option<Outcome>> {
    let crashes = Crashes::new();
    let mut pass = Pass {
        budget,
        crashes: &crashes,
        watch: &mut Unwatched,
        counts_shared: false,
    };
    Ok(judge.record(what_if, &mut pass, record)?.outcome)
}
