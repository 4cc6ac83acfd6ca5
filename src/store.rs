//! [`Store`]: the face of foldlog. One directory, one writer, any number of consumers.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::consumer::open::Registration;
use crate::consumer::options::ConsumerOptions;
use crate::consumer::{Consumer, lock};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::event::Event;
#[cfg(doc)]
use crate::limits;
use crate::log::recovery::Recovery;
use crate::log::{Batch, Ingested, Log, Records, SegmentInfo};
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::options::Options;
use crate::repair::{Repair, RepairOptions};
use crate::state::StateBackend;
use crate::storage::Storage;
use crate::verify::{LogVerified, verify_log};

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
    pub(crate) fn new(
        log: Log,
        storage: Arc<dyn Storage>,
        states: Arc<dyn StateBackend>,
        read_only: bool,
        path: PathBuf,
    ) -> Self {
        let consumers = Arc::new(Mutex::new(HashSet::new()));
        let inner = StoreInner {
            log,
            storage,
            states,
            read_only,
            path,
            consumers,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

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

    /// Hands events to the log as one atomic batch, without waiting for the disk; as
    /// [`write`](Self::write) and [`append_batch`](Self::append_batch).
    ///
    /// # Errors
    ///
    /// As [`append_batch`](Self::append_batch).
    pub fn write_batch(&self, events: &[Event]) -> Result<Range<Offset>> {
        self.inner.log.write_batch(events)
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

    /// The durable records from `from` on, each lent from the buffer it was read into: for a replay
    /// of the whole log, or a long part of it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use foldlog::{Event, Offset, Store};
    /// # let store = Store::open(dir.path())?;
    /// store.append(&Event::new("e-1", "order-1", 1, "reserve"))?;
    /// let mut records = store.records(Offset::ZERO)?;
    /// while let Some(record) = records.next()? {
    ///     if let Some(event) = record.event() {
    ///         assert_eq!((event.key, event.kind), ("order-1", "reserve"));
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OffsetOutOfRange`] beyond the durable end, [`Error::Closed`].
    pub fn records(&self, from: Offset) -> Result<Records> {
        self.inner.log.records(from)
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
