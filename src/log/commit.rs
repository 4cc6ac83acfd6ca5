//! The writer: frames get their place under one lock, and one of the callers (the leader) writes
//! and syncs for all that wait (group commit).
//!
//! A commit, in order, and what a crash after each step leaves:
//! 1. Take all pending bytes; frames placed from now on form the next group. Nothing on disk.
//! 2. Write them with one call; near the end of the preallocated part, a chunk of zeros behind
//!    them. Any of it may be on disk: a torn tail, or whole frames that nobody was promised.
//! 3. Sync. All of it is on disk.
//! 4. Publish: durable end, upstream positions, index; answer the callers of the group.
//! 5. If nothing is pending, write a note, unsynced. Lost or torn, it was only evidence.
//!
//! A write that failed is erased with zeros, synced, and fails the callers that wait for it. Where
//! that cannot be done, or a sync failed, or a `write` had been told an offset that is now lost,
//! the handle stops.
//!
//! Invariants:
//! - A caller is answered by a sync that started after its bytes were written, or hears the error
//!   of its own group: `follower_is_not_answered_by_a_sync_that_started_before_its_write`,
//!   `failed_sync_is_heard_by_all_16_of_the_group`.
//! - An acknowledged frame survives any crash, and no frame survives in part:
//!   `every_crash_leaves_all_that_was_acknowledged_and_whole_frames_only`.
//! - After a failure the handle goes on as if the call had not been made, or stops:
//!   `every_failing_call_is_answered_and_the_log_goes_on_or_stops`.
//! - A position is taken once, and free again if its frame failed:
//!   `one_of_many_calls_with_the_same_position_stores`,
//!   `position_taken_by_a_frame_that_failed_is_free_again`.
//!
//! Not here: the bytes on disk (`put.rs`), the roll (`roll.rs`), the bookkeeping (`pending.rs`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::log::LogOptions;
use crate::log::catalog::Catalog;
use crate::log::draft::Draft;
use crate::log::pending::{Active, Group, PENDING_BYTES_MAX, Phase, Place, State};
use crate::log::recovery::Tail;
use crate::log::upstream::Table;
use crate::num::to_u64;
use crate::offset::Offset;
use crate::storage::Storage;

/// What became of an `append_from`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ingested {
    /// The events are stored under these offsets (an empty range for none), and the upstream
    /// stands at the position given.
    Stored(Range<Offset>),
    /// The upstream had reached that position before; nothing was stored. What had been stored
    /// for it is durable.
    AlreadyStored {
        /// Where the upstream stands.
        position: u64,
    },
}

/// The writing end of a log.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) options: LogOptions,
    pub(super) log_id: u64,
    pub(super) epoch: u32,
    pub(super) catalog: Catalog,
    pub(super) process: u32,
    state: Mutex<State>,
    /// Something that a caller may wait for has happened: a group was answered, I/O or a roll
    /// ended, the phase changed.
    changed: Condvar,
    /// The durable end has moved, or never will again.
    published: Condvar,
}

pub(super) type Guard<'a> = MutexGuard<'a, State>;

/// A frame that has its place.
struct Placed {
    offsets: Range<Offset>,
    group: Arc<Group>,
}

