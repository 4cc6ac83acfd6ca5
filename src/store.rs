//! [`Store`]: the face of foldlog. One directory, one writer, any number of consumers.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::consumer::open::Registration;
use crate::consumer::options::ConsumerOptions;
use crate::consumer::{Consumer, lock};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::limits;
use crate::log::recovery::Recovery;
use crate::log::{Batch, Ingested, Log, LogOptions, SegmentInfo};
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::repair::{Patient, Repair, RepairOptions};
use crate::state::StateBackend;
use crate::state::sled_store::SledBackend;
use crate::storage::Storage;
use crate::storage::disk::Disk;
use crate::verify::{LogVerified, verify_log};

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
            return Err(match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => Error::NoStore { path },
                _ => Error::io("list", storage.path("log"), None, 0, error),
            });
        }
        let read_only = self.log.read_only;
        let log = Log::open(Arc::clone(&storage), self.log)?;
        let consumers = Arc::new(Mutex::new(HashSet::new()));
        let inner = StoreInner {
            log,
            storage,
            states,
            read_only,
            path,
            consumers,
        };
        Ok(Store {
            inner: Arc::new(inner),
        })
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

#[derive(Debug)]
struct StoreInner {
    log: Log,
    storage: Arc<dyn Storage>,
    states: Arc<dyn StateBackend>,
    read_only: bool,
    path: PathBuf,
    consumers: Arc<Mutex<HashSet<String>>>,
}

/// An event store in one directory: a durable, append-only log and the consumers that fold it.
///
/// A cheap handle (`Clone + Send + Sync`); the store closes when the last one, and the last
/// consumer, is dropped.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<StoreInner>,
}

