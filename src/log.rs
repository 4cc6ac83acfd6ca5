//! The log: a directory of segments behind one handle.
//!
//! Invariants:
//! - Nothing is readable before the sync that covers it: `nothing_is_visible_while_its_sync_runs`.
//! - A second writer is refused before anything is read or repaired:
//!   `second_writer_is_refused_and_touches_nothing`.
//! - Opened read-only, a log writes nothing: `read_only_log_follows_a_writer_and_writes_nothing`.
//!
//! Not here: how frames get on disk (`commit.rs`, `roll.rs`), how they are found again
//! (`recovery.rs`), how they are read (`reader.rs`).

pub(crate) mod anchor;
mod batch;
pub(crate) mod catalog;
pub(crate) mod commit;
mod draft;
mod pending;
mod put;
pub(crate) mod reader;
mod records;
pub(crate) mod recovery;
mod roll;
pub(crate) mod segment;
pub(crate) mod upstream;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::event::{Decision, Event};
use crate::limits;
use crate::offset::Offset;
use crate::storage::{Lock, Storage};

use catalog::Catalog;
use commit::Writer;
use draft::Draft;
use recovery::{Inspected, Recovered};

pub use batch::Batch;
pub use catalog::SegmentInfo;
pub use commit::Ingested;
pub use records::{BodyRef, RecordRef, Records};
use recovery::Recovery;

/// How many bytes a segment file is extended by at a time. Zeros written ahead make the sync of an
/// append cheap; a chunk, not the whole segment, so that a small store stays small.
pub(crate) const PREALLOCATE_BYTES: u64 = 4 * 1024 * 1024;
/// A read-only opener asks for the writer's lock and lets go of it at once; a writer that comes in
/// between tries again, this often and this far apart.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// How often a read-only log that waits looks for new records.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);

/// How a log is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// A segment that has this many bytes is followed by a new one.
    pub(crate) segment_bytes: u64,
    /// Most bytes of record bodies in one batch.
    pub(crate) batch_bytes_max: usize,
    /// Write nothing, take no lock.
    pub(crate) read_only: bool,
    /// A torn tail is an error.
    pub(crate) strict: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
            batch_bytes_max: 4 * 1024 * 1024,
            read_only: false,
            strict: false,
        }
    }
}

impl LogOptions {
    /// Refuses what no log can work with.
    pub(crate) fn check(&self) -> Result<()> {
        let range = limits::SEGMENT_BYTES_MIN..=limits::SEGMENT_BYTES_MAX;
        if range.contains(&self.segment_bytes) {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "segment_bytes",
            reason: format!("must be from {} to {}", range.start(), range.end()),
        })
    }

    /// How many bytes of zeros a new segment file starts with.
    pub(crate) fn first_chunk(&self) -> u64 {
        self.segment_bytes.min(PREALLOCATE_BYTES)
    }
}

/// A log that is open. Clones are the same log; the last one to go closes it.
#[derive(Clone)]
pub(crate) struct Log {
    inner: Arc<Inner>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("id", &self.id())
            .field("durable_end", &self.durable_end())
            .finish_non_exhaustive()
    }
}

struct Inner {
    options: LogOptions,
    recovery: Recovery,
    log_id: u64,
    epoch: u32,
    catalog: Catalog,
    side: Side,
}

/// What this handle may do.
enum Side {
    Writer {
        writer: Writer,
        /// Held until close.
        lock: Mutex<Option<Box<dyn fmt::Debug + Send + Sync>>>,
    },
    Reader(Mutex<Option<Inspected>>),
}

impl Log {
    /// Opens the log in the store's directory; creates one where there is none, unless read-only.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if there is a writer (nothing was touched), and whatever recovery found.
    pub(crate) fn open(storage: Arc<dyn Storage>, options: LogOptions) -> Result<Self> {
        options.check()?;
        if options.read_only {
            return Self::inspect(&storage, options);
        }
        storage
            .create_dir("")
            .map_err(|error| Error::io("create directory", storage.path(""), None, 0, error))?;
        let lock = lock_storage(&*storage)?;
        let (anchors, unreadable) = anchor::read_all(&*storage)?;
        let Recovered {
            log_id,
            epoch,
            catalog,
            tail,
            upstreams,
            mut report,
        } = recovery::recover(&storage, &options, &anchors)?;
        report.unreadable_anchors = unreadable;
        let id = (log_id, epoch);
        let writer = Writer::new(
            storage,
            options,
            id,
            catalog.clone(),
            tail,
            upstreams.into(),
        );
        Ok(Self::new(
            options,
            report,
            id,
            catalog,
            Side::Writer {
                writer,
                lock: Mutex::new(Some(lock)),
            },
        ))
    }

