//! [`Overlay`]: changed state in memory over a [`Ground`], with counters and digest kept up to
//! date.
//!
//! - A record changes the overlay as a whole or spoils it: after an error in the middle, nothing of
//!   it may be flushed, and it refuses everything until it is thrown away.
//! - The digest of a changed key is computed once per flush or question, not once per change.
//! - Keys that are clean stay as a cache of bounded size; what is changed stays until the flush.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::counters::Counters;
use super::desk::{Desk, Entry};
use super::digest::{self, Digest};
use super::ground::Ground;
use super::key::KeyState;
use super::letter::DeadLetter;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::num::to_u64;
use crate::offset::Offset;

/// Counters and digest of one partition's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) counters: Counters,
    pub(crate) digest: Digest,
}

/// Everything that changed since the last flush, coalesced and sorted.
#[derive(Debug)]
pub(crate) struct Changes<'a> {
    /// Keys in the order of their bytes; `None` removes the key.
    pub(crate) keys: Vec<(&'a str, Option<&'a KeyState>)>,
    /// Letters by offset. Letters are never removed.
    pub(crate) letters: Vec<&'a DeadLetter>,
    /// Waiting events by offset, with their key; `None` removes the entry.
    pub(crate) waiting: Vec<(Offset, Option<&'a str>)>,
}

/// What the overlay holds beside the keys: changed by one record at a time, through a [`Desk`].
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) letters: BTreeMap<Offset, DeadLetter>,
    pub(super) waiting: BTreeMap<Offset, Mark>,
    pub(super) totals: Totals,
    pub(super) dirty_keys: usize,
    /// Estimated size of all cached keys, and of the changed ones among them.
    pub(super) bytes: u64,
    pub(super) dirty_bytes: u64,
    /// Where a new state is encoded before it replaces the old one.
    pub(super) scratch: Vec<u8>,
}

/// Whether an event waits, as changed since the last flush.
#[derive(Debug)]
pub(super) enum Mark {
    /// It waits, and the ground does not know it.
    New(Box<str>),
    /// It waits, and what the ground has is to be replaced.
    Again(Box<str>),
    /// It waits no more, and the ground has it.
    Gone,
}

impl Mark {
    fn key(&self) -> Option<&str> {
        match self {
            Self::New(key) | Self::Again(key) => Some(key),
            Self::Gone => None,
        }
    }
}

/// Changed state over a ground.
#[derive(Debug)]
pub(crate) struct Overlay<G> {
    ground: G,
    keys: HashMap<Box<str>, Entry>,
    books: Books,
    clean_bytes_max: u64,
    spoiled: bool,
}

impl<G: Ground> Overlay<G> {
    /// Nothing changed over `ground`, whose totals are `totals`. At most about `clean_bytes_max`
    /// bytes of unchanged keys are kept as a cache.
    pub(crate) fn new(ground: G, totals: Totals, clean_bytes_max: u64) -> Self {
        Self {
            ground,
            keys: HashMap::new(),
            books: Books {
                totals,
                ..Books::default()
            },
            clean_bytes_max,
            spoiled: false,
        }
    }

    /// What lies under the overlay.
    #[cfg(test)]
    pub(crate) const fn ground(&self) -> &G {
        &self.ground
    }

    /// Counters so far. Unlike [`Overlay::totals`] this costs nothing.
    pub(crate) const fn counters(&self) -> &Counters {
        &self.books.totals.counters
    }

    pub(super) const fn counters_mut(&mut self) -> &mut Counters {
        &mut self.books.totals.counters
    }

    /// Counters and digest, including everything changed so far. Costs one hash per key changed
    /// since the last flush.
    pub(crate) fn totals(&mut self) -> Totals {
        let digest = &mut self.books.totals.digest;
        for (key, entry) in self.keys.iter_mut().filter(|(_, entry)| entry.dirty) {
            let now = digest::of_key(key, &entry.state);
            *digest = digest.minus(entry.counted).plus(now);
            entry.counted = now;
        }
        self.books.totals
    }

    /// How many keys, letters and waiting entries the next flush writes.
    pub(crate) fn dirty_len(&self) -> usize {
        self.books
            .dirty_keys
            .saturating_add(self.books.letters.len())
            .saturating_add(self.books.waiting.len())
    }

    /// About how many bytes of memory the changed keys take.
    pub(crate) const fn dirty_bytes(&self) -> u64 {
        self.books.dirty_bytes
    }

