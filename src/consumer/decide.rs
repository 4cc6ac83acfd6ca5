//! An operator's decisions: each is checked against the state, written to the log, folded, and
//! answered with what the fold made of it.

use super::Inner;
use crate::error::{Error, Result};
use crate::event::Action;
use crate::fold::letter::{Class, DeadLetter};
use crate::fold::{DecisionEffect, Effect, Outcome};
use crate::machine::StateMachine;
use crate::num::to_u64;
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

/// Letters looked at per step.
const PAGE: usize = 1000;

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
        let action = match verb {
            Verb::Redrive => Action::Redrive { offset },
            Verb::Discard => Action::Discard { offset },
            Verb::Skip => Action::Skip { offset },
        };
        let decision = self.decision(action, note.map(str::to_owned));
        let at = self
            .log
            .append_decision(&decision, partition::hash(letter.key.as_bytes()))?;
        let effect = self.advance(&mut drive, at.next(), Some(at))?;
        Ok(Decided {
            offset,
            decision: at,
            outcome: effect.and_then(outcome_of),
        })
    }

    fn check_open(&self, verb: Verb, letter: &DeadLetter) -> Result<()> {
        let offset = letter.offset;
        let resolved = letter
            .history
            .last()
            .and_then(|death| death.resolved.as_ref());
        if let Some(resolution) = resolved {
            return Err(Error::AlreadyResolved {
                offset,
                how: resolution.how.as_str(),
            });
        }
        if verb == Verb::Skip {
            let row = self.live().key(&letter.key)?.and_then(|key| key.row);
            let next = row.map_or(0, |row| row.version).saturating_add(1);
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

    /// Decides about every open letter that matches, in offset order, at most `limit` of them.
    ///
    /// The letters are chosen first, over the whole queue, and then decided: a letter that dies
    /// again at its redrive is not chosen again.
    pub(crate) fn decide_all(
        &self,
        verb: Verb,
        filter: &Filter,
        limit: usize,
        note: Option<&str>,
    ) -> Result<Vec<Decided>> {
        let mut chosen = Vec::new();
        {
            let mut drive = self.drive();
            self.catch_up(&mut drive)?;
            let mut from = Offset::ZERO;
            'pages: loop {
                let page = self.live().letters_after(from, PAGE)?;
                let Some(last) = page.last() else { break };
                from = last.offset.next();
                for letter in page.iter().filter(|l| l.is_open() && filter.matches(l)) {
                    if to_u64(chosen.len()) >= to_u64(limit) {
                        break 'pages;
                    }
                    chosen.push(letter.offset);
                }
            }
        }
        let mut decided = Vec::new();
        for offset in chosen {
            match self.decide(verb, offset, note) {
                Ok(done) => decided.push(done),
                // Another decision of this very call can have resolved it, or moved its key.
                Err(
                    Error::NotFound { .. } | Error::AlreadyResolved { .. } | Error::NotNext { .. },
                ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(decided)
    }
}

fn outcome_of(effect: Effect) -> Option<Outcome> {
    if let DecisionEffect::Redriven(outcome) = effect.decision? {
        Some(outcome)
    } else {
        None
    }
}
