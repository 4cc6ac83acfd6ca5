//! [`Desk`]: the one key being worked on, with everything a change of it must keep in step.
//!
//! Each change here updates the key's entry, the list of waiting events, the letters and the
//! counters together, so that no rule of the fold can forget one of them.

use super::counters::{Counters, down, up};
use super::digest::{self, Digest};
use super::ground::Ground;
use super::key::{KeyState, RawRow, Waiting};
use super::letter::{Class, DeadLetter, Death, Resolution, Resolved, cut_reason};
use super::overlay::{Books, Mark};
use crate::error::Result;
use crate::event::Event;
use crate::num::to_u64;
use crate::offset::Offset;

/// A key in the overlay.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: KeyState,
    /// What the key adds to the digest in the totals.
    pub(super) counted: Digest,
    /// Changed since the last flush.
    pub(super) dirty: bool,
    /// Used since the last eviction.
    pub(super) used: bool,
    /// Estimated size in memory.
    pub(super) bytes: u64,
}

/// About what an entry, a waiting event and an open letter take beside their texts and states.
const ENTRY_BYTES: u64 = 192;
const WAITING_BYTES: u64 = 96;
const OPEN_BYTES: u64 = 16;

impl Entry {
    pub(super) fn new(key: &str, state: KeyState) -> Self {
        let bytes = estimate(key, &state);
        Self {
            state,
            counted: Digest::default(),
            dirty: false,
            used: true,
            bytes,
        }
    }

    pub(super) fn state_if_any(&self) -> Option<&KeyState> {
        Some(&self.state).filter(|state| !state.is_empty())
    }
}

fn estimate(key: &str, state: &KeyState) -> u64 {
    let row = state.row.as_ref().and_then(|row| row.state.as_ref());
    let waiting = to_u64(state.waiting.len()).saturating_mul(WAITING_BYTES);
    let open = to_u64(state.open.len()).saturating_mul(OPEN_BYTES);
    ENTRY_BYTES
        .saturating_add(to_u64(key.len()))
        .saturating_add(row.map_or(0, |state| to_u64(state.len())))
        .saturating_add(waiting)
        .saturating_add(open)
}

/// One event that is being judged: where it is, and what is known of it whatever its content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name<'a> {
    pub(super) offset: Offset,
    pub(super) version: i64,
    pub(super) id: &'a str,
}

impl<'a> Name<'a> {
    pub(super) fn of(waiting: &'a Waiting) -> Self {
        Self {
            offset: waiting.offset,
            version: waiting.version,
            id: &waiting.id,
        }
    }
}

/// One key's state on the desk.
#[derive(Debug)]
pub(super) struct Desk<'a, G> {
    key: &'a str,
    entry: &'a mut Entry,
    books: &'a mut Books,
    ground: &'a G,
}