    /// Runs `change` on what is known about `key`: one look-up if the overlay knows it.
    pub(super) fn with<R>(
        &mut self,
        key: &str,
        change: impl FnOnce(&mut Desk<'_, G>) -> Result<R>,
    ) -> Result<R> {
        if let Some(entry) = self.keys.get_mut(key) {
            return Desk::run(key, entry, &mut self.books, &self.ground, change);
        }
        let state = self.ground.key(key)?.unwrap_or_default();
        self.evict();
        let entry = self
            .keys
            .entry(key.into())
            .or_insert_with(|| Entry::new(key, state));
        self.books.bytes = self.books.bytes.saturating_add(entry.bytes);
        Desk::run(key, entry, &mut self.books, &self.ground, change)
    }

    /// Starts the changes of one record.
    pub(super) fn begin(&mut self, consumer: &str) -> Result<()> {
        if self.spoiled {
            return Err(Error::State {
                consumer: consumer.to_owned(),
                reason: "an earlier record was folded only in part; open the consumer again".into(),
            });
        }
        self.spoiled = true;
        Ok(())
    }

    /// Ends them. Without this call the overlay is spoiled.
    pub(super) const fn commit(&mut self) {
        self.spoiled = false;
    }

    /// Forgets all that is not in the ground, whose totals are `totals`.
    pub(crate) fn start_over(&mut self, totals: Totals) {
        self.keys.clear();
        self.books = Books {
            totals,
            ..Books::default()
        };
        self.spoiled = false;
    }

    /// Whether an error left a record half folded: nothing may be flushed, start over from the
    /// ground.
    #[cfg(test)]
    pub(crate) const fn is_spoiled(&self) -> bool {
        self.spoiled
    }

    /// Everything a flush has to write. It is the caller's to call [`Overlay::flushed`] once the
    /// ground has it all, before anything else is folded.
    pub(crate) fn changes(&self) -> Changes<'_> {
        let mut keys: Vec<_> = self
            .keys
            .iter()
            .filter(|(_, entry)| entry.dirty)
            .map(|(key, entry)| (&**key, entry.state_if_any()))
            .collect();
        keys.sort_unstable_by_key(|(key, _)| *key);
        Changes {
            keys,
            letters: self.books.letters.values().collect(),
            waiting: self
                .books
                .waiting
                .iter()
                .map(|(offset, mark)| (*offset, mark.key()))
                .collect(),
        }
    }

    /// The ground now holds all changes: they are clean from here on.
    pub(crate) fn flushed(&mut self) {
        for entry in self.keys.values_mut() {
            entry.dirty = false;
        }
        self.books.letters.clear();
        self.books.waiting.clear();
        self.books.dirty_keys = 0;
        self.books.dirty_bytes = 0;
        self.evict();
    }

    /// Keeps the clean entries below their bound: first the ones not used since the last time go,
    /// then all. What is left is at most half the bound, so this costs little per key loaded.
    fn evict(&mut self) {
        let books = &mut self.books;
        let clean = |books: &Books| books.bytes.saturating_sub(books.dirty_bytes);
        if clean(books) <= self.clean_bytes_max {
            return;
        }
        let mut forget = |keep_used: bool| {
            self.keys.retain(|_, entry| {
                let keep = entry.dirty || (keep_used && entry.used);
                entry.used = false;
                if !keep {
                    books.bytes = books.bytes.saturating_sub(entry.bytes);
                }
                keep
            });
            clean(books)
        };
        if forget(true) > self.clean_bytes_max / 2 {
            forget(false);
        }
    }

    fn dirty_keys_after(&self, after: Option<&str>) -> Vec<(&str, &KeyState)> {
        let mut keys: Vec<_> = self
            .keys
            .iter()
            .filter(|(key, entry)| entry.dirty && after.is_none_or(|after| &***key > after))
            .map(|(key, entry)| (&**key, &entry.state))
            .collect();
        keys.sort_unstable_by_key(|(key, _)| *key);
        keys
    }
}