impl Writer {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        options: LogOptions,
        (log_id, epoch): (u64, u32),
        catalog: Catalog,
        tail: Tail,
        table: Table,
    ) -> Self {
        let place = Place {
            position: tail.position,
            end: tail.end,
            chain: tail.chain,
            records: tail.records_in_segment,
        };
        let active = Active {
            file: tail.file.into(),
            name: tail.name.into(),
            salt: tail.salt,
            allocated: tail.allocated,
        };
        Self {
            storage,
            options,
            log_id,
            epoch,
            catalog,
            process: std::process::id(),
            state: Mutex::new(State::new(active, place, table)),
            changed: Condvar::new(),
            published: Condvar::new(),
        }
    }

    pub(crate) fn durable_end(&self) -> Offset {
        self.catalog.end()
    }

    pub(crate) fn upstream_position(&self, name: &str) -> Option<u64> {
        self.enter().ok()?.table.get(name)
    }

    pub(crate) fn upstreams(&self) -> BTreeMap<String, u64> {
        self.enter()
            .map(|state| state.table.positions().clone())
            .unwrap_or_default()
    }

    /// Whether this process opened the log. A fork's copy is none: the parent is the writer, and
    /// the lock in here may be held by a thread that the child does not have.
    pub(crate) fn is_ours(&self) -> bool {
        std::process::id() == self.process
    }

    /// Refuses a closed handle, and a fork's copy.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.enter()?.phase {
            Phase::Open | Phase::Stopped(_) => Ok(()),
            Phase::Closing | Phase::Closed => Err(Error::Closed),
        }
    }

    /// Stores one frame; durable when this returns.
    pub(crate) fn append(&self, draft: &Draft) -> Result<Range<Offset>> {
        let (state, placed) = self.place(draft)?;
        let (_state, answer) = self.settle(state, &placed.group);
        answer.map(|()| placed.offsets)
    }

    /// Gives one frame its place; durable and visible after [`Self::sync`] only.
    pub(crate) fn write(&self, draft: &Draft) -> Result<Range<Offset>> {
        let (mut state, placed) = self.place(draft)?;
        state.pending.promised = true;
        Ok(placed.offsets)
    }

    /// Makes everything written so far durable; answers the durable end.
    pub(crate) fn sync(&self) -> Result<Offset> {
        let state = self.enter()?;
        state.usable()?;
        if let Some(group) = state.last_group() {
            let (state, answer) = self.settle(state, &group);
            // An append that failed and was erased is its caller's matter. What a `write` was told
            // is durable, or the handle has stopped.
            if state.usable().is_err() {
                answer?;
            }
        }
        Ok(self.durable_end())
    }

    /// Stores one frame that moves `upstream` to `position`, unless it stands there already.
    pub(crate) fn append_from(
        &self,
        upstream: &str,
        position: u64,
        draft: &Draft,
    ) -> Result<Ingested> {
        let now_ms = self.storage.now_ms();
        let mut state = self.enter()?;
        loop {
            state.usable()?;
            if let Some(stored) = state.table.get(upstream).filter(|at| *at >= position) {
                return Ok(Ingested::AlreadyStored { position: stored });
            }
            let taken = state.pending_table.get(upstream) >= Some(position);
            if let Some(group) = state.last_group().filter(|_| taken) {
                // Whatever the answer is: if the frame that took the position failed, the
                // position is free again, and this call's events are as good as that one's.
                state = self.settle(state, &group).0;
                continue;
            }
            state.pending_table.check(upstream)?;
            let has_room;
            (state, has_room) = self.make_room(state, draft)?;
            if has_room {
                let offsets = state.place(draft, Some((upstream, position)), now_ms)?;
                let group = Arc::clone(&state.pending.group);
                let (_state, answer) = self.settle(state, &group);
                return answer.map(|()| Ingested::Stored(offsets));
            }
        }
    }

    /// Waits until the durable end is above `offset`; tells whether it is.
    pub(crate) fn wait_for(&self, offset: Offset, timeout: Duration) -> bool {
        if self.durable_end() > offset {
            return true;
        }
        // Too far ahead to be a time: as good as for ever.
        let deadline = Instant::now().checked_add(timeout);
        let Ok(mut state) = self.enter() else {
            return false;
        };
        loop {
            if self.durable_end() > offset {
                return true;
            }
            let left = deadline.map_or(Duration::from_secs(3600), |at| {
                at.saturating_duration_since(Instant::now())
            });
            if left.is_zero() || matches!(state.phase, Phase::Closing | Phase::Closed) {
                return false;
            }
            state = self
                .published
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Writes what is pending, puts a synced note behind it, and refuses further calls. Later calls
    /// change nothing.
    pub(crate) fn close(&self) -> Result<()> {
        let mut state = self.enter()?;
        while matches!(state.phase, Phase::Closing) {
            state = self.wait(state);
        }
        match &state.phase {
            Phase::Closed => return Ok(()),
            Phase::Open | Phase::Closing => state.phase = Phase::Closing,
            // What `write` was told is lost, and whoever closes has to hear it.
            Phase::Stopped(_) => {}
        }
        // A reader that waits for records gives up now, not after the last sync.
        self.published.notify_all();
        let answer = loop {
            if let Phase::Stopped(_) = state.phase {
                break state.usable();
            }
            if state.busy || state.rolling {
                state = self.wait(state);
            } else if state.pending.bytes.is_empty() {
                let answer;
                (state, answer) = self.write_note(state, true);
                break answer;
            } else {
                state = self.commit(state, false);
            }
        };
        state.phase = Phase::Closed;
        self.changed.notify_all();
        answer
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Result<Guard<'_>> {
        if self.is_ours() {
            Ok(self.lock())
        } else {
            Err(Error::Closed)
        }
    }

    fn wait<'a>(&'a self, state: Guard<'a>) -> Guard<'a> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// I/O has ended.
    pub(super) fn release(&self, state: &mut State) {
        state.busy = false;
        self.changed.notify_all();
    }

    fn place(&self, draft: &Draft) -> Result<(Guard<'_>, Placed)> {
        let now_ms = self.storage.now_ms();
        let mut state = self.enter()?;
        loop {
            state.usable()?;
            let has_room;
            (state, has_room) = self.make_room(state, draft)?;
            if has_room {
                let offsets = state.place(draft, None, now_ms)?;
                let group = Arc::clone(&state.pending.group);
                return Ok((state, Placed { offsets, group }));
            }
        }
    }

    /// Tells whether the frame may be placed now. If not, the lock was given up to get nearer to
    /// that, and the caller looks at everything again.
    fn make_room<'a>(&'a self, state: Guard<'a>, draft: &Draft) -> Result<(Guard<'a>, bool)> {
        if state.rolling {
            return Ok((self.wait(state), false));
        }
        let end = state.next.end.plus(draft.count().into());
        if end == Offset::MAX {
            return Err(Error::Overflow);
        }
        let pending = to_u64(state.pending.bytes.len());
        let full = pending > 0 && pending.saturating_add(draft.frame_len()) > PENDING_BYTES_MAX;
        let fits = state.room_for(draft, self.options.segment_bytes)?;
        if fits && !full {
            return Ok((state, true));
        }
        if state.busy {
            return Ok((self.wait(state), false));
        }
        let state = if fits {
            self.commit(state, false)
        } else {
            self.roll(state)?
        };
        Ok((state, false))
    }

    /// Waits for the group's answer, as its leader if nobody else does I/O.
    fn settle<'a>(&'a self, mut state: Guard<'a>, group: &Group) -> (Guard<'a>, Result<()>) {
        loop {
            if let Some(answer) = group.answer() {
                return (state, answer);
            }
            // An unanswered group is either being written by someone, or the pending one.
            state = if state.busy {
                self.wait(state)
            } else {
                self.commit(state, true)
            };
        }
    }

    /// Writes, syncs and publishes all that is pending. The caller has seen that nobody is busy.
    pub(super) fn commit<'a>(&'a self, mut state: Guard<'a>, note: bool) -> Guard<'a> {
        let batch = state.take_batch();
        drop(state);
        let stored = self.store(&batch);
        let mut state = self.lock();
        match stored {
            Ok(allocated) => {
                state.active.allocated = allocated;
                state.publish(batch, &self.catalog);
                self.published.notify_all();
                if note && state.pending.bytes.is_empty() && state.usable().is_ok() {
                    // The group has its answer; the note is not its callers' matter.
                    self.changed.notify_all();
                    state = self.write_note(state, false).0;
                }
            }
            Err(failure) => state.fail(&batch, failure),
        }
        self.release(&mut state);
        state
    }
}
