//! An operator's decisions: each is checked against the state, written to the log, folded, and
//! answered with what the fold made of it.

use super::Inner;
use super::drive::Drive;
use crate::error::{Error, Result};
use crate::event::Action;
use crate::fold::letter::{Class, DeadLetter};
use crate::fold::{DecisionEffect, Outcome};
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::partition;

/// Which dead letters a bulk decision takes: all that match every condition given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Filter {
    pub(crate) key: Option<String>,
    pub(crate) class: Option<Class>,
    pub(crate) from: Option<Offset>,
    pub(crate) below: Option<Offset>,
    pub(crate) reason: Option<String>,
}

impl Filter {
    /// Every open letter.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only letters of this key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Only letters of this class.
    pub fn class(mut self, class: Class) -> Self {
        self.class = Some(class);
        self
    }

    /// Only letters of events at or above this offset.
    pub fn from(mut self, from: Offset) -> Self {
        self.from = Some(from);
        self
    }

    /// Only letters of events below this offset.
    pub fn below(mut self, below: Offset) -> Self {
        self.below = Some(below);
        self
    }

    /// Only letters whose last reason contains this text.
    pub fn reason_contains(mut self, text: impl Into<String>) -> Self {
        self.reason = Some(text.into());
        self
    }

    /// Whether this letter, in its last state, matches.
    #[must_use]
    pub fn matches(&self, letter: &DeadLetter) -> bool {
        let Some(death) = letter.history.last() else {
            return false;
        };
        self.key.as_ref().is_none_or(|key| *key == letter.key)
            && self.class.is_none_or(|class| class == death.class)
            && self.from.is_none_or(|from| letter.offset >= from)
            && self.below.is_none_or(|below| letter.offset < below)
            && self
                .reason
                .as_ref()
                .is_none_or(|text| death.reason.contains(text.as_str()))
    }
}

/// What to do with a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Redrive,
    Discard,
    Skip,
}

/// What became of one decided letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decided {
    /// The event's offset.
    pub offset: Offset,
    /// The offset of the decision in the log.
    pub decision: Offset,
    /// For a redrive: what judging the event again came to. `None` for discard and skip.
    pub outcome: Option<Outcome>,
}

/// Letters looked at per step, and decisions per frame at most.
const PAGE: usize = 1000;

impl Verb {
    const fn action(self, offset: Offset) -> Action {
        match self {
            Self::Redrive => Action::Redrive { offset },
            Self::Discard => Action::Discard { offset },
            Self::Skip => Action::Skip { offset },
        }
    }
}

impl<M: StateMachine> Inner<M> {
    /// Decides about one letter.
    pub(crate) fn decide(&self, verb: Verb, offset: Offset, note: Option<&str>) -> Result<Decided> {
        let mut drive = self.drive();
        self.catch_up(&mut drive)?;
        let letter = self
            .live()
            .letter(offset)?
            .ok_or(Error::NotFound { offset })?;
        self.check_open(verb, &letter)?;
        let decided = self.record(&mut drive, verb, &[letter], note)?;
        // Nothing can have come between under the drive lock, so the decision took effect.
        decided.into_iter().next().ok_or(Error::NotFound { offset })
    }

    fn check_open(&self, verb: Verb, letter: &DeadLetter) -> Result<()> {
        let offset = letter.offset;
        if let Some(resolution) = letter.resolution() {
            return Err(Error::AlreadyResolved {
                offset,
                how: resolution.how.as_str(),
            });
        }
        if verb == Verb::Skip {
            let next = self.next_version(&letter.key)?;
            if letter.version != next {
                return Err(Error::NotNext {
                    offset,
                    version: letter.version,
                    next,
                });
            }
        }
        Ok(())
    }

    fn next_version(&self, key: &str) -> Result<i64> {
        let version = self.live().key(key)?.map_or(0, |state| state.version());
        Ok(version.saturating_add(1))
    }

    /// Writes one decision about each letter as one frame, folds them, and answers those that took
    /// effect.
    fn record(
        &self,
        drive: &mut Drive,
        verb: Verb,
        letters: &[DeadLetter],
        note: Option<&str>,
    ) -> Result<Vec<Decided>> {
        let decisions: Vec<_> = letters
            .iter()
            .map(|letter| {
                let decision = self.decision(verb.action(letter.offset), note.map(str::to_owned));
                (decision, partition::hash(letter.key.as_bytes()))
            })
            .collect();
        let range = self.log.append_decisions(&decisions)?;
        let heard = self.advance(drive, range.end, Some(range.start))?;
        let decided = letters
            .iter()
            .zip(range.start.get()..)
            .filter_map(|(letter, at)| {
                let decision = Offset::new(at);
                let effect = *heard.get(&decision)?;
                let outcome = if let DecisionEffect::Redriven(outcome) = effect {
                    Some(outcome)
                } else if matches!(effect, DecisionEffect::Discarded | DecisionEffect::Skipped) {
                    None
                } else {
                    // Another decision of the same frame resolved it, or moved its key.
                    return None;
                };
                Some(Decided {
                    offset: letter.offset,
                    decision,
                    outcome,
                })
            });
        Ok(decided.collect())
    }

    /// Decides about every open letter that matches, in offset order, at most `limit` of them.
    ///
    /// One pass over the queue as it is at the start: a letter that dies again at its redrive has
    /// been passed by then, and is not decided again.
    pub(crate) fn decide_all(
        &self,
        verb: Verb,
        filter: &Filter,
        limit: usize,
        note: Option<&str>,
    ) -> Result<Vec<Decided>> {
        let mut drive = self.drive();
        self.catch_up(&mut drive)?;
        let end = self.live().checkpoint();
        let mut decided = Vec::new();
        let mut from = Offset::ZERO;
        loop {
            let page = self.live().letters_after(from, PAGE)?;
            let Some(last) = page.last() else {
                return Ok(decided);
            };
            from = last.offset.next();
            let left = limit.saturating_sub(decided.len());
            if left == 0 || page.first().is_some_and(|first| first.offset >= end) {
                return Ok(decided);
            }
            let chosen = page
                .into_iter()
                .filter(|l| l.is_open() && filter.matches(l));
            if verb == Verb::Skip {
                // Whether one can be skipped depends on those before it: one by one.
                for letter in chosen {
                    let open = decided.len() < limit && self.check_open(verb, &letter).is_ok();
                    if open {
                        decided.extend(self.record(&mut drive, verb, &[letter], note)?);
                    }
                }
            } else {
                let chosen: Vec<_> = chosen.take(left).collect();
                if !chosen.is_empty() {
                    decided.extend(self.record(&mut drive, verb, &chosen, note)?);
                }
            }
        }
    }
}