    fn inspect(storage: &Arc<dyn Storage>, options: LogOptions) -> Result<Self> {
        let (anchors, unreadable) = anchor::read_all(&**storage)?;
        let mut inspected = recovery::inspect(storage, &options, &anchors)?;
        inspected.report.unreadable_anchors = unreadable;
        let id = (inspected.log_id, inspected.epoch);
        let report = inspected.report.clone();
        let catalog = inspected.catalog.clone();
        let side = Side::Reader(Mutex::new(Some(inspected)));
        Ok(Self::new(options, report, id, catalog, side))
    }

    fn new(
        options: LogOptions,
        recovery: Recovery,
        (log_id, epoch): (u64, u32),
        catalog: Catalog,
        side: Side,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                options,
                recovery,
                log_id,
                epoch,
                catalog,
                side,
            }),
        }
    }

    /// What opening found and did.
    pub(crate) fn recovery(&self) -> &Recovery {
        &self.inner.recovery
    }

    /// The random number that tells this log from all others.
    pub(crate) fn id(&self) -> u64 {
        self.inner.log_id
    }

    /// How many times a loss was accepted.
    pub(crate) fn epoch(&self) -> u32 {
        self.inner.epoch
    }

    /// The segments, oldest first.
    pub(crate) fn segments(&self) -> Vec<SegmentInfo> {
        self.inner.catalog.segments()
    }

    /// Stores these events as one frame, all or none; durable and visible when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::OutcomeUnknown`] leaves open whether they will be there after the log is opened
    /// again, and stops the handle. After any other error nothing is stored.
    pub(crate) fn append(&self, events: &[Event]) -> Result<Range<Offset>> {
        self.writer()?.append(&Draft::events(events)?)
    }

    /// Stores one decision; as [`Self::append`]. `key_hash` is that of the key it is about.
    pub(crate) fn append_decision(&self, decision: &Decision, key_hash: u32) -> Result<Offset> {
        let decisions = [(decision.clone(), key_hash)];
        Ok(self.append_decisions(&decisions)?.start)
    }

    /// Stores these decisions, each with the hash of the key it is about, as one frame.
    pub(crate) fn append_decisions(&self, decisions: &[(Decision, u32)]) -> Result<Range<Offset>> {
        self.writer()?.append(&Draft::decisions(decisions)?)
    }

    /// Stores these events, which may be none, together with the position that `upstream` has
    /// reached, if that is above the one stored; as [`Self::append`].
    pub(crate) fn append_from(
        &self,
        upstream: &str,
        position: u64,
        events: &[Event],
    ) -> Result<Ingested> {
        let draft = Draft::upstream(upstream, position, events)?;
        self.writer()?.append_from(upstream, position, &draft)
    }

    /// Gives one event its offset. It becomes durable and visible with the next [`Self::sync`] or
    /// append that returns.
    pub(crate) fn write(&self, event: &Event) -> Result<Offset> {
        let draft = Draft::events(std::slice::from_ref(event))?;
        Ok(self.writer()?.write(&draft)?.start)
    }

    /// Gives these events their offsets, as one frame; as [`Self::write`].
    pub(crate) fn write_batch(&self, events: &[Event]) -> Result<Range<Offset>> {
        self.writer()?.write(&Draft::events(events)?)
    }

    /// Makes everything written before durable; answers the durable end.
    pub(crate) fn sync(&self) -> Result<Offset> {
        self.writer()?.sync()
    }

    /// How far an upstream was stored, durably.
    pub(crate) fn upstream_position(&self, upstream: &str) -> Option<u64> {
        match &self.inner.side {
            Side::Writer { writer, .. } => writer.upstream_position(upstream),
            Side::Reader(_) => self.upstreams().get(upstream).copied(),
        }
    }

    /// How far each upstream was stored, durably.
    pub(crate) fn upstreams(&self) -> BTreeMap<String, u64> {
        match &self.inner.side {
            Side::Writer { writer, .. } => writer.upstreams(),
            Side::Reader(inspected) => hold(inspected)
                .as_ref()
                .map(|inspected| inspected.upstreams.clone())
                .unwrap_or_default(),
        }
    }

    /// The first offset that is not durable yet; for a read-only log, as of the last look.
    pub(crate) fn durable_end(&self) -> Offset {
        self.inner.catalog.end()
    }

    /// The durable end, after a look for what a live writer added to a log that is open read-only;
    /// refuses a closed log.
    pub(crate) fn refresh(&self) -> Result<Offset> {
        match &self.inner.side {
            Side::Writer { writer, .. } => writer.check_open()?,
            Side::Reader(inspected) => {
                hold(inspected).as_mut().ok_or(Error::Closed)?.refresh()?;
            }
        }
        Ok(self.durable_end())
    }

    /// Waits until the record at `offset` is durable, at most `timeout`; tells whether it is. A
    /// log that is closed meanwhile ends the wait.
    pub(crate) fn wait_for(&self, offset: Offset, timeout: Duration) -> bool {
        match &self.inner.side {
            Side::Writer { writer, .. } => writer.wait_for(offset, timeout),
            Side::Reader(_) => self.look_for(offset, timeout),
        }
    }

    fn look_for(&self, offset: Offset, timeout: Duration) -> bool {
        let start = Instant::now();
        loop {
            // Whoever reads next hears what is wrong.
            let looked = self.refresh().is_ok();
            if self.durable_end() > offset {
                return true;
            }
            let left = timeout.saturating_sub(start.elapsed());
            if !looked || left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(REFRESH_PAUSE));
        }
    }

    /// Writes what is pending and lets go of the log. All other calls on it, through any clone,
    /// are refused from now on, and end if they wait. Closing again changes nothing.
    ///
    /// # Errors
    ///
    /// The log is closed all the same. [`Error::Stopped`] and [`Error::OutcomeUnknown`] say that
    /// what `write` had been given is not all stored.
    pub(crate) fn close(&self) -> Result<()> {
        self.inner.close()
    }

    fn writer(&self) -> Result<&Writer> {
        match &self.inner.side {
            Side::Writer { writer, .. } => Ok(writer),
            Side::Reader(_) => Err(Error::ReadOnly),
        }
    }

    /// The durable end, which must be at or above `offset`; refuses a closed log.
    fn end_above(&self, offset: Offset) -> Result<Offset> {
        let mut end = self.durable_end();
        match &self.inner.side {
            Side::Writer { writer, .. } => writer.check_open()?,
            Side::Reader(_) if end <= offset => end = self.refresh()?,
            Side::Reader(inspected) => drop(hold(inspected).as_ref().ok_or(Error::Closed)?),
        }
        if offset > end {
            return Err(Error::OffsetOutOfRange {
                requested: offset,
                first: Offset::ZERO,
                end,
            });
        }
        Ok(end)
    }
}

