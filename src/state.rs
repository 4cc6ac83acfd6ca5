//! Where a consumer keeps its folded state: a [`StateStore`], and a [`StateBackend`] that opens
//! and removes them. sled is the real one; `fake::FakeStates` (feature `sim`) keeps or
//! loses whole flushes for crash tests.
//!
//! State is a cache of the log. Nothing here is trusted to be durable, current, or even readable:
//! an older state is caught up, a damaged one is set aside and folded again from the log.
//!
//! Invariants:
//! - One batch of [`StateStore::apply`] takes effect wholly or not at all, and one flush is one
//!   batch, so rows, waiting events, letters and checkpoint can never come apart by a crash
//!   (`kills_leave_a_sound_store_or_one_that_is_refused`).
//! - They can come apart by damage: sled skips damaged log entries in silence and may serve the
//!   newest checkpoint over rows that are not all its own (seen here: 2 of 150 single bit flips in
//!   a 19 MB database). Hence an audit after each open: only a store whose recounted digest
//!   equals the stored one is served
//!   (`the_audit_refuses_every_missing_entry_and_every_entry_from_an_older_flush`,
//!   `damaged_sled_files_end_in_a_known_state_or_a_state_error`).
//! - All keys of all kinds live in one ordered key space, told apart by their first byte:
//!   `k` rows, `l` letters, `m` meta, `w` waiting
//!   events; the module of each has its bytes.

use std::fmt::Debug;
use std::io;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

#[cfg(feature = "sim")]
pub mod fake;
pub(crate) mod generation;
#[cfg(test)]
mod generation_tests;
pub(crate) mod ground;
#[cfg(test)]
mod ground_tests;
mod guard;
pub(crate) mod letters;
pub(crate) mod meta;
pub(crate) mod rows;
pub(crate) mod scratch;
pub(crate) mod sled_store;
#[cfg(test)]
mod sled_tests;
pub(crate) mod value;
pub(crate) mod waiting;

/// One change of a batch: a key, and its new value or `None` to remove it.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// An ordered map of bytes to bytes that applies batches atomically.
///
/// A store may come back older after a crash, by whole batches, never by a part of one.
pub trait StateStore: Debug + Send + Sync {
    /// The value of `key`.
    ///
    /// # Errors
    ///
    /// Any [`StateError`]; the store is unchanged.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError>;

    /// At most `limit` entries whose key begins with `prefix` and is not below `from`, in
    /// ascending order of the keys' bytes. `from` is a whole key, prefix included; one below
    /// `prefix` means the beginning of `prefix`. Fewer than `limit` entries means that there are
    /// no more.
    ///
    /// # Errors
    ///
    /// Any [`StateError`]; the store is unchanged.
    fn scan(
        &self,
        from: Bound<&[u8]>,
        prefix: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry>, StateError>;

    /// Applies all changes, or none. They are visible when this returns, and not yet durable. Best
    /// given in ascending order of keys and by the thousand. Where a key comes twice, the last
    /// counts.
    ///
    /// # Errors
    ///
    /// Any [`StateError`]. How much of the batch took effect is unknown, also after reopening: the
    /// handle must not be used again, and the store only if an audit finds it sound.
    fn apply(&self, batch: &[Change]) -> Result<(), StateError>;

    /// Asks for all applied batches to be made durable. A hope, not a proof: no one may rely on it.
    ///
    /// # Errors
    ///
    /// Any [`StateError`]; as for [`StateStore::apply`].
    fn sync(&self) -> Result<(), StateError>;

    /// How many bytes the store takes on disk; 0 where that cannot be told.
    fn size_bytes(&self) -> u64;
}

/// Opens, lists and removes state stores. `dir` is relative to the store's directory and uses `/`
/// (`state/orders/3`).
pub trait StateBackend: Debug + Send + Sync {
    /// Opens the store in `dir`, which is created where there is none. Only one handle may be
    /// open at a time. Takes a bounded time, whatever the bytes in `dir`.
    ///
    /// # Errors
    ///
    /// [`StateError::Busy`] if another handle is still open after a short wait; else any.
    fn open(&self, dir: &str) -> Result<Arc<dyn StateStore>, StateError>;

