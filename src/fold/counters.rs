//! [`Counters`], what became of every event, and of every decision.

use serde::{Deserialize, Serialize};

/// How many events and decisions came to what, below a checkpoint.
///
/// Always `events = applied + duplicate + merged + waiting + dead + discarded + skipped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counters {
    /// Event records folded.
    pub events: u64,
    /// Events that advanced a row, also those that waited first.
    pub applied: u64,
    /// Events of a version that the row already had.
    pub duplicate: u64,
    /// Repeats of an event that was waiting.
    pub merged: u64,
    /// Event records whose outcome was retry: they waited or were merged. Redelivery rounds do not
    /// count.
    pub retry: u64,
    /// Events that wait now, held included.
    pub waiting: u64,
    /// Events that wait now behind a known earlier event of their key.
    pub held: u64,
    /// Dead letters open now.
    pub dead: u64,
    /// Dead letters resolved by a discard.
    pub discarded: u64,
    /// Dead letters resolved by a skip.
    pub skipped: u64,
    /// Rows of the projection now.
    pub rows: u64,
    /// Fixes that took effect.
    pub fixes: u64,
    /// Fixes that came too late: the row was no longer what they were computed against.
    pub stale_fixes: u64,
    /// Fixes of another revision of the machine that this one could not read.
    pub unreadable_fixes: u64,
    /// Decisions for this consumer folded, also those that changed nothing.
    pub decisions: u64,
}

impl Counters {
    /// The sum over two disjoint sets of keys.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            events: self.events.wrapping_add(other.events),
            applied: self.applied.wrapping_add(other.applied),
            duplicate: self.duplicate.wrapping_add(other.duplicate),
            merged: self.merged.wrapping_add(other.merged),
            retry: self.retry.wrapping_add(other.retry),
            waiting: self.waiting.wrapping_add(other.waiting),
            held: self.held.wrapping_add(other.held),
            dead: self.dead.wrapping_add(other.dead),
            discarded: self.discarded.wrapping_add(other.discarded),
            skipped: self.skipped.wrapping_add(other.skipped),
            rows: self.rows.wrapping_add(other.rows),
            fixes: self.fixes.wrapping_add(other.fixes),
            stale_fixes: self.stale_fixes.wrapping_add(other.stale_fixes),
            unreadable_fixes: self.unreadable_fixes.wrapping_add(other.unreadable_fixes),
            decisions: self.decisions.wrapping_add(other.decisions),
        }
    }

    /// Whether every event is accounted for exactly once.
    #[must_use]
    pub fn add_up(&self) -> bool {
        let parts = [
            self.applied,
            self.duplicate,
            self.merged,
            self.waiting,
            self.dead,
            self.discarded,
            self.skipped,
        ];
        parts.into_iter().fold(0_u64, u64::saturating_add) == self.events
    }
}

// Arithmetic modulo 2^64: after a change of the number of partitions one partition holds all that
// was counted before, so the others may go below zero; only the sum over all of them means
// something.

/// One more.
pub(super) fn up(count: &mut u64) {
    *count = count.wrapping_add(1);
}

/// One less.
pub(super) fn down(count: &mut u64) {
    *count = count.wrapping_sub(1);
}
