//! [`DeadLetter`]: a pointer to an event that was set aside, with the history of why.
//!
//! Never a copy of the event: its content is always read from the log, at the letter's offset.

use serde::{Deserialize, Serialize};

use crate::limits::REASON_BYTES_MAX;
use crate::offset::Offset;

/// An event that was set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Where the event is in the log; also the letter's name in every decision about it.
    pub offset: Offset,
    /// The event's id.
    pub id: String,
    /// The event's key.
    pub key: String,
    /// The event's version.
    pub version: i64,
    /// Every time it died, oldest first; never empty.
    pub history: Vec<Death>,
}

impl DeadLetter {
    /// Whether the letter still waits for somebody to redrive, discard or skip it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.resolution().is_none() && !self.history.is_empty()
    }

    /// How the letter was resolved last; `None` while it is open.
    #[must_use]
    pub fn resolution(&self) -> Option<Resolution> {
        self.history.last().and_then(|death| death.resolved)
    }

    /// How often the event was tried when it died last, counted over all redrives.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.history.last().map_or(0, |death| death.attempts)
    }

    /// Why it died last.
    #[must_use]
    pub fn class(&self) -> Class {
        self.history
            .last()
            .map_or(Class::Poison, |death| death.class)
    }

    /// Why it died last, in words.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.history
            .last()
            .map_or("", |death| death.reason.as_str())
    }
}

/// One death of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Death {
    /// The kind of reason.
    pub class: Class,
    /// The reason in words, at most [`REASON_BYTES_MAX`] bytes.
    pub reason: String,
    /// How often the event had been tried, counted over all redrives.
    pub attempts: u32,
    /// The record that killed it: the event itself, a repeat of it, or a decision.
    pub at: Offset,
    /// How it was resolved; `None` while it is open.
    pub resolved: Option<Resolution>,
}

/// How and by which record a dead letter was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Resolution {
    /// What was done with it.
    pub how: Resolved,
    /// The decision's offset.
    pub at: Offset,
}

/// What was done with a dead letter.
///
/// The order of the variants is part of the format of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resolved {
    /// Judged again. The letter is history; what became of the event is counted there.
    Redriven,
    /// Given up: it will never be applied, and holds nothing any more.
    Discarded,
    /// Given up, and its key's version moved past it.
    Skipped,
}

impl Resolved {
    /// The word for it: `redriven`, `discarded` or `skipped`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Redriven => "redriven",
            Self::Discarded => "discarded",
            Self::Skipped => "skipped",
        }
    }
}

impl std::fmt::Display for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why an event died.
///
/// The order of the variants is part of the format of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Class {
    /// It can never be applied as it is written.
    Poison,
    /// Its predecessor did not come before its retry budget was spent.
    Conflict,
    /// Judging it took the process down, again and again.
    Crashed,
}

impl Class {
    /// The word for it: `poison`, `conflict` or `crashed`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Poison => "poison",
            Self::Conflict => "conflict",
            Self::Crashed => "crashed",
        }
    }
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `reason`, cut to [`REASON_BYTES_MAX`] bytes at a character boundary.
pub(crate) fn cut_reason(reason: &str) -> String {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    reason.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_at_a_character_boundary() {
        assert_eq!(cut_reason("short"), "short");
        let exact = "x".repeat(REASON_BYTES_MAX);
        assert_eq!(cut_reason(&exact), exact);
        let wide = format!("x{}", "€".repeat(400));
        let cut = cut_reason(&wide);
        assert_eq!(cut.len(), 1 + 341 * 3);
        assert!(wide.starts_with(&cut));
    }
}
