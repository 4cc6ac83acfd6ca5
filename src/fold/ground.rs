//! [`Ground`], the one narrow seam through which the fold reads: state as it was, and events.
//!
//! A ground shows the keys of **one partition**, and nothing of the others: where several
//! partitions share a store, it filters. All lists come in ascending order and are shorter than
//! `limit` only when nothing follows.

use super::key::KeyState;
use super::letter::DeadLetter;
use crate::error::Result;
use crate::event::Event;
use crate::offset::Offset;

/// What lies under an [`Overlay`](super::overlay::Overlay).
pub(crate) trait Ground {
    /// What is known about `key`; `None` if nothing.
    fn key(&self, key: &str) -> Result<Option<KeyState>>;
    /// The dead letter, in any state, of the event at `offset`.
    fn letter(&self, offset: Offset) -> Result<Option<DeadLetter>>;
    /// Offset and key of the waiting events at or above `from`.
    fn waiting_after(&self, from: Offset, limit: usize) -> Result<Vec<(Offset, String)>>;
    /// The dead letters, in any state, at or above `from`.
    fn letters_after(&self, from: Offset, limit: usize) -> Result<Vec<DeadLetter>>;
    /// The keys above `after` (all for `None`), in the order of their bytes.
    fn keys_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, KeyState)>>;
    /// The event at `offset`, which is below the record being folded.
    fn event(&self, offset: Offset) -> Result<Event>;
}

/// A ground without any state, over a function that reads events: for folds that stay in memory.
#[cfg(test)]
pub(crate) struct EmptyGround<E> {
    events: E,
}

#[cfg(test)]
impl<E: Fn(Offset) -> Result<Event>> EmptyGround<E> {
    /// Nothing, over these events.
    pub(crate) const fn new(events: E) -> Self {
        Self { events }
    }
}

#[cfg(test)]
impl<E> std::fmt::Debug for EmptyGround<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmptyGround").finish_non_exhaustive()
    }
}

#[cfg(test)]
impl<E: Fn(Offset) -> Result<Event>> Ground for EmptyGround<E> {
    fn key(&self, _key: &str) -> Result<Option<KeyState>> {
        Ok(None)
    }

    fn letter(&self, _offset: Offset) -> Result<Option<DeadLetter>> {
        Ok(None)
    }

    fn waiting_after(&self, _from: Offset, _limit: usize) -> Result<Vec<(Offset, String)>> {
        Ok(Vec::new())
    }

    fn letters_after(&self, _from: Offset, _limit: usize) -> Result<Vec<DeadLetter>> {
        Ok(Vec::new())
    }

    fn keys_after(&self, _after: Option<&str>, _limit: usize) -> Result<Vec<(String, KeyState)>> {
        Ok(Vec::new())
    }

    fn event(&self, offset: Offset) -> Result<Event> {
        (self.events)(offset)
    }
}