    /// Removes the store in `dir` with all its files. None there is no error.
    ///
    /// # Errors
    ///
    /// [`StateError::Io`]; some files may be gone, calling again goes on.
    fn remove(&self, dir: &str) -> Result<(), StateError>;

    /// Moves the store in `dir` to `to`, unchanged, for a person to look at. The caller has made
    /// sure that nothing stands at `to`.
    ///
    /// # Errors
    ///
    /// [`StateError::Io`]; the store is where it was.
    fn set_aside(&self, dir: &str, to: &str) -> Result<(), StateError>;

    /// Whether there is anything at `dir`.
    ///
    /// # Errors
    ///
    /// [`StateError::Io`].
    fn exists(&self, dir: &str) -> Result<bool, StateError>;

    /// The names of the directories directly in `dir`, in no order; empty if there is no `dir`.
    ///
    /// # Errors
    ///
    /// [`StateError::Io`].
    fn list(&self, dir: &str) -> Result<Vec<String>, StateError>;

    /// A private copy of the store in `dir`, which is only read, and may be in use by a live
    /// writer: the copy may be older, or damaged. It is gone when dropped.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    fn copy(&self, dir: &str) -> Result<Arc<dyn StateStore>, StateError>;

    /// An empty store that is gone when dropped.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    fn scratch(&self) -> Result<Arc<dyn StateStore>, StateError>;
}

/// Why a state store did not do what it was asked. The log is never affected.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another handle has the store open, still after a bounded wait. Nothing was changed.
    #[error("{dir} is in use by another handle")]
    Busy {
        /// The store's directory.
        dir: String,
    },
    /// The operating system refused an operation.
    #[error("{op} failed on {file}: {source}")]
    Io {
        /// What was being done.
        op: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The bytes on disk are not what was written.
    #[error("damaged ({op}): {reason}")]
    Damaged {
        /// What was being done.
        op: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Written in a format that this build does not read.
    #[error("{what} has format {found}, this build reads {supported}")]
    Format {
        /// Which part.
        what: &'static str,
        /// The format found.
        found: u64,
        /// The format this build reads.
        supported: u64,
    },
    /// A value is longer than the state store takes.
    #[error("{what} does not fit the state store: {reason}")]
    TooLarge {
        /// Which part.
        what: &'static str,
        /// What the encoder said.
        reason: String,
    },
    /// The store's own code panicked.
    #[error("the state store panicked in {op}: {text}")]
    Panicked {
        /// What was being done.
        op: &'static str,
        /// The panic's text.
        text: String,
    },
    /// The store's own code did not come back in time. Its thread is left behind.
    #[error("the state store did not answer {op} within {waited:?}")]
    Hung {
        /// What was being done.
        op: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// An earlier failure ended the use of this handle.
    #[error("the state store is out of use since an earlier failure: {reason}")]
    Broken {
        /// The earlier failure.
        reason: String,
    },
}

/// `EMFILE` and `ENFILE`, which have no `ErrorKind` of their own.
const TOO_MANY_FILES: [i32; 2] = [24, 23];

impl StateError {
    /// Whether the state itself is lost, so that setting it aside and folding it anew helps.
    /// The others (in use, no space, no permission, no file descriptors, a value too large) would
    /// only happen again.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::TooLarge { .. } => false,
            Self::Io { source, .. } => {
                !matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull
                        | io::ErrorKind::QuotaExceeded
                        | io::ErrorKind::PermissionDenied
                        | io::ErrorKind::ReadOnlyFilesystem
                        | io::ErrorKind::OutOfMemory
                        | io::ErrorKind::Interrupted
                        | io::ErrorKind::WouldBlock
                ) && !source
                    .raw_os_error()
                    .is_some_and(|raw| TOO_MANY_FILES.contains(&raw))
            }
            Self::Damaged { .. }
            | Self::Format { .. }
            | Self::Panicked { .. }
            | Self::Hung { .. }
            | Self::Broken { .. } => true,
        }
    }

