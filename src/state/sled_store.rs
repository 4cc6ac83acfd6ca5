//! [`StateStore`] over sled 0.34.7: the one place that calls sled.
//!
//! What sled does to its caller, and what is done about it here:
//! - It panics on damaged files, in our thread or in one of its own. Every call runs under
//!   `catch_unwind`; after a panic or error in a write the handle is out of use (a batch that did
//!   not end is *not* undone by sled: its entries may survive without the rest).
//! - It can wait for ever: when its pool threads have died of panics, an open waits for an answer
//!   that no one gives. Open, apply, sync and close therefore run in a helper thread, and the
//!   caller stops waiting after a generous time; a helper that hangs is left behind. The reads
//!   run in the caller's thread, because a thread hop would cost more than the read: sled bounds
//!   their loops (a million steps, then a panic), and the one lock that they can wait for (one per
//!   process, held while a batch is applied) is shadowed by a gate of our own, which is waited for
//!   with a bound ([`guard`](crate::state::guard)).
//! - It releases its file lock late: an open that finds the lock taken tries again for a while;
//!   every other error is answered at once.
//! - Its `flush` does not sync. [`StateStore::sync`] syncs the files itself after it, so that a
//!   rebuild is not lost to a power cut; still no one relies on it.
//! - Its background flusher only logs failures: it is off.
//! - An unfinished snapshot (`snap.<16 hex>.generating`) makes every open fail. It is answered as
//!   damage at once; the state is set aside whole, nothing in it is deleted.
//!
//! Cost, measured in a release build on two shared cores, rows of 12-byte keys and 60-byte values:
//! `apply_batch` 12.5 µs a row in batches of 1,000 and 7.6 µs in batches of 10,000 into a
//! fresh tree; 10.2 and 7.1 µs for random updates of 100,000 rows; a transaction over three trees
//! 31.0 and 21.6 µs. Hence one tree. (sled's batch is a hash map: the order inside a batch is lost,
//! what counts is that a batch covers a narrow range of keys.) 500,000 rows take 208 MB; open 0.3 s
//! without a snapshot, a bare scan 0.6 s. With six busy processes beside: open 0.7 s, sync 0.4 s,
//! close 0.4 s, audit 2.1 s, a random `get` 6 µs, a hot one 1.2 µs.
//!
//! Not here: which generation is live ([`crate::state::generation`]), what the bytes mean.

use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::state::guard::{bounded, close_gate, read_guarded, translate};
use crate::state::{
    Change, Entry, StateBackend, StateError, StateStore, prefix_end, scan_start, scratch,
};
use crate::storage::{OpenMode, Storage};

/// sled's page cache. Small on purpose: what is hot lives in the overlay above.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// How long an open waits for the lock of a handle that was just dropped. Its threads need
/// milliseconds; under heavy load, more.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// The first pause between two tries for the lock; doubled up to [`LOCK_PAUSE_MAX`].
const LOCK_PAUSE: Duration = Duration::from_millis(1);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often an open is tried again on an error that looks like the lock while no one holds it.
const UNLOCKED_TRIES: u32 = 3;
/// How long one call may take before it counts as hung: far above what a busy disk needs
/// for a batch, short enough that a service does not stand still for ever.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// An open reads the whole of the files at worst (measured: 1.4 ms per MB), so a big
/// database gets more time: one second more for each of this many bytes.
const OPEN_BYTES_PER_SECOND: u64 = 8 * 1024 * 1024;
/// Opens sled databases below the store's directory.
pub(crate) struct SledBackend {
    storage: Arc<dyn Storage>,
    pub(super) call_timeout: Duration,
    pub(super) lock_wait: Duration,
}

