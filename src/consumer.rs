//! [`Consumer`]: a named fold of the log with its own state.
//!
//! This file is the face; what it does is in the files beside it: `open` (healing), `projection`
//! (the one replay path), `drive` (catch up, settle, run), `decide`, `list`, `mark`.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::compare::Difference;
use crate::error::Result;
use crate::fold::Crashes;
use crate::fold::counters::Counters;
use crate::fold::digest::Digest;
use crate::fold::letter::DeadLetter;
use crate::log::Log;
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::rebuild::Rebuilt;
use crate::replay::Replay;
use crate::source::{Fix, Row, Source};
use crate::state::StateBackend;
use crate::state::generation::Generations;
use crate::storage::Storage;
use crate::verify::Verified;

pub(crate) mod decide;
pub(crate) mod drive;
pub(crate) mod list;
pub(crate) mod mark;
pub(crate) mod open;
pub(crate) mod options;
mod partition;
pub(crate) mod projection;

use decide::{Decided, Filter, Verb};
use drive::{Drive, Progress};
use list::{List, WaitingEvent};
use open::Opening;
use options::ConsumerOptions;
use projection::Projection;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all handles of one consumer share.
pub(crate) struct Inner<M> {
    pub(crate) name: String,
    pub(crate) machine: M,
    pub(crate) options: ConsumerOptions,
    pub(crate) read_only: bool,
    pub(crate) log: Log,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) backend: Arc<dyn StateBackend>,
    pub(crate) generations: Generations,
    pub(crate) opening: Opening,
    live: RwLock<Arc<Projection>>,
    pub(crate) crashes: RwLock<Crashes>,
    pub(crate) drive: Mutex<Drive>,
    pub(crate) rebuilding: Mutex<()>,
    /// Frees the name when the last handle is gone.
    pub(crate) _registration: open::Registration,
}

impl<M> Inner<M> {
    pub(crate) fn live(&self) -> Arc<Projection> {
        Arc::clone(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `projection` in the place of the live one, and answers that.
    pub(crate) fn set_live(&self, projection: Projection) -> Arc<Projection> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *live, Arc::new(projection))
    }
}

impl<M> Drop for Inner<M> {
    fn drop(&mut self) {
        // Best effort: what is not flushed is folded again at the next open.
        let mut drive = lock(&self.drive);
        if let Err(error) = self.flush_live(&mut drive) {
            tracing::warn!(consumer = %self.name, %error, "state was not flushed at the end");
        }
    }
}

/// A named fold of the log: rows, waiting events and dead letters, kept up to date by
/// [`catch_up`](Self::catch_up), [`settle`](Self::settle) or [`run`](Self::run).
///
/// A cheap handle: clones share one state. Reads go on while another thread folds, and see every
/// event of a key wholly applied or not yet. All state is derived: whatever happens to it, it is
/// rebuilt from the log. Callbacks of the machine must not call the consumer.
pub struct Consumer<M: StateMachine> {
    inner: Arc<Inner<M>>,
}

impl<M: StateMachine> Clone for Consumer<M> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<M: StateMachine> std::fmt::Debug for Consumer<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer")
            .field("name", &self.inner.name)
            .field("checkpoint", &self.inner.live().checkpoint())
            .finish_non_exhaustive()
    }
}

/// What holds a key's waiting events back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// The key's next version, which has not been applied.
    pub next: i64,
    /// The open dead letter that sits in the gap, if one does; else the version never came.
    pub letter: Option<Offset>,
    /// How many events of the key wait.
    pub waiting: u64,
    /// How many of them are held: they spend no attempts.
    pub held: u64,
    /// The offset of the first of them: blocked since then.
    pub since: Offset,
}

impl<M: StateMachine> Consumer<M> {
    /// The consumer's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What was found, and healed, when this consumer was opened.
    #[must_use]
    pub fn opening(&self) -> &Opening {
        &self.inner.opening
    }

    /// Folds everything durable that is not folded yet.
    ///
    /// # Errors
    ///
    /// - [`crate::Error::Corrupt`], [`crate::Error::Io`]: the log could not be read; state stays at
    ///   the last whole record, or goes back to the last flush if the record was half folded, and a
    ///   later call goes on from there.
    /// - [`crate::Error::Closed`]: the store was closed.
    /// - [`crate::Error::State`]: the state store failed; the log is not affected. Open the
    ///   consumer again.
    pub fn catch_up(&self) -> Result<Progress> {
        self.inner.catch_up(&mut self.inner.drive())
    }