impl Store {
    /// Opens the store in `path` with default [`Options`], creating it if there is none.
    ///
    /// # Errors
    ///
    /// As [`Options::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Options::default().open(path)
    }

    /// Tells what is wrong with the store in `path` and what going on without it would lose, or,
    /// if that is accepted, goes on without it; with default [`Options`].
    ///
    /// # Errors
    ///
    /// As [`Options::repair`].
    pub fn repair(path: impl Into<PathBuf>, how: RepairOptions) -> Result<Repair> {
        Options::default().repair(path, how)
    }

    /// Options to open a store with.
    pub fn options() -> Options {
        Options::default()
    }

    /// The store's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Appends one event and returns its offset.
    ///
    /// When this returns, the event is on disk and visible to readers. Concurrent callers share
    /// one sync.
    ///
    /// # Errors
    ///
    /// - [`Error::Empty`], [`Error::TooLarge`], [`Error::ReadOnly`], [`Error::Overflow`]: nothing
    ///   was written.
    /// - [`Error::NoSpace`], [`Error::Io`], [`Error::TooManyFiles`], [`Error::Permission`]: nothing
    ///   was stored; the handle stays usable.
    /// - [`Error::OutcomeUnknown`]: after reopening, the event is wholly there or wholly absent;
    ///   this handle refuses further appends.
    /// - [`Error::Stopped`], [`Error::Closed`]: nothing was stored; reopen.
    ///
    /// # Examples
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use foldlog::{Event, Store};
    ///
    /// let store = Store::open(dir.path())?;
    /// let offset = store.append(&Event::new("e-1", "order-1", 1, "reserve"))?;
    /// assert!(store.durable_end() > offset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append(&self, event: &Event) -> Result<Offset> {
        self.inner
            .log
            .append(std::slice::from_ref(event))
            .map(|range| range.start)
    }

    /// Appends events as one atomic batch: after any crash all of them are there or none. Durable
    /// when it returns.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); [`Error::TooLarge`] also for a batch of more than
    /// [`limits::FRAME_RECORDS_MAX`] events or [`limits::FRAME_BYTES_MAX`] bytes.
    pub fn append_batch(&self, events: &[Event]) -> Result<Range<Offset>> {
        self.inner.log.append(events)
    }

    /// Appends events from an upstream exactly once: `position` is the upstream's own position
    /// after them, stored in the same frame, and as durable as they are. A position not above the
    /// stored one changes nothing and answers [`Ingested::AlreadyStored`]. No events record just
    /// the position.
    ///
    /// # Errors
    ///
    /// As [`append_batch`](Self::append_batch); [`Error::TooLarge`] also for a name over
    /// [`limits::UPSTREAM_BYTES_MAX`] or more than [`limits::UPSTREAMS_MAX`] upstreams.
    pub fn append_from(&self, upstream: &str, position: u64, events: &[Event]) -> Result<Ingested> {
        self.inner.log.append_from(upstream, position, events)
    }

    /// The last position stored from `upstream`: where to resume. Durable.
    #[must_use]
    pub fn upstream_position(&self, upstream: &str) -> Option<u64> {
        self.inner.log.upstream_position(upstream)
    }

    /// The last event stored from `upstream`, to compare what is resumed with; `None` if there was
    /// none. Reads the log back to where it is.
    ///
    /// # Errors
    ///
    /// As [`next_batch`](Self::next_batch).
    pub fn upstream_last(&self, upstream: &str) -> Result<Option<Event>> {
        self.inner.log.upstream_last(upstream)
    }

    /// Hands one event to the log without waiting for the disk, and returns the offset it gets.
    ///
    /// Neither durable nor visible before a later [`sync`](Self::sync) (or any durable append)
    /// returns; a crash before that may lose it.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn write(&self, event: &Event) -> Result<Offset> {
        self.inner.log.write(event)
    }

    /// Makes everything written so far durable and visible, and returns the durable end.
    ///
    /// # Errors
    ///
    /// [`Error::OutcomeUnknown`]: written events are, each write wholly, there or not after
    /// reopening; this handle refuses further appends. [`Error::Stopped`]: as before.
    pub fn sync(&self) -> Result<Offset> {
        self.inner.log.sync()
    }

    /// At most `max` records from `from` on, and the offset to ask for next. Only durable records
    /// are seen. Reading at the durable end gives an empty batch.
    ///
    /// # Errors
    ///
    /// [`Error::OffsetOutOfRange`] beyond the durable end, [`Error::ZeroBatch`] for a `max` of 0,
    /// [`Error::Corrupt`] and [`Error::Io`] where the log cannot be read.
    pub fn next_batch(&self, from: Offset, max: usize) -> Result<Batch> {
        self.inner.log.next_batch(from, max)
    }

    /// The end of what is durable and visible: the offset that the next record will have once
    /// everything written is synced.
    #[must_use]
    pub fn durable_end(&self) -> Offset {
        self.inner.log.durable_end()
    }

    /// Waits until the record at `offset` is durable, at most `timeout`; answers whether it is. A
    /// store that closes meanwhile ends the wait.
    #[must_use]
    pub fn wait_for(&self, offset: Offset, timeout: Duration) -> bool {
        self.inner.log.wait_for(offset, timeout)
    }

    /// What opening found and did.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        self.inner.log.recovery()
    }

    /// The segments of the log, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.inner.log.segments()
    }

    /// Reads every durable record, checking each frame. Damage is an error.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] naming file, byte and offset; [`Error::Io`] where it could not be read.
    pub fn verify(&self) -> Result<LogVerified> {
        verify_log(&self.inner.log, self.durable_end())
    }

    /// Opens the consumer `name` (1 to 64 of `a-z`, `0-9`, `-`, `_`) with default options. Its
    /// state is healed if need be, and caught up to the durable end, when this returns.
    ///
    /// # Errors
    ///
    /// As [`consumer_with`](Self::consumer_with).
    pub fn consumer<M: StateMachine>(&self, name: &str, machine: M) -> Result<Consumer<M>> {
        self.consumer_with(name, machine, ConsumerOptions::default())
    }

    /// Opens the consumer `name` with these options.
    ///
    /// # Errors
    ///
    /// - [`Error::ConsumerOpen`]: it is open in this process; clone that handle.
    /// - [`Error::StateAheadOfLog`], [`Error::WrongLog`], [`Error::Diverged`]: its state does not
    ///   belong to this log; nothing was changed.
    /// - [`Error::State`]: the state store failed even after a fresh start.
    /// - [`Error::Invalid`]: a bad name or option.
    /// - As [`Consumer::catch_up`], and as [`append`](Self::append) where a changed budget is
    ///   recorded.
    pub fn consumer_with<M: StateMachine>(
        &self,
        name: &str,
        machine: M,
        options: ConsumerOptions,
    ) -> Result<Consumer<M>> {
        let registration = Registration::take(&self.inner.consumers, name)?;
        let at = crate::consumer::open::Place {
            log: self.inner.log.clone(),
            storage: Arc::clone(&self.inner.storage),
            backend: Arc::clone(&self.inner.states),
            read_only: self.inner.read_only,
        };
        Consumer::open(at, registration, machine, options)
    }

    /// The names of the consumers that have state in this store.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: the directory could not be read.
    pub fn consumers(&self) -> Result<Vec<String>> {
        crate::state::generation::consumers(&*self.inner.storage)
    }

    /// The names of consumers open in this process.
    #[must_use]
    pub fn open_consumers(&self) -> Vec<String> {
        let mut names: Vec<String> = lock(&self.inner.consumers).iter().cloned().collect();
        names.sort();
        names
    }

    /// Syncs what is written and closes the log: later calls on any handle answer
    /// [`Error::Closed`]. Dropping the last handle does the same without telling what failed.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync).
    pub fn close(&self) -> Result<()> {
        self.inner.log.close()
    }
}
