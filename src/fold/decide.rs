//! The decisions: what an operator, the consumer's own rounds, and reconcile may change.

use super::counters::up;
use super::desk::Desk;
use super::ground::Ground;
use super::judge::{Delivery, Place, place};
use super::key::RawRow;
use super::letter::{DeadLetter, Resolved};
use super::overlay::Overlay;
use super::{DecisionEffect, Judge, Outcome, Pass, budget, call};
use crate::error::Result;
use crate::event::{Action, FixRow};
use crate::machine::StateMachine;
use crate::offset::Offset;

/// How many waiting events a redelivery round lists at a time: bounds its memory.
const ROUND_PAGE: usize = 1024;

/// A repair, its states translated to this revision.
struct Repair {
    from: Option<FixRow>,
    to: Option<FixRow>,
}

impl<M: StateMachine> Judge<'_, M> {
    pub(super) fn decide<G: Ground>(
        &self,
        overlay: &mut Overlay<G>,
        pass: &mut Pass<'_>,
        at: Offset,
        action: &Action,
    ) -> Result<DecisionEffect> {
        let shared = matches!(action, Action::Configure { .. } | Action::Redeliver { .. });
        if !shared || pass.counts_shared {
            up(&mut overlay.counters_mut().decisions);
        }
        match action {
            Action::Configure { max_attempts } => {
                pass.budget = budget(*max_attempts);
                Ok(DecisionEffect::Configured {
                    max_attempts: pass.budget,
                })
            }
            Action::Redeliver { below } => Self::redeliver(overlay, pass, at, *below),
            Action::Redrive { offset } => self.redrive(overlay, pass, at, *offset),
            Action::Discard { offset } => Self::discard(overlay, at, *offset),
            Action::Skip { offset } => self.skip(overlay, pass, at, *offset),
            Action::Fix {
                key,
                from,
                to,
                revision,
            } => {
                let repair = self.read_fix(pass, at, (from.as_ref(), to.as_ref()), *revision)?;
                overlay.with(key, |desk| self.fix(desk, pass, at, repair))
            }
            Action::Crashed { .. } => Ok(DecisionEffect::Noted),
        }
    }

    /// One round. Who is held does not change in it: an event that dies leaves an open letter of
    /// the same version in its place.
    fn redeliver<G: Ground>(
        overlay: &mut Overlay<G>,
        pass: &Pass<'_>,
        at: Offset,
        below: Offset,
    ) -> Result<DecisionEffect> {
        let (mut spent, mut dead) = (0, 0);
        let mut from = Offset::ZERO;
        loop {
            let page = overlay.waiting_after(from, ROUND_PAGE)?;
            for (offset, key) in &page {
                if *offset >= below {
                    return Ok(DecisionEffect::Redelivered { spent, dead });
                }
                let outcome = overlay.with(key, |desk| {
                    let unheld = desk.state().find_unheld(*offset);
                    unheld
                        .map(|index| Self::spend(desk, pass, at, index))
                        .transpose()
                })?;
                if let Some(outcome) = outcome {
                    up(&mut spent);
                    if outcome == Outcome::Dead {
                        up(&mut dead);
                    }
                }
            }
            match page.last() {
                Some((last, _)) if page.len() >= ROUND_PAGE => from = last.next(),
                Some(_) | None => return Ok(DecisionEffect::Redelivered { spent, dead }),
            }
        }
    }

    fn redrive<G: Ground>(
        &self,
        overlay: &mut Overlay<G>,
        pass: &mut Pass<'_>,
        at: Offset,
        offset: Offset,
    ) -> Result<DecisionEffect> {
        let letter = match open_letter(overlay, offset)? {
            Ok(letter) => letter,
            Err(effect) => return Ok(effect),
        };
        let attempts = letter.attempts();
        let event = overlay.event(offset)?;
        overlay.with(&event.key, |desk| {
            desk.resolve(letter, Resolved::Redriven, at);
            Ok(())
        })?;
        let delivery = Delivery {
            at,
            offset,
            attempts,
            event: &event,
        };
        Ok(DecisionEffect::Redriven(
            self.deliver(overlay, pass, &delivery)?,
        ))
    }

    fn discard<G: Ground>(
        overlay: &mut Overlay<G>,
        at: Offset,
        offset: Offset,
    ) -> Result<DecisionEffect> {
        let letter = match open_letter(overlay, offset)? {
            Ok(letter) => letter,
            Err(effect) => return Ok(effect),
        };
        let key = letter.key.clone();
        overlay.with(&key, |desk| {
            desk.resolve(letter, Resolved::Discarded, at);
            Ok(DecisionEffect::Discarded)
        })
    }

    fn skip<G: Ground>(
        &self,
        overlay: &mut Overlay<G>,
        pass: &mut Pass<'_>,
        at: Offset,
        offset: Offset,
    ) -> Result<DecisionEffect> {
        let letter = match open_letter(overlay, offset)? {
            Ok(letter) => letter,
            Err(effect) => return Ok(effect),
        };
        let key = letter.key.clone();
        overlay.with(&key, |desk| {
            let (row, version) = (desk.state().version(), letter.version);
            if place(row, version) != Place::Next {
                return Ok(DecisionEffect::NotNext {
                    version,
                    next: row.saturating_add(1),
                });
            }
            let state = desk.state().row.as_ref();
            let state = state.and_then(|row| row.state.clone());
            desk.resolve(letter, Resolved::Skipped, at);
            desk.set_row(Some(RawRow {
                version,
                state,
                moved_at: at,
            }));
            self.drain(desk, pass, at)?;
            Ok(DecisionEffect::Skipped)
        })
    }

    /// Reads both sides of a fix; `None` if one of them cannot be read, or took the process down.
    fn read_fix(
        &self,
        pass: &mut Pass<'_>,
        at: Offset,
        (from, to): (Option<&FixRow>, Option<&FixRow>),
        revision: u32,
    ) -> Result<Option<Repair>> {
        if pass.crashes.contains_key(&(at, at)) {
            return Ok(None);
        }
        pass.watch.judging(at, at)?;
        let read = |row: Option<&FixRow>| match row {
            None => Some(None),
            Some(FixRow { version, state }) => {
                let state = match state {
                    None => None,
                    Some(bytes) => Some(call::translate(self.machine, revision, bytes)?),
                };
                Some(Some(FixRow {
                    version: *version,
                    state,
                }))
            }
        };
        Ok(read(from)
            .zip(read(to))
            .map(|(from, to)| Repair { from, to }))
    }

    fn fix<G: Ground>(
        &self,
        desk: &mut Desk<'_, G>,
        pass: &mut Pass<'_>,
        at: Offset,
        repair: Option<Repair>,
    ) -> Result<DecisionEffect> {
        let Some(Repair { from, to }) = repair else {
            tracing::warn!(key = desk.key(), offset = %at, "a fix cannot be read");
            up(&mut desk.counters().unreadable_fixes);
            return Ok(DecisionEffect::Unreadable);
        };
        let row = desk.state().row.as_ref();
        let same = match (row, &from) {
            (None, None) => true,
            (Some(row), Some(from)) => row.version == from.version && row.state == from.state,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !same {
            up(&mut desk.counters().stale_fixes);
            return Ok(DecisionEffect::Stale);
        }
        desk.set_row(to.map(|to| RawRow {
            version: to.version,
            state: to.state,
            moved_at: at,
        }));
        up(&mut desk.counters().fixes);
        self.drain(desk, pass, at)?;
        Ok(DecisionEffect::Fixed)
    }
}

/// The open letter at `offset`, or what a decision about it comes to.
fn open_letter<G: Ground>(
    overlay: &Overlay<G>,
    offset: Offset,
) -> Result<std::result::Result<DeadLetter, DecisionEffect>> {
    let Some(letter) = overlay.letter(offset)? else {
        return Ok(Err(DecisionEffect::NotFound));
    };
    Ok(match letter.resolution() {
        Some(resolution) => Err(DecisionEffect::AlreadyResolved(resolution.how)),
        None => Ok(letter),
    })
}