    /// Catches up and then runs redelivery rounds until no event waits unheld: each is applied or
    /// a dead letter.
    ///
    /// # Errors
    ///
    /// As [`catch_up`](Self::catch_up), and as [`crate::Store::append`] for the rounds, which are
    /// records in the log.
    pub fn settle(&self) -> Result<Progress> {
        self.inner.settle(&mut self.inner.drive())
    }

    /// Catches up as records arrive, and runs redelivery rounds with a growing delay while
    /// something waits unheld, until `stop` is true (looked at every 50 ms). Flushes before it
    /// returns.
    ///
    /// # Errors
    ///
    /// As [`settle`](Self::settle); it returns at the first error.
    pub fn run(&self, stop: &AtomicBool) -> Result<Progress> {
        self.inner.run(stop)
    }

    /// Writes the state in memory to disk with its checkpoint, in one step per partition.
    ///
    /// Never needed for safety: after a crash the log is folded again from the last flush.
    ///
    /// # Errors
    ///
    /// [`crate::Error::State`]: the state store refused; the log is not affected.
    pub fn flush(&self) -> Result<()> {
        self.inner.flush_live(&mut self.inner.drive())
    }

    /// The row of `key`, or `None` if no event or fix has made one.
    ///
    /// # Errors
    ///
    /// [`crate::Error::State`] and [`crate::Error::Codec`]: the row could not be read.
    pub fn get(&self, key: &str) -> Result<Option<Row<M::State>>> {
        let row = self.inner.live().key(key)?.and_then(|state| state.row);
        row.map(|row| Row::decode(key, &row)).transpose()
    }

    /// What holds back the waiting events of `key`, or `None` if none waits.
    ///
    /// # Errors
    ///
    /// [`crate::Error::State`]: the state could not be read.
    pub fn blocked(&self, key: &str) -> Result<Option<Blocked>> {
        let Some(state) = self.inner.live().key(key)? else {
            return Ok(None);
        };
        let Some(since) = state.waiting.iter().map(|waiting| waiting.offset).min() else {
            return Ok(None);
        };
        let version = state.row.as_ref().map_or(0, |row| row.version);
        let letter = state
            .open
            .iter()
            .find(|(at, _)| *at > version)
            .map(|(_, offset)| *offset);
        let first = state
            .waiting
            .front()
            .map_or(i64::MAX, |waiting| waiting.version);
        let letter = letter.filter(|_| {
            state
                .open
                .iter()
                .any(|(at, _)| *at > version && *at < first)
        });
        Ok(Some(Blocked {
            next: version.saturating_add(1),
            letter,
            waiting: crate::num::to_u64(state.waiting.len()),
            held: state.held(),
            since,
        }))
    }

    /// All rows in the order of their keys' bytes, read page by page.
    #[must_use]
    pub fn rows(&self) -> List<(String, Row<M::State>)> {
        self.inner.rows()
    }

    /// All waiting events in offset order, read page by page.
    #[must_use]
    pub fn waiting(&self) -> List<WaitingEvent> {
        self.inner.waiting()
    }

    /// All dead letters, open and resolved, in offset order, read page by page.
    #[must_use]
    pub fn dead_letters(&self) -> List<DeadLetter> {
        self.inner.letters(Offset::ZERO)
    }

    /// The dead letter of the event at `offset`, open or resolved.
    ///
    /// # Errors
    ///
    /// [`crate::Error::State`]: the state could not be read.
    pub fn dead_letter(&self, offset: Offset) -> Result<Option<DeadLetter>> {
        self.inner.live().letter(offset)
    }

    /// The first offset not folded yet (by the slowest partition).
    #[must_use]
    pub fn checkpoint(&self) -> Offset {
        self.inner.live().checkpoint()
    }

