//! A state store in memory that keeps or loses whole flushes, for crash tests.
//!
//! Each [`StateStore::apply`] is one flush. [`FakeStates::crash`] goes back to the state after some
//! earlier flush of every store, as sled may after a crash; handles that were open fail from then
//! on. Calls can be counted, and made to fail at any number.
//!
//! ```
//! use foldlog::state::StateBackend;
//! use foldlog::state::fake::{FakeStates, Keep};
//!
//! let states = FakeStates::new();
//! let store = states.open("state/orders/1")?;
//! store.apply(&[(b"a".to_vec(), Some(b"1".to_vec()))])?;
//! store.apply(&[(b"a".to_vec(), Some(b"2".to_vec()))])?;
//! states.crash(Keep::Lose(1));
//! assert!(store.get(b"a").is_err());
//! drop(store);
//! let store = states.open("state/orders/1")?;
//! assert_eq!(store.get(b"a")?, Some(b"1".to_vec()));
//! # Ok::<(), foldlog::state::StateError>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use twox_hash::XxHash3_128;

use crate::num::to_u64;
use crate::state::{Change, Entry, StateBackend, StateError, StateStore, prefix_end, scan_start};

/// What of every store's flushes is left after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All flushes: the process was killed, or was lucky.
    All,
    /// The flushes up to the last sync.
    Synced,
    /// All but the last so many flushes, synced or not (sled's sync proves nothing).
    Lose(usize),
}

/// A [`StateBackend`] in memory. Clones are handles on the same stores, so a clone kept by
/// the test is the disk that survives a crash.
#[derive(Clone, Default)]
pub struct FakeStates {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    stores: BTreeMap<String, Image>,
    /// Handles opened before the last crash have a lower number.
    life: u64,
    calls: u64,
    failure: Option<Failure>,
}

struct Failure {
    /// The number of the call.
    at: u64,
    for_ever: bool,
    error: StateError,
}

#[derive(Default)]
struct Image {
    /// All flushes since the store was created, in order.
    flushes: Vec<Vec<Change>>,
    /// How many of them were synced.
    synced: usize,
    /// What they come to.
    live: BTreeMap<Vec<u8>, Vec<u8>>,
    open: Weak<()>,
}

impl Image {
    fn keep(&mut self, keep: Keep) {
        let kept = match keep {
            Keep::All => self.flushes.len(),
            Keep::Synced => self.synced,
            Keep::Lose(lost) => self.flushes.len().saturating_sub(lost),
        };
        self.flushes.truncate(kept);
        self.synced = self.synced.min(kept);
        self.live.clear();
        for flush in &self.flushes {
            write(&mut self.live, flush);
        }
    }
}

fn write(live: &mut BTreeMap<Vec<u8>, Vec<u8>>, batch: &[Change]) {
    for (key, value) in batch {
        match value {
            Some(value) => live.insert(key.clone(), value.clone()),
            None => live.remove(key),
        };
    }
}

fn broken(reason: &str) -> StateError {
    StateError::Broken {
        reason: reason.to_owned(),
    }
}

impl Shared {
    /// Counts a call, and fails it if that was asked for.
    fn call(&mut self) -> Result<(), StateError> {
        let number = self.calls;
        self.calls = self.calls.saturating_add(1);
        match &self.failure {
            Some(failure) if failure.at == number || failure.for_ever && failure.at < number => {
                Err(failure.error.clone())
            }
            _ => Ok(()),
        }
    }
}

impl FakeStates {
    /// No stores.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes every store back to what `keep` leaves of it. Open handles fail from now on, and do
    /// not hinder the next open.
    pub fn crash(&self, keep: Keep) {
        let mut shared = self.lock();
        shared.life = shared.life.saturating_add(1);
        for image in shared.stores.values_mut() {
            image.keep(keep);
            image.open = Weak::new();
        }
    }

    /// A copy of all stores as they are now, with no handle open: a directory put aside to be
    /// opened later, as an older state of the same log or of another.
    #[must_use]
    pub fn copy(&self) -> Self {
        let shared = self.lock();
        let stores = shared
            .stores
            .iter()
            .map(|(dir, image)| {
                let copy = Image {
                    flushes: image.flushes.clone(),
                    synced: image.synced,
                    live: image.live.clone(),
                    open: Weak::new(),
                };
                (dir.clone(), copy)
            })
            .collect();
        Self {
            shared: Arc::new(Mutex::new(Shared {
                stores,
                ..Shared::default()
            })),
        }
    }

    /// How many calls there were to stores and to the backend, the failed ones too.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Makes the call with this number (counted from 0, see [`FakeStates::calls`]) fail with
    /// `error`, and with `for_ever` all after it. A failed call changes nothing. Replaces what
    /// was asked for before.
    pub fn fail_at(&self, number: u64, error: StateError, for_ever: bool) {
        self.lock().failure = Some(Failure {
            at: number,
            for_ever,
            error,
        });
    }

    /// No call fails any more.
    pub fn heal(&self) {
        self.lock().failure = None;
    }