    /// This failure as the crate's error, about the state of `consumer`. What is damage becomes
    /// [`Error::State`]; what the system refused keeps its own variant.
    pub(crate) fn of(&self, consumer: &str) -> Error {
        match self {
            Self::Io { op, file, source } if !self.is_damage() => {
                let again = source.raw_os_error().map_or_else(
                    || io::Error::new(source.kind(), source.to_string()),
                    io::Error::from_raw_os_error,
                );
                Error::io(op, file.clone(), None, 0, again)
            }
            Self::Io { .. }
            | Self::Busy { .. }
            | Self::Damaged { .. }
            | Self::Format { .. }
            | Self::TooLarge { .. }
            | Self::Panicked { .. }
            | Self::Hung { .. }
            | Self::Broken { .. } => Error::State {
                consumer: consumer.to_owned(),
                reason: self.to_string(),
            },
        }
    }
}

/// The first key after all keys that begin with `prefix`; `None` if there is none (all 0xff).
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let (last, rest) = prefix.split_last()?;
    match last.checked_add(1) {
        Some(next) => {
            let mut end = rest.to_vec();
            end.push(next);
            Some(end)
        }
        None => prefix_end(rest),
    }
}

/// Where a scan of `prefix` from `from` begins.
pub(crate) fn scan_start<'a>(from: Bound<&'a [u8]>, prefix: &'a [u8]) -> Bound<&'a [u8]> {
    match from {
        Bound::Included(key) | Bound::Excluded(key) if key >= prefix => from,
        Bound::Included(_) | Bound::Excluded(_) | Bound::Unbounded => Bound::Included(prefix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_end_carries_over_ff_and_ends_at_all_ff() {
        assert_eq!(prefix_end(b"k"), Some(b"l".to_vec()));
        assert_eq!(prefix_end(b"ka\xff\xff"), Some(b"kb".to_vec()));
        assert_eq!(prefix_end(b"\xff\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }

    #[test]
    fn a_scan_never_begins_below_its_prefix() {
        let k: &[u8] = b"k";
        assert_eq!(scan_start(Bound::Unbounded, k), Bound::Included(k));
        let below: &[u8] = b"a";
        assert_eq!(scan_start(Bound::Excluded(below), k), Bound::Included(k));
        assert_eq!(scan_start(Bound::Excluded(k), k), Bound::Excluded(k));
        let within: &[u8] = b"kz";
        assert_eq!(
            scan_start(Bound::Included(within), k),
            Bound::Included(within)
        );
    }

    fn io_of(source: io::Error) -> StateError {
        StateError::Io {
            op: "write",
            file: PathBuf::from("db"),
            source: Arc::new(source),
        }
    }

    #[test]
    fn a_full_disk_is_no_damage_and_keeps_its_own_variant() {
        for (raw, damage) in [
            (28, false),
            (13, false),
            (24, false),
            (23, false),
            (5, true),
        ] {
            let error = io_of(io::Error::from_raw_os_error(raw));
            assert_eq!(error.is_damage(), damage, "errno {raw}");
        }
        let full = io_of(io::Error::from_raw_os_error(28)).of("orders");
        assert!(matches!(full, Error::NoSpace { .. }), "{full:?}");
        let files = io_of(io::Error::from_raw_os_error(24)).of("orders");
        assert!(matches!(files, Error::TooManyFiles { .. }), "{files:?}");
        let rot = io_of(io::Error::from_raw_os_error(5)).of("orders");
        assert!(matches!(rot, Error::State { .. }), "{rot:?}");
    }
}