    /// The digest of rows, waiting events and dead letters: equal states have equal digests,
    /// whatever the partitions, the machine and the history of crashes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.inner.live().digest()
    }

    /// What became of every event below the checkpoint, in numbers.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.live().counters()
    }

    /// The retry budget in force.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.inner.live().budget()
    }

    /// Judges the dead letter of the event at `offset` again, with a fresh budget. The decision and
    /// its `note` are a record in the log.
    ///
    /// # Errors
    ///
    /// - [`crate::Error::NotFound`], [`crate::Error::AlreadyResolved`]: nothing was written.
    /// - As [`crate::Store::append`] for the record, and as [`catch_up`](Self::catch_up).
    pub fn redrive(&self, offset: Offset, note: Option<&str>) -> Result<Decided> {
        self.inner.decide(Verb::Redrive, offset, note)
    }

    /// Resolves the dead letter of the event at `offset` without applying it, and ends its hold:
    /// events that wait behind it spend attempts from then on.
    ///
    /// # Errors
    ///
    /// As [`redrive`](Self::redrive).
    pub fn discard(&self, offset: Offset, note: Option<&str>) -> Result<Decided> {
        self.inner.decide(Verb::Discard, offset, note)
    }

    /// Resolves the dead letter of the event at `offset` and moves its key's version past it, state
    /// unchanged, so that events waiting behind it are applied.
    ///
    /// # Errors
    ///
    /// As [`redrive`](Self::redrive), and [`crate::Error::NotNext`] if the event is not its key's
    /// next version: nothing was written.
    pub fn skip(&self, offset: Offset, note: Option<&str>) -> Result<Decided> {
        self.inner.decide(Verb::Skip, offset, note)
    }

    /// Redrives the open letters that match, in offset order, at most `limit`. None is no error.
    ///
    /// # Errors
    ///
    /// As [`redrive`](Self::redrive); decisions made before the error stay.
    pub fn redrive_all(
        &self,
        filter: &Filter,
        limit: usize,
        note: Option<&str>,
    ) -> Result<Vec<Decided>> {
        self.inner.decide_all(Verb::Redrive, filter, limit, note)
    }

    /// Discards the open letters that match, in offset order, at most `limit`. None is no error.
    ///
    /// # Errors
    ///
    /// As [`redrive`](Self::redrive); decisions made before the error stay.
    pub fn discard_all(
        &self,
        filter: &Filter,
        limit: usize,
        note: Option<&str>,
    ) -> Result<Vec<Decided>> {
        self.inner.decide_all(Verb::Discard, filter, limit, note)
    }

    /// Skips the open letters that match, in offset order, at most `limit`; those that are not
    /// their key's next version at their turn stay open. None is no error.
    ///
    /// # Errors
    ///
    /// As [`skip`](Self::skip) but without `NotNext`; decisions made before the error stay.
    pub fn skip_all(
        &self,
        filter: &Filter,
        limit: usize,
        note: Option<&str>,
    ) -> Result<Vec<Decided>> {
        self.inner.decide_all(Verb::Skip, filter, limit, note)
    }

    /// Delivers the events of `[from, checkpoint)` again over the live state and reports how the
    /// state accounts for each. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`crate::Error::OffsetOutOfRange`] for a start beyond the checkpoint; as
    /// [`catch_up`](Self::catch_up) for the log.
    pub fn replay(&self, from: Offset) -> Result<Replay> {
        self.inner.replay(from)
    }

    /// Folds the log from 0 into new state beside the live one, compares, and switches in one step.
    /// Reads and appends go on meanwhile. Interrupted at any point, the old state stays live.
    ///
    /// # Errors
    ///
    /// As [`catch_up`](Self::catch_up), [`crate::Error::ReadOnly`] on a read-only store: the old
    /// state stays live.
    pub fn rebuild(&self) -> Result<Rebuilt> {
        self.inner.rebuild()
    }

    /// What a rebuild would change. Changes nothing; needs scratch space for a second state.
    ///
    /// # Errors
    ///
    /// As [`catch_up`](Self::catch_up).
    pub fn rebuild_preview(&self) -> Result<Difference> {
        self.inner.rebuild_preview()
    }

    /// Compares the rows of `keys` with the source and repairs each difference by one fix in the
    /// log, until none remains. Only these keys are looked at, so none means nothing to do; those
    /// that the source does not know are left alone. Answers all fixes in the order they were
    /// made; a second run finds nothing.
    ///
    /// # Errors
    ///
    /// [`crate::Error::SourceUnavailable`]: fixes appended before stay. As
    /// [`crate::Store::append`] for the fixes.
    pub fn reconcile(
        &self,
        source: &dyn Source<M::State>,
        keys: &[String],
        note: Option<&str>,
    ) -> Result<Vec<Fix<M::State>>> {
        self.inner.reconcile(source, keys, note)
    }

    /// The fixes that a first round of [`reconcile`](Self::reconcile) would append. Writes nothing
    /// but catching up.
    ///
    /// # Errors
    ///
    /// As [`reconcile`](Self::reconcile).
    pub fn reconcile_preview(
        &self,
        source: &dyn Source<M::State>,
        keys: &[String],
    ) -> Result<Vec<Fix<M::State>>> {
        self.inner.reconcile_preview(source, keys)
    }

    /// Reads every record below the checkpoint, folds them anew beside the live state, and compares
    /// digests and entries. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Corrupt`] for a damaged log; differences of the state are findings in the
    /// answer, not errors.
    pub fn verify(&self) -> Result<Verified> {
        self.inner.verify()
    }
}
