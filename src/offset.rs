//! [`Offset`], the number of a record.

use std::fmt;

/// The number of a record in the log, from 0 without holes.
///
/// The same type says "the first offset not yet …" (an *end* or a *checkpoint*), always exclusive:
/// a checkpoint of 3 means that records 0, 1 and 2 are folded.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct Offset(u64);

impl Offset {
    /// The offset of the first record of every log.
    pub const ZERO: Self = Self(0);
    /// The largest offset there can be; no record ever has it, because it must have a next.
    pub const MAX: Self = Self(u64::MAX);

    /// The offset with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The offset after this one. Saturates at [`Offset::MAX`], which `append` refuses to reach.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The offset `count` records later, saturating.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// How many records lie in `earlier..self`; 0 if `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u64> for Offset {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<Offset> for u64 {
    fn from(offset: Offset) -> Self {
        offset.0
    }
}