impl Inner {
    fn close(&self) -> Result<()> {
        match &self.side {
            Side::Writer { writer, lock } if writer.is_ours() => {
                let answer = writer.close();
                drop(hold(lock).take());
                answer
            }
            Side::Writer { lock, .. } => {
                // A fork's copy: dropping the guard would take the lock from the parent.
                if let Some(guard) = lock.try_lock().ok().and_then(|mut lock| lock.take()) {
                    Box::leak(guard);
                }
                Err(Error::Closed)
            }
            Side::Reader(inspected) => {
                drop(hold(inspected).take());
                Ok(())
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the log did not close well");
        }
    }
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Becomes the one writer, or says who is.
pub(crate) fn lock_storage(storage: &dyn Storage) -> Result<Box<dyn fmt::Debug + Send + Sync>> {
    let mut tries = LOCK_TRIES;
    loop {
        let path = || storage.path("");
        let lock = storage.try_lock();
        match lock.map_err(|error| Error::io("lock", path(), None, 0, error))? {
            Lock::Held(guard) => return Ok(guard),
            Lock::Busy { pid } if tries == 0 => return Err(Error::Locked { path: path(), pid }),
            Lock::Busy { .. } => {
                tries = tries.saturating_sub(1);
                std::thread::sleep(LOCK_PAUSE);
            }
        }
    }
}

#[cfg(test)]
#[cfg(feature = "sim")]
mod tests;