    /// How many flushes the store in `dir` has.
    #[must_use]
    pub fn flushes(&self, dir: &str) -> usize {
        self.lock()
            .stores
            .get(dir)
            .map_or(0, |image| image.flushes.len())
    }

    /// Changes one entry of the store in `dir` behind its back, as damage would; `None` removes it.
    pub fn damage(&self, dir: &str, key: &[u8], value: Option<&[u8]>) {
        let mut shared = self.lock();
        if let Some(image) = shared.stores.get_mut(dir) {
            let change = vec![(key.to_vec(), value.map(<[u8]>::to_vec))];
            write(&mut image.live, &change);
            // Part of the last flush, so that no crash undoes it by itself.
            match image.flushes.last_mut() {
                Some(last) => last.extend(change),
                None => image.flushes.push(change),
            }
        }
    }

    /// A number that tells the entries of all stores from all others: what an open would find.
    #[must_use]
    pub fn image_hash(&self) -> u128 {
        let mut text = Vec::new();
        let mut add = |bytes: &[u8]| {
            text.extend_from_slice(&to_u64(bytes.len()).to_le_bytes());
            text.extend_from_slice(bytes);
        };
        for (dir, image) in &self.lock().stores {
            add(dir.as_bytes());
            add(&to_u64(image.live.len()).to_le_bytes());
            for (key, value) in &image.live {
                add(key);
                add(value);
            }
        }
        XxHash3_128::oneshot(&text)
    }

    /// Every entry of the store in `dir`, in order.
    #[must_use]
    pub fn entries(&self, dir: &str) -> Vec<Entry> {
        self.lock()
            .stores
            .get(dir)
            .map(|image| image.live.clone().into_iter().collect())
            .unwrap_or_default()
    }
}

impl fmt::Debug for FakeStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.lock();
        f.debug_struct("FakeStates")
            .field("stores", &shared.stores.keys().collect::<Vec<_>>())
            .field("calls", &shared.calls)
            .finish_non_exhaustive()
    }
}

impl StateBackend for FakeStates {
    fn open(&self, dir: &str) -> Result<Arc<dyn StateStore>, StateError> {
        let mut shared = self.lock();
        shared.call()?;
        let life = shared.life;
        let image = shared.stores.entry(dir.to_owned()).or_default();
        if image.open.strong_count() > 0 {
            return Err(StateError::Busy {
                dir: dir.to_owned(),
            });
        }
        let handle = Arc::new(());
        image.open = Arc::downgrade(&handle);
        Ok(Arc::new(FakeStore {
            states: self.clone(),
            dir: dir.to_owned(),
            life,
            _handle: handle,
        }))
    }

    fn remove(&self, dir: &str) -> Result<(), StateError> {
        let mut shared = self.lock();
        shared.call()?;
        shared.stores.remove(dir);
        Ok(())
    }

    fn set_aside(&self, dir: &str, to: &str) -> Result<(), StateError> {
        let mut shared = self.lock();
        shared.call()?;
        let mut image = shared
            .stores
            .remove(dir)
            .ok_or_else(|| broken("no such store"))?;
        image.open = Weak::new();
        shared.stores.insert(to.to_owned(), image);
        Ok(())
    }

    fn exists(&self, dir: &str) -> Result<bool, StateError> {
        let mut shared = self.lock();
        shared.call()?;
        Ok(shared.stores.contains_key(dir))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, StateError> {
        let within = format!("{dir}/");
        let mut shared = self.lock();
        shared.call()?;
        let mut names: Vec<String> = shared
            .stores
            .keys()
            .filter_map(|name| name.strip_prefix(&within))
            .filter_map(|rest| rest.split('/').next())
            .map(str::to_owned)
            .collect();
        names.dedup();
        Ok(names)
    }

    fn copy(&self, dir: &str) -> Result<Arc<dyn StateStore>, StateError> {
        self.lock().call()?;
        let copy = Self::copy(self);
        if !copy.lock().stores.contains_key(dir) {
            return Err(broken("no such store"));
        }
        copy.open(dir)
    }

    fn scratch(&self) -> Result<Arc<dyn StateStore>, StateError> {
        self.lock().call()?;
        Self::new().open("scratch")
    }
}

/// A handle on one store of [`FakeStates`].
#[derive(Debug)]
struct FakeStore {
    states: FakeStates,
    dir: String,
    life: u64,
    /// Held for as long as the handle lives: the store's lock.
    _handle: Arc<()>,
}

impl FakeStore {
    fn with<T>(&self, act: impl FnOnce(&mut Image) -> T) -> Result<T, StateError> {
        let mut shared = self.states.lock();
        shared.call()?;
        if shared.life != self.life {
            return Err(broken("crashed"));
        }
        shared
            .stores
            .get_mut(&self.dir)
            .map(act)
            .ok_or_else(|| broken("removed or set aside"))
    }
}

impl StateStore for FakeStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        self.with(|image| image.live.get(key).cloned())
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        prefix: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry>, StateError> {
        let start = scan_start(from, prefix).map(<[u8]>::to_vec);
        let end = prefix_end(prefix);
        self.with(|image| {
            image
                .live
                .range((start, Bound::Unbounded))
                .take_while(|(key, _)| end.as_ref().is_none_or(|end| *key < end))
                .take(limit)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        })
    }