/// One page of the merge of two ascending lists: `under` is a page of `limit` of the ground,
/// `over` replaces (`Some`) or removes (`None`) entries of it and adds its own. Gives the merged
/// page and where to go on, if the ground may hold more.
fn merge_page<K: Ord + Clone, V>(
    under: Vec<(K, V)>,
    over: impl Iterator<Item = (K, Option<V>)>,
    limit: usize,
) -> (Vec<(K, V)>, Option<K>) {
    let last = under.last().map(|(key, _)| key.clone());
    let more = last.filter(|_| under.len() >= limit);
    let mut merged: BTreeMap<K, V> = under.into_iter().collect();
    let mut added = 0_usize;
    for (key, value) in over {
        // Beyond the page nothing is known of the ground, and no more than `limit` is asked for.
        if more.as_ref().is_some_and(|last| key > *last) || added >= limit {
            break;
        }
        match value {
            None => drop(merged.remove(&key)),
            Some(value) => {
                if merged.insert(key, value).is_none() {
                    added = added.saturating_add(1);
                }
            }
        }
    }
    (merged.into_iter().collect(), more)
}

impl<G: Ground> Ground for Overlay<G> {
    fn key(&self, key: &str) -> Result<Option<KeyState>> {
        match self.keys.get(key) {
            Some(entry) => Ok(entry.state_if_any().cloned()),
            None => self.ground.key(key),
        }
    }

    fn letter(&self, offset: Offset) -> Result<Option<DeadLetter>> {
        match self.books.letters.get(&offset) {
            Some(letter) => Ok(Some(letter.clone())),
            None => self.ground.letter(offset),
        }
    }

    fn waiting_after(&self, from: Offset, limit: usize) -> Result<Vec<(Offset, String)>> {
        let mut found = Vec::new();
        let mut cursor = from;
        while found.len() < limit {
            let under = self.ground.waiting_after(cursor, limit)?;
            let over = self.books.waiting.range(cursor..);
            let over = over.map(|(offset, mark)| (*offset, mark.key().map(str::to_owned)));
            let (page, more) = merge_page(under, over, limit);
            found.extend(page);
            match more {
                Some(last) => cursor = last.next(),
                None => break,
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    fn letters_after(&self, from: Offset, limit: usize) -> Result<Vec<DeadLetter>> {
        let mut found = Vec::new();
        let mut cursor = from;
        while found.len() < limit {
            let under = self.ground.letters_after(cursor, limit)?;
            let under = under.into_iter().map(|letter| (letter.offset, letter));
            let over = self.books.letters.range(cursor..);
            let over = over.map(|(offset, letter)| (*offset, Some(letter.clone())));
            let (page, more) = merge_page(under.collect(), over, limit);
            found.extend(page.into_iter().map(|(_, letter)| letter));
            match more {
                Some(last) => cursor = last.next(),
                None => break,
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    fn keys_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, KeyState)>> {
        let mut found = Vec::new();
        let mut cursor = after.map(str::to_owned);
        while found.len() < limit {
            let under = self.ground.keys_after(cursor.as_deref(), limit)?;
            let over = self.dirty_keys_after(cursor.as_deref());
            let over = over.into_iter().map(|(key, state)| {
                let state = Some(state).filter(|state| !state.is_empty());
                (key.to_owned(), state.cloned())
            });
            let (page, more) = merge_page(under, over, limit);
            found.extend(page);
            match more {
                Some(last) => cursor = Some(last),
                None => break,
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    fn event(&self, offset: Offset) -> Result<Event> {
        self.ground.event(offset)
    }
}

/// The totals of the state under `ground`, from scratch: what the kept ones must be equal to.
/// `events` and the other counts of what has passed cannot be seen there and are left at 0.
pub(crate) fn totals_from_scratch(ground: &impl Ground, page: usize) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut after: Option<String> = None;
    loop {
        let keys = ground.keys_after(after.as_deref(), page)?;
        for (key, state) in &keys {
            totals.digest = totals.digest.plus(digest::of_key(key, state));
            let counters = &mut totals.counters;
            let waiting = to_u64(state.waiting.len());
            counters.rows = counters.rows.saturating_add(state.row.is_some().into());
            counters.waiting = counters.waiting.saturating_add(waiting);
            counters.held = counters.held.saturating_add(state.held());
            counters.dead = counters.dead.saturating_add(to_u64(state.open.len()));
        }
        match keys.into_iter().next_back() {
            Some((last, _)) => after = Some(last),
            None => break,
        }
    }
    let mut from = Offset::ZERO;
    loop {
        let letters = ground.letters_after(from, page)?;
        for letter in &letters {
            totals.digest = totals.digest.plus(digest::of_letter(letter));
        }
        match letters.last() {
            Some(last) => from = last.offset.next(),
            None => return Ok(totals),
        }
    }
}