impl SledBackend {
    /// A backend in the directory of `storage`, which must be on a real disk: sled opens its files
    /// itself.
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self {
            storage,
            call_timeout: CALL_TIMEOUT,
            lock_wait: LOCK_WAIT,
        }
    }

    fn fail(&self, op: &'static str, name: &str, source: io::Error) -> StateError {
        StateError::Io {
            op,
            file: self.storage.path(name),
            source: Arc::new(source),
        }
    }

    /// Sum of the files directly in `dir` (sled's `db` is nearly all of it).
    fn bytes_in(&self, dir: &str) -> u64 {
        self.storage
            .list(dir)
            .unwrap_or_default()
            .iter()
            .fold(0, |sum, entry| sum.saturating_add(entry.len))
    }

    fn open_timeout(&self, dir: &str) -> Duration {
        let extra = self
            .bytes_in(dir)
            .checked_div(OPEN_BYTES_PER_SECOND)
            .unwrap_or(0);
        self.call_timeout.saturating_add(Duration::from_secs(extra))
    }

    /// Damage that is known to fail every open, told before sled is asked.
    fn refuse_stray_snapshot(&self, dir: &str) -> Result<(), StateError> {
        let entries = match self.storage.list(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.fail("list", dir, error)),
        };
        match entries
            .iter()
            .find(|entry| entry.name.starts_with("snap.") && entry.name.ends_with(".generating"))
        {
            Some(stray) => Err(StateError::Damaged {
                op: "open",
                reason: format!("unfinished snapshot {}", stray.name),
            }),
            None => Ok(()),
        }
    }

    fn open_once(&self, dir: &str) -> Result<sled::Db, StateError> {
        let path = self.storage.path(dir);
        let config = sled::Config::default()
            .path(&path)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None);
        bounded("open", self.open_timeout(dir), move || {
            config.open().map_err(|error| translate("open", error))
        })
    }

    /// Whether someone holds the lock on sled's file. Asked of the file itself, because the text of
    /// sled's error is no interface. Takes and releases the lock if it is free.
    #[expect(
        clippy::disallowed_methods,
        reason = "sled's file, not the log's; Storage knows no lock but the writer's"
    )]
    fn is_locked(&self, dir: &str) -> bool {
        let file = self.storage.path(&format!("{dir}/db"));
        std::fs::File::open(file)
            .is_ok_and(|file| matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)))
    }

    /// Opens the database in `dir`, waiting a while for the lock of a handle just dropped.
    pub(super) fn open_store(&self, dir: &str) -> Result<SledStore, StateError> {
        self.refuse_stray_snapshot(dir)?;
        self.storage
            .create_dir(dir)
            .map_err(|error| self.fail("create directory", dir, error))?;
        let began = Instant::now();
        let mut pause = LOCK_PAUSE;
        let mut unlocked_tries = UNLOCKED_TRIES;
        let db = loop {
            let error = match self.open_once(dir) {
                Ok(db) => break db,
                Err(error) => error,
            };
            let locked = may_be_the_lock(&error) && self.is_locked(dir);
            if locked && began.elapsed() >= self.lock_wait {
                return Err(StateError::Busy {
                    dir: dir.to_owned(),
                });
            }
            if !locked {
                // The lock may have been released between the two looks.
                unlocked_tries = unlocked_tries.saturating_sub(1);
                if !may_be_the_lock(&error) || unlocked_tries == 0 {
                    tracing::warn!(dir, %error, "state store did not open");
                    return Err(error);
                }
            }
            thread::sleep(pause);
            pause = pause.saturating_mul(2).min(LOCK_PAUSE_MAX);
        };
        Ok(SledStore {
            db: Some(db),
            dir: dir.to_owned(),
            storage: Arc::clone(&self.storage),
            timeout: self.call_timeout,
            broken: Mutex::new(None),
        })
    }
}

impl fmt::Debug for SledBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledBackend")
            .field("root", &self.storage.path(""))
            .finish_non_exhaustive()
    }
}

impl StateBackend for SledBackend {
    fn open(&self, dir: &str) -> Result<Arc<dyn StateStore>, StateError> {
        self.open_store(dir).map(|store| {
            let store: Arc<dyn StateStore> = Arc::new(store);
            store
        })
    }

    fn remove(&self, dir: &str) -> Result<(), StateError> {
        match self.storage.remove_dir(dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.fail("remove directory", dir, error)),
        }
        let parent = parent_of(dir);
        self.storage
            .sync_dir(parent)
            .map_err(|error| self.fail("sync directory", parent, error))
    }

    fn set_aside(&self, dir: &str, to: &str) -> Result<(), StateError> {
        let target = parent_of(to);
        self.storage
            .create_dir(target)
            .map_err(|error| self.fail("create directory", target, error))?;
        self.storage
            .rename(dir, to)
            .map_err(|error| self.fail("rename", dir, error))?;
        for parent in [target, parent_of(dir)] {
            self.storage
                .sync_dir(parent)
                .map_err(|error| self.fail("sync directory", parent, error))?;
        }
        Ok(())
    }

    fn exists(&self, dir: &str) -> Result<bool, StateError> {
        match self.storage.list(dir) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(true),
            Err(error) => Err(self.fail("list", dir, error)),
        }
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, StateError> {
        match self.storage.list(dir) {
            Ok(entries) => Ok(entries
                .into_iter()
                .filter(|entry| entry.is_dir)
                .map(|entry| entry.name)
                .collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.fail("list", dir, error)),
        }
    }

    fn copy(&self, dir: &str) -> Result<Arc<dyn StateStore>, StateError> {
        scratch::copy(&*self.storage, dir)
    }

    fn scratch(&self) -> Result<Arc<dyn StateStore>, StateError> {
        scratch::empty()
    }
}