impl<'a, G: Ground> Desk<'a, G> {
    /// Lets `change` work on the key, then brings the derived numbers up to date.
    pub(super) fn run<R>(
        key: &'a str,
        entry: &'a mut Entry,
        books: &'a mut Books,
        ground: &'a G,
        change: impl FnOnce(&mut Desk<'_, G>) -> Result<R>,
    ) -> Result<R> {
        entry.used = true;
        let held = entry.state.held();
        let mut desk = Desk {
            key,
            entry,
            books,
            ground,
        };
        let result = change(&mut desk)?;
        let Desk { entry, books, .. } = desk;
        if entry.dirty {
            let counters = &mut books.totals.counters;
            counters.held = counters
                .held
                .wrapping_add(entry.state.held())
                .wrapping_sub(held);
            let bytes = estimate(key, &entry.state);
            books.bytes = adjust(books.bytes, entry.bytes, bytes);
            books.dirty_bytes = adjust(books.dirty_bytes, entry.bytes, bytes);
            entry.bytes = bytes;
        }
        Ok(result)
    }

    pub(super) const fn key(&self) -> &str {
        self.key
    }

    pub(super) const fn state(&self) -> &KeyState {
        &self.entry.state
    }

    pub(super) const fn counters(&mut self) -> &mut Counters {
        &mut self.books.totals.counters
    }

    pub(super) fn event(&self, offset: Offset) -> Result<Event> {
        self.ground.event(offset)
    }

    /// The row's encoded state, and a buffer to encode the next one into.
    pub(super) fn row_state(&mut self) -> (Option<&[u8]>, &mut Vec<u8>) {
        let row = self.entry.state.row.as_ref();
        let state = row.and_then(|row| row.state.as_deref());
        (state, &mut self.books.scratch)
    }

    /// The entry, to be changed: from here on the flush writes it.
    fn change(&mut self) -> &mut KeyState {
        if !self.entry.dirty {
            self.entry.dirty = true;
            self.entry.counted = digest::of_key(self.key, &self.entry.state);
            self.books.dirty_keys = self.books.dirty_keys.saturating_add(1);
            self.books.dirty_bytes = self.books.dirty_bytes.saturating_add(self.entry.bytes);
        }
        &mut self.entry.state
    }

    /// Moves the row to `version`, with the state that was encoded into the buffer of
    /// [`Desk::row_state`]. The row's own buffer is used again.
    pub(super) fn advance(&mut self, version: i64, at: Offset) {
        self.change();
        let row = &mut self.entry.state.row;
        if row.is_none() {
            up(&mut self.books.totals.counters.rows);
        }
        let row = row.get_or_insert_default();
        row.version = version;
        row.moved_at = at;
        let state = row.state.get_or_insert_default();
        state.clear();
        state.extend_from_slice(&self.books.scratch);
    }

    /// Sets or removes the row.
    pub(super) fn set_row(&mut self, row: Option<RawRow>) {
        let state = self.change();
        let before = state.row.is_some();
        let after = row.is_some();
        state.row = row;
        match (before, after) {
            (false, true) => up(&mut self.counters().rows),
            (true, false) => down(&mut self.counters().rows),
            (true, true) | (false, false) => {}
        }
    }

    /// The event waits from here on.
    pub(super) fn wait(&mut self, waiting: Waiting) {
        up(&mut self.counters().waiting);
        let key = self.key.into();
        let mark = match self.books.waiting.get(&waiting.offset) {
            Some(Mark::Gone | Mark::Again(_)) => Mark::Again(key),
            Some(Mark::New(_)) | None => Mark::New(key),
        };
        self.books.waiting.insert(waiting.offset, mark);
        self.change().add_waiting(waiting);
    }

    /// One more attempt of the waiting event at `index`; what it has spent now.
    pub(super) fn spend(&mut self, index: usize) -> u32 {
        let Some(waiting) = self.change().waiting.get_mut(index) else {
            return 0;
        };
        waiting.attempts = waiting.attempts.saturating_add(1);
        waiting.spent = waiting.spent.saturating_add(1);
        waiting.spent
    }

    /// Takes the waiting event at `index` out.
    pub(super) fn unwait(&mut self, index: usize) -> Option<Waiting> {
        let waiting = self.change().waiting.remove(index)?;
        let offset = waiting.offset;
        if let Some(Mark::New(_)) = self.books.waiting.get(&offset) {
            self.books.waiting.remove(&offset);
        } else {
            self.books.waiting.insert(offset, Mark::Gone);
        }
        down(&mut self.counters().waiting);
        Some(waiting)
    }

    /// The event becomes a dead letter, or dies once more. `attempts` counts all it ever had.
    pub(super) fn die(
        &mut self,
        name: Name<'_>,
        at: Offset,
        (class, reason): (Class, &str),
        attempts: u32,
    ) -> Result<()> {
        let death = Death {
            class,
            reason: cut_reason(reason),
            attempts,
            at,
            resolved: None,
        };
        // Only an event that was redriven has a letter already, and a first delivery cannot be.
        let known = if at == name.offset {
            None
        } else {
            self.letter(name.offset)?
        };
        let mut letter = known.unwrap_or_else(|| DeadLetter {
            offset: name.offset,
            id: name.id.to_owned(),
            key: self.key.to_owned(),
            version: name.version,
            history: Vec::with_capacity(1),
        });
        let before = Some(&letter).filter(|letter| !letter.history.is_empty());
        let before = before.map(digest::of_letter).unwrap_or_default();
        letter.history.push(death);
        self.change().add_open(name.version, name.offset);
        up(&mut self.counters().dead);
        self.put_letter(letter, before);
        Ok(())
    }

    /// Resolves an open letter of this key.
    pub(super) fn resolve(&mut self, mut letter: DeadLetter, how: Resolved, at: Offset) {
        let before = digest::of_letter(&letter);
        if let Some(death) = letter.history.last_mut() {
            death.resolved = Some(Resolution { how, at });
        }
        self.change().remove_open(letter.version, letter.offset);
        let counters = self.counters();
        down(&mut counters.dead);
        match how {
            Resolved::Redriven => {}
            Resolved::Discarded => up(&mut counters.discarded),
            Resolved::Skipped => up(&mut counters.skipped),
        }
        self.put_letter(letter, before);
    }

    fn letter(&self, offset: Offset) -> Result<Option<DeadLetter>> {
        match self.books.letters.get(&offset) {
            Some(letter) => Ok(Some(letter.clone())),
            None => self.ground.letter(offset),
        }
    }

    fn put_letter(&mut self, letter: DeadLetter, before: Digest) {
        let digest = &mut self.books.totals.digest;
        *digest = digest.minus(before).plus(digest::of_letter(&letter));
        self.books.letters.insert(letter.offset, letter);
    }
}

const fn adjust(total: u64, before: u64, after: u64) -> u64 {
    total.saturating_add(after).saturating_sub(before)
}
