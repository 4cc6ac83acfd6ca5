//! Two projections of the same log, entry by entry: what a rebuild would change, and where a
//! verification that failed differs.

use std::cmp::Ordering;

use crate::consumer::projection::Projection;
use crate::error::Result;
use crate::fold::key::{KeyState, RawRow};
use crate::fold::letter::DeadLetter;
use crate::offset::Offset;

/// Entries read per step and side.
const PAGE: usize = 512;
/// Examples kept of each kind of difference.
const SHOWN: usize = 20;

/// One row that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowChange {
    /// Its key.
    pub key: String,
    /// Version and encoded state now; `None` is no row.
    pub before: Option<(i64, Option<Vec<u8>>)>,
    /// Version and encoded state in the fold of the log; `None` is no row.
    pub after: Option<(i64, Option<Vec<u8>>)>,
}

/// What differs between live state and a fold of the log, with the first examples of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Rows that only the fold of the log has.
    pub rows_added: u64,
    /// Rows that only the live state has.
    pub rows_removed: u64,
    /// Rows that both have, with another version, state or last mover.
    pub rows_changed: u64,
    /// Keys whose waiting events differ.
    pub waiting_changed: u64,
    /// Letters open in the live state and not in the fold of the log.
    pub letters_cured: u64,
    /// Letters open in the fold of the log and not in the live state.
    pub letters_new: u64,
    /// Letters that differ in anything else.
    pub letters_changed: u64,
    /// The first rows that differ.
    pub rows: Vec<RowChange>,
    /// The first offsets of letters that differ.
    pub letters: Vec<Offset>,
}

impl Difference {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One side of a merge: pages of a sorted list.
struct Side<T, K> {
    page: std::collections::VecDeque<T>,
    after: Option<K>,
    done: bool,
}

impl<T, K: Ord + Clone> Side<T, K> {
    fn new() -> Self {
        Self {
            page: std::collections::VecDeque::new(),
            after: None,
            done: false,
        }
    }

    fn peek(
        &mut self,
        key: impl Fn(&T) -> K,
        fetch: &dyn Fn(Option<&K>) -> Result<Vec<T>>,
    ) -> Result<Option<K>> {
        if self.page.is_empty() && !self.done {
            self.page.extend(fetch(self.after.as_ref())?);
            match self.page.back() {
                Some(last) => self.after = Some(key(last)),
                None => self.done = true,
            }
        }
        Ok(self.page.front().map(key))
    }
}

/// Walks two sorted lists side by side and hands each pair with equal keys, or a lone entry, on.
fn walk<T, K: Ord + Clone>(
    left: &dyn Fn(Option<&K>) -> Result<Vec<T>>,
    right: &dyn Fn(Option<&K>) -> Result<Vec<T>>,
    key: impl Fn(&T) -> K + Copy,
    mut pair: impl FnMut(Option<T>, Option<T>),
) -> Result<()> {
    let (mut a, mut b) = (Side::new(), Side::new());
    loop {
        let order = match (a.peek(key, left)?, b.peek(key, right)?) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.cmp(&b),
        };
        let from_a = order.is_le().then(|| a.page.pop_front()).flatten();
        let from_b = order.is_ge().then(|| b.page.pop_front()).flatten();
        pair(from_a, from_b);
    }
}

fn count(n: &mut u64) {
    *n = n.saturating_add(1);
}

impl Difference {
    /// Compares `live` with `folded`.
    pub(crate) fn between(live: &Projection, folded: &Projection) -> Result<Self> {
        let mut difference = Self::default();
        let keys = |side: &Projection, after: Option<&String>| {
            side.keys_after(after.map(String::as_str), PAGE)
        };
        walk(
            &|after| keys(live, after),
            &|after| keys(folded, after),
            |(key, _): &(String, KeyState)| key.clone(),
            |a, b| difference.key(a, b),
        )?;
        let letters = |side: &Projection, after: Option<&Offset>| {
            side.letters_after(after.map_or(Offset::ZERO, |after| after.next()), PAGE)
        };
        walk(
            &|after| letters(live, after),
            &|after| letters(folded, after),
            |letter: &DeadLetter| letter.offset,
            |a, b| difference.letter(a, b),
        )?;
        Ok(difference)
    }

    fn key(&mut self, live: Option<(String, KeyState)>, folded: Option<(String, KeyState)>) {
        let key = live
            .as_ref()
            .or(folded.as_ref())
            .map(|(key, _)| key.clone())
            .unwrap_or_default();
        let (live, folded) = (
            live.map(|l| l.1).unwrap_or_default(),
            folded.map(|f| f.1).unwrap_or_default(),
        );
        if live.waiting != folded.waiting {
            count(&mut self.waiting_changed);
        }
        match (&live.row, &folded.row) {
            (None, None) => return,
            (None, Some(_)) => count(&mut self.rows_added),
            (Some(_), None) => count(&mut self.rows_removed),
            (Some(a), Some(b)) if a == b => return,
            (Some(_), Some(_)) => count(&mut self.rows_changed),
        }
        if self.rows.len() < SHOWN {
            let side = |row: Option<RawRow>| row.map(|row| (row.version, row.state));
            self.rows.push(RowChange {
                key,
                before: side(live.row),
                after: side(folded.row),
            });
        }
    }

    fn letter(&mut self, live: Option<DeadLetter>, folded: Option<DeadLetter>) {
        if live == folded {
            return;
        }
        let open = |letter: &Option<DeadLetter>| letter.as_ref().is_some_and(DeadLetter::is_open);
        match (open(&live), open(&folded)) {
            (true, false) => count(&mut self.letters_cured),
            (false, true) => count(&mut self.letters_new),
            (true, true) | (false, false) => count(&mut self.letters_changed),
        }
        if let Some(letter) = live.or(folded).filter(|_| self.letters.len() < SHOWN) {
            self.letters.push(letter.offset);
        }
    }
}
