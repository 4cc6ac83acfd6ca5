//! [`Options`]: how a store is opened, or repaired.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits;
use crate::log::{Log, LogOptions};
use crate::repair::{Patient, Repair, RepairOptions};
use crate::state::StateBackend;
use crate::state::sled_store::SledBackend;
use crate::storage::Storage;
use crate::storage::disk::Disk;
use crate::store::Store;

/// How to open a [`Store`]. The defaults suit a service.
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    log: LogOptions,
    create: bool,
    storage: Option<Arc<dyn Storage>>,
    states: Option<Arc<dyn StateBackend>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log: LogOptions::default(),
            create: true,
            storage: None,
            states: None,
        }
    }
}

impl Options {
    /// A segment file is closed and the next one started when it would grow beyond this; a larger
    /// single batch gets a segment of its own. From 4 KiB to 2 GiB. Default: 64 MiB.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.log.segment_bytes = bytes;
        self
    }

    /// [`Store::next_batch`] returns at most this many bytes of records, but always one record if
    /// there is one. Default: 1 MiB.
    pub fn batch_bytes_max(mut self, bytes: usize) -> Self {
        self.log.batch_bytes_max = bytes;
        self
    }

    /// Opens without the right to write, beside a live writer if there is one. Names, sizes, bytes
    /// and times in the directory stay as they are; consumers keep their state in a temporary
    /// directory. Default: false.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.log.read_only = read_only;
        self
    }

    /// Turns a torn tail, which an open otherwise trims and reports, into an error. Default: false.
    pub fn strict(mut self, strict: bool) -> Self {
        self.log.strict = strict;
        self
    }

    /// Whether a missing store is created; otherwise it is [`Error::NoStore`]. Default: true.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Keeps log and markers in this storage instead of the file system: for crash tests of your
    /// service with a simulated disk. Needs [`state_backend`](Self::state_backend) as well.
    pub fn storage(mut self, storage: Arc<dyn Storage>) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Keeps consumers' state in this backend instead of sled.
    pub fn state_backend(mut self, backend: Arc<dyn StateBackend>) -> Self {
        self.states = Some(backend);
        self
    }

    /// Opens the store in `path`.
    ///
    /// When this returns, everything readable is durable: a torn tail is trimmed (with its bytes
    /// kept in `quarantine/`), and what was not proven to be on disk has been written and synced
    /// again. [`Store::recovery`] tells.
    ///
    /// # Errors
    ///
    /// All of them leave every file as it was, unless said otherwise:
    ///
    /// - [`Error::Locked`]: another process or handle writes.
    /// - [`Error::NoStore`]: nothing there, and creating was not wanted (or read-only).
    /// - [`Error::Corrupt`], [`Error::MissingSegment`], [`Error::LogShorterThanAnchor`]:
    ///   acknowledged records are damaged or missing.
    /// - [`Error::RepairUnfinished`]: only read-only; opening for writing finishes it.
    /// - [`Error::UnsupportedFormat`]: written by a newer foldlog.
    /// - [`Error::TornTail`]: only with [`strict`](Self::strict).
    /// - [`Error::NoSpace`]: recovery needs room to keep damaged bytes aside; free some, or open
    ///   read-only.
    /// - [`Error::Io`], [`Error::Permission`], [`Error::TooManyFiles`]: recovery may be half done;
    ///   opening again does the rest.
    /// - [`Error::Invalid`]: an option is out of its range.
    pub fn open(self, path: impl Into<PathBuf>) -> Result<Store> {
        let path = path.into();
        self.check()?;
        let (storage, states) = self.layers(&path);
        let may_create = self.create && !self.log.read_only;
        if !may_create && let Err(error) = storage.list("log") {
            // A store that cannot be looked into is not a missing one.
            let missing = [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind());
            return Err(if missing {
                Error::NoStore { path }
            } else {
                Error::io("list", storage.path("log"), None, 0, error)
            });
        }
        let read_only = self.log.read_only;
        let log = Log::open(Arc::clone(&storage), self.log)?;
        Ok(Store::new(log, storage, states, read_only, path))
    }

    /// Tells what opening the store in `path` refuses, and what would be lost by going on without
    /// it; with [`RepairOptions::accept_loss_from`] goes on without it. Storage, state backend and
    /// segment size are those of these options.
    ///
    /// A dry run (the default) writes nothing. An accepted loss is exactly what the dry run names:
    /// everything that goes is first copied to `quarantine/`, the log ends at the offset that was
    /// accepted, and a new epoch begins there, so that state and anchors from before count no
    /// more: each consumer's state is set aside and folded anew when it is next opened. An
    /// interrupted repair is finished by the next opening for writing.
    ///
    /// # Errors
    ///
    /// Nothing was changed, unless said otherwise:
    ///
    /// - [`Error::Locked`]: another process or handle writes.
    /// - [`Error::NoStore`]: nothing there.
    /// - [`Error::Invalid`]: the accepted offset is not the one that a dry run names, or an option
    ///   is out of its range.
    /// - [`Error::UnsupportedFormat`]: written by a newer foldlog; nothing of that is cut.
    /// - [`Error::NoSpace`], [`Error::Io`], [`Error::Permission`], [`Error::TooManyFiles`]: where
    ///   the loss counts as accepted already, the next opening for writing goes on.
    pub fn repair(self, path: impl Into<PathBuf>, how: RepairOptions) -> Result<Repair> {
        let path = path.into();
        self.check()?;
        let (storage, states) = self.layers(&path);
        Patient::new(storage, states, self.log).repair(how)
    }

    fn check(&self) -> Result<()> {
        if !(limits::SEGMENT_BYTES_MIN..=limits::SEGMENT_BYTES_MAX)
            .contains(&self.log.segment_bytes)
        {
            let (min, max) = (limits::SEGMENT_BYTES_MIN, limits::SEGMENT_BYTES_MAX);
            return Err(Error::Invalid {
                what: "segment_bytes",
                reason: format!("must be from {min} to {max}"),
            });
        }
        Ok(())
    }

    /// Where log and state are kept.
    fn layers(&self, path: &Path) -> (Arc<dyn Storage>, Arc<dyn StateBackend>) {
        let storage = match &self.storage {
            Some(storage) => Arc::clone(storage),
            None => Arc::new(Disk::open(path)),
        };
        let states = match &self.states {
            Some(states) => Arc::clone(states),
            None => Arc::new(SledBackend::new(Arc::clone(&storage))),
        };
        (storage, states)
    }
}
