//! Streaming lists over a consumer's state: memory for one page, whatever the number of entries.
//!
//! A list reads the state as it is when each page is fetched; entries that move while it is read
//! may be seen as they were or as they are.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Inner;
use crate::error::Result;
use crate::fold::key::KeyState;
use crate::fold::letter::DeadLetter;
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::source::Row;

const PAGE: usize = 512;

/// An event that came too early and waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingEvent {
    /// Its offset; the event itself is read from the log, with [`crate::Store::next_batch`].
    pub offset: Offset,
    /// Its id.
    pub id: String,
    /// Its key.
    pub key: String,
    /// Its version.
    pub version: i64,
    /// Delivery attempts so far.
    pub attempts: u32,
    /// Attempts that the budget counts (they start over at a redrive).
    pub spent: u32,
    /// Whether a known earlier event of its key holds it: then it spends no attempts.
    pub held: bool,
}

type Fetch<T> = Box<dyn FnMut() -> Result<Vec<T>> + Send>;

/// An iterator over a consumer's state, fetched in pages. After an error it ends.
pub struct List<T> {
    page: VecDeque<T>,
    fetch: Option<Fetch<T>>,
}

impl<T> std::fmt::Debug for List<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("List")
            .field("buffered", &self.page.len())
            .finish_non_exhaustive()
    }
}

impl<T> List<T> {
    fn new(fetch: impl FnMut() -> Result<Vec<T>> + Send + 'static) -> Self {
        Self {
            page: VecDeque::new(),
            fetch: Some(Box::new(fetch)),
        }
    }
}

impl<T> Iterator for List<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty() {
            match self.fetch.as_mut()?() {
                Ok(page) if page.is_empty() => self.fetch = None,
                Ok(page) => self.page.extend(page),
                Err(error) => {
                    self.fetch = None;
                    return Some(Err(error));
                }
            }
        }
        self.page.pop_front().map(Ok)
    }
}

impl<M: StateMachine> Inner<M> {
    pub(crate) fn letters(self: &Arc<Self>, from: Offset) -> List<DeadLetter> {
        let (inner, mut from) = (Arc::clone(self), from);
        List::new(move || {
            let page = inner.live().letters_after(from, PAGE)?;
            from = page.last().map_or(from, |letter| letter.offset.next());
            Ok(page)
        })
    }

    pub(crate) fn waiting(self: &Arc<Self>) -> List<WaitingEvent> {
        let (inner, mut from) = (Arc::clone(self), Offset::ZERO);
        List::new(move || {
            let live = inner.live();
            let mut found = Vec::new();
            // A page may turn out empty when all of it moved meanwhile; the list is not over then.
            while found.is_empty() {
                let page = live.waiting_after(from, PAGE)?;
                let Some((last, _)) = page.last() else { break };
                from = last.next();
                // A key's state is fetched once a page: it can hold very many waiting events.
                let mut states: HashMap<String, Option<KeyState>> = HashMap::new();
                for (offset, key) in page {
                    if !states.contains_key(&key) {
                        states.insert(key.clone(), live.key(&key)?);
                    }
                    let Some(Some(state)) = states.get(&key) else {
                        continue;
                    };
                    if let Some(w) = state.waiting.iter().find(|w| w.offset == offset) {
                        found.push(WaitingEvent {
                            offset,
                            id: w.id.clone(),
                            version: w.version,
                            attempts: w.attempts,
                            spent: w.spent,
                            held: state.is_held(w.version),
                            key,
                        });
                    }
                }
            }
            Ok(found)
        })
    }

    pub(crate) fn rows(self: &Arc<Self>) -> List<(String, Row<M::State>)> {
        let (inner, mut after) = (Arc::clone(self), None::<String>);
        List::new(move || {
            let mut found = Vec::new();
            while found.is_empty() {
                let page = inner.live().keys_after(after.as_deref(), PAGE)?;
                let Some((last, _)) = page.last() else { break };
                after = Some(last.clone());
                for (key, state) in page {
                    if let Some(row) = state.row {
                        let row = Row::decode(&key, &row)?;
                        found.push((key, row));
                    }
                }
            }
            Ok(found)
        })
    }
}