    fn apply(&self, batch: &[Change]) -> Result<(), StateError> {
        self.with(|image| {
            write(&mut image.live, batch);
            image.flushes.push(batch.to_vec());
        })
    }

    fn sync(&self) -> Result<(), StateError> {
        self.with(|image| image.synced = image.flushes.len())
    }

    fn size_bytes(&self) -> u64 {
        self.with(|image| {
            image.live.iter().fold(0_u64, |sum, (key, value)| {
                sum.saturating_add(to_u64(key.len()))
                    .saturating_add(to_u64(value.len()))
            })
        })
        .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: &str = "state/c/1";

    fn put(store: &dyn StateStore, pairs: &[(&str, Option<&str>)]) {
        let batch: Vec<_> = pairs
            .iter()
            .map(|(key, value)| {
                (
                    key.as_bytes().to_vec(),
                    value.map(|value| value.as_bytes().to_vec()),
                )
            })
            .collect();
        store.apply(&batch).unwrap();
    }

    fn three_flushes(states: &FakeStates) {
        let store = states.open(DIR).unwrap();
        put(&*store, &[("a", Some("1")), ("b", Some("1"))]);
        store.sync().unwrap();
        put(&*store, &[("a", None), ("b", Some("2"))]);
        put(&*store, &[("b", Some("3")), ("c", Some("3"))]);
    }

    fn after(keep: Keep) -> Vec<(String, String)> {
        let states = FakeStates::new();
        three_flushes(&states);
        states.crash(keep);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let found = states.entries(DIR);
        let store = states.open(DIR).unwrap();
        assert_eq!(store.scan(Bound::Unbounded, b"", 99).unwrap(), found);
        found
            .into_iter()
            .map(|(key, value)| (text(key), text(value)))
            .collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_crash_keeps_or_loses_whole_flushes() {
        assert_eq!(after(Keep::All), pairs(&[("b", "3"), ("c", "3")]));
        assert_eq!(after(Keep::Lose(1)), pairs(&[("b", "2")]));
        assert_eq!(after(Keep::Synced), pairs(&[("a", "1"), ("b", "1")]));
        assert_eq!(after(Keep::Lose(3)), []);
        assert_eq!(after(Keep::Lose(9)), []);
    }

    #[test]
    fn a_handle_from_before_a_crash_is_dead_and_hinders_no_one() {
        let states = FakeStates::new();
        let store = states.open(DIR).unwrap();
        assert!(matches!(states.open(DIR), Err(StateError::Busy { .. })));
        states.crash(Keep::All);
        assert!(matches!(store.get(b"a"), Err(StateError::Broken { .. })));
        assert!(states.open(DIR).is_ok());
    }

    #[test]
    fn the_call_asked_for_fails_and_changes_nothing() {
        let states = FakeStates::new();
        let store = states.open(DIR).unwrap();
        let error = broken("planned");
        states.fail_at(2, error.clone(), false);
        put(&*store, &[("a", Some("1"))]);
        let batch = vec![(b"a".to_vec(), None)];
        assert!(store.apply(&batch).is_err());
        assert_eq!(store.get(b"a").unwrap(), Some(b"1".to_vec()));
        assert_eq!(states.flushes(DIR), 1);
        states.fail_at(states.calls(), error, true);
        assert!(store.apply(&batch).is_err());
        assert!(store.get(b"a").is_err());
        states.heal();
        assert!(store.get(b"a").is_ok());
    }

    #[test]
    fn every_call_of_the_backend_is_counted_and_can_fail() {
        let act = |states: &FakeStates, call: usize| match call {
            0 => states.open("state/d/1").map(drop),
            1 => states.remove("state/d/1"),
            2 => states.set_aside(DIR, "quarantine/x"),
            3 => states.exists(DIR).map(drop),
            4 => states.list("state/c").map(drop),
            5 => StateBackend::copy(states, DIR).map(drop),
            _ => states.scratch().map(drop),
        };
        for call in 0..7 {
            let states = FakeStates::new();
            three_flushes(&states);
            let (calls, image) = (states.calls(), states.image_hash());
            states.fail_at(calls, broken("planned"), false);
            assert!(act(&states, call).is_err(), "call {call}");
            assert_eq!(states.image_hash(), image, "call {call}");
            assert_eq!(states.calls(), calls.saturating_add(1), "call {call}");
            act(&states, call).unwrap();
        }
    }

    #[test]
    fn a_copy_goes_its_own_way() {
        let states = FakeStates::new();
        three_flushes(&states);
        let copy = states.copy();
        put(&*states.open(DIR).unwrap(), &[("b", Some("4"))]);
        assert_eq!(copy.entries(DIR)[0].1, b"3");
        states.set_aside(DIR, "quarantine/state-c-1").unwrap();
        assert_eq!(states.list("quarantine").unwrap(), ["state-c-1"]);
        assert!(!states.exists(DIR).unwrap());
        assert_eq!(copy.list("state/c").unwrap(), ["1"]);
    }
}