/// One open sled database.
pub(crate) struct SledStore {
    /// Taken when the store is dropped, never before.
    db: Option<sled::Db>,
    dir: String,
    storage: Arc<dyn Storage>,
    timeout: Duration,
    /// Why the handle is out of use. Set once, by the first failure that leaves it in doubt.
    broken: Mutex<Option<String>>,
}

impl SledStore {
    fn db(&self) -> Result<&sled::Db, StateError> {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = broken.as_ref() {
            return Err(StateError::Broken {
                reason: reason.clone(),
            });
        }
        self.db.as_ref().ok_or_else(|| StateError::Broken {
            reason: "closed".to_owned(),
        })
    }

    /// Ends the use of this handle and passes the error on.
    pub(super) fn break_off<T>(&self, result: Result<T, StateError>) -> Result<T, StateError> {
        result.inspect_err(|error| {
            tracing::error!(dir = %self.dir, %error, "state store is out of use");
            let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
            broken.get_or_insert_with(|| error.to_string());
        })
    }

    fn sync_files(&self) -> Result<(), StateError> {
        let fail = |op, name: &str, source| StateError::Io {
            op,
            file: self.storage.path(name),
            source: Arc::new(source),
        };
        let db = format!("{}/db", self.dir);
        self.storage
            .open(&db, OpenMode::Write)
            .and_then(|file| file.sync())
            .map_err(|error| fail("sync", &db, error))?;
        self.storage
            .sync_dir(&self.dir)
            .map_err(|error| fail("sync directory", &self.dir, error))
    }
}

impl fmt::Debug for SledStore {
    /// Without the content: sled's own form prints every row.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledStore")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl StateStore for SledStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        let db = self.db()?;
        self.break_off(read_guarded("get", self.timeout, || {
            db.get(key).map(|value| value.map(|value| value.to_vec()))
        }))
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        prefix: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry>, StateError> {
        let db = self.db()?;
        let start = scan_start(from, prefix).map(<[u8]>::to_vec);
        let end = prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        // Collecting into a `Result` ends at the first error; sled's iterator would give the
        // same error for ever.
        self.break_off(read_guarded("scan", self.timeout, || {
            db.range((start, end))
                .take(limit)
                .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
                .collect()
        }))
    }

    fn apply(&self, batch: &[Change]) -> Result<(), StateError> {
        let db = self.db()?.clone();
        let mut writes = sled::Batch::default();
        for (key, value) in batch {
            match value {
                Some(value) => writes.insert(key.as_slice(), value.as_slice()),
                None => writes.remove(key.as_slice()),
            }
        }
        self.break_off(bounded("apply", self.timeout, move || {
            let _gate = close_gate();
            db.apply_batch(writes)
                .map_err(|error| translate("apply", error))
        }))
    }

    fn sync(&self) -> Result<(), StateError> {
        let db = self.db()?.clone();
        self.break_off(bounded("flush", self.timeout, move || {
            db.flush()
                .map(drop)
                .map_err(|error| translate("flush", error))
        }))?;
        self.sync_files()
    }

    fn size_bytes(&self) -> u64 {
        self.db()
            .and_then(|db| read_guarded("size", self.timeout, || db.size_on_disk()))
            .unwrap_or(0)
    }
}

impl Drop for SledStore {
    /// Waits until sled has written what it holds and let go of its lock, so that the next
    /// open finds the lock free.
    fn drop(&mut self) {
        let Some(db) = self.db.take() else { return };
        let closed = bounded("close", self.timeout, move || {
            drop(db);
            Ok(())
        });
        if let Err(error) = closed {
            tracing::warn!(dir = %self.dir, %error, "state store did not close cleanly");
        }
    }
}

fn parent_of(dir: &str) -> &str {
    dir.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// sled reports a taken lock as an I/O error of no particular kind.
fn may_be_the_lock(error: &StateError) -> bool {
    matches!(error, StateError::Io { source, .. } if source.kind() == io::ErrorKind::Other)
}
