//! What the writer knows, behind its lock: where the log ends, synced and not, and the bytes that
//! wait for the next commit. No I/O happens here.
//!
//! Invariants:
//! - `durable` never passes what a finished sync covers; only [`State::publish`] moves it:
//!   `nothing_is_visible_while_its_sync_runs`.
//! - After a failed commit everything that was not durable is gone from memory too, places,
//!   upstream positions and bytes ([`State::fail`]):
//!   `failed_write_is_heard_by_all_16_and_their_offsets_are_given_again`.
//! - A frame says how many bytes before it no sync had covered:
//!   `unproven_counts_the_bytes_that_no_sync_had_covered_when_the_frame_was_made`.
//! - Every segment keeps room for its seal: `frame_that_just_fits_before_the_seal_does_not_roll`.
//! - Positions alone never fill a segment so far that no record fits any more:
//!   `segment_of_positions_alone_keeps_room_for_the_largest_frame`.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::frame::{self, FrameKind, HEADER_LEN, Header, SEAL_LEN, Salt};
use crate::limits::FRAME_BYTES_MAX;
use crate::log::catalog::Catalog;
use crate::log::draft::{Draft, Spot};
use crate::log::roll::Next;
use crate::log::segment::SEGMENT_HEADER_LEN;
use crate::log::upstream::Table;
use crate::num::{to_u64, to_usize};
use crate::offset::Offset;
use crate::storage::StorageFile;

/// Most bytes that wait for a commit before callers are held back; one larger frame still fits.
pub(super) const PENDING_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// A commit's buffer is kept for the next one up to this size.
const SPARE_BYTES_MAX: usize = 1024 * 1024;

/// The answer to all callers whose frames go to disk together. A caller is answered by its own
/// group and by nothing else, so no later sync and no later failure can speak for it.
#[derive(Debug, Default)]
pub(super) struct Group {
    answer: OnceLock<Result<()>>,
}

impl Group {
    pub(super) fn answer(&self) -> Option<Result<()>> {
        self.answer.get().cloned()
    }

    /// The first answer stands.
    fn set(&self, answer: Result<()>) {
        self.answer.get_or_init(|| answer);
    }
}

/// The end of the log's frames in the active segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where the next frame goes.
    pub(super) position: u64,
    /// The offset of the next record.
    pub(super) end: Offset,
    /// Checksum of the log's last data frame.
    pub(super) chain: u32,
    /// Records in the active segment.
    pub(super) records: u64,
}

/// The segment that is written to.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub(super) file: Arc<dyn StorageFile>,
    /// The file's name within the store.
    pub(super) name: Arc<str>,
    pub(super) salt: Salt,
    /// Up to where the file has bytes already.
    pub(super) allocated: u64,
}

/// Frames that wait for the next commit, and what they will have changed.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) bytes: Vec<u8>,
    pub(super) group: Arc<Group>,
    /// Whether a `write` has returned the offset of one of these frames: then they must not fail
    /// by themselves.
    pub(super) promised: bool,
    index: Vec<(Offset, u64)>,
    upstreams: Vec<(String, u64)>,
}

/// What one commit writes and syncs.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) pending: Pending,
    pub(super) active: Active,
    pub(super) start: u64,
    after: Place,
}

/// Which calls are served.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    Open,
    /// Takes no more; what waits is still written.
    Closing,
    Closed,
    Stopped(Arc<str>),
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// Someone does I/O; only they may.
    pub(super) busy: bool,
    /// A roll is under way; no frame gets a place.
    pub(super) rolling: bool,
    pub(super) active: Active,
    pub(super) durable: Place,
    /// Where the log ends with all that is pending.
    pub(super) next: Place,
    pub(super) table: Table,
    /// The table with all that is pending.
    pub(super) pending_table: Table,
    pub(super) pending: Pending,
    in_flight: Option<Arc<Group>>,
    spare: Vec<u8>,
    /// The active segment is sealed, and this one has yet to get its name.
    pub(super) next_segment: Option<Next>,
}

impl State {
    pub(super) fn new(active: Active, durable: Place, table: Table) -> Self {
        Self {
            phase: Phase::Open,
            busy: false,
            rolling: false,
            active,
            durable,
            next: durable,
            pending_table: table.clone(),
            table,
            pending: Pending::default(),
            in_flight: None,
            spare: Vec::new(),
            next_segment: None,
        }
    }

    /// Refuses calls that the phase does not serve.
    pub(super) fn usable(&self) -> Result<()> {
        match &self.phase {
            Phase::Open => Ok(()),
            Phase::Closing | Phase::Closed => Err(Error::Closed),
            Phase::Stopped(reason) => Err(Error::Stopped {
                reason: Arc::clone(reason),
            }),
        }
    }

    /// Whether this frame may go into the active segment.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] where it fits neither this segment nor a new one.
    pub(super) fn room_for(&self, draft: &Draft, segment_bytes: u64) -> Result<bool> {
        if self.next_segment.is_some() {
            return Ok(false);
        }
        let needed = self
            .next
            .position
            .saturating_add(self.head_len())
            .saturating_add(draft.frame_len())
            .saturating_add(to_u64(SEAL_LEN));
        if needed <= segment_bytes {
            return Ok(true);
        }
        // A segment is named after its first record: one without records cannot be followed by
        // another. So it grows; also, a frame larger than a segment gets one of its own.
        if self.next.records > 0 {
            return Ok(false);
        }
        // Frames that only move an upstream's position leave room for the largest frame with
        // records: it must always come in, because only behind it the log can roll again.
        let kept = if draft.count() == 0 {
            to_u64(HEADER_LEN.saturating_add(FRAME_BYTES_MAX))
        } else {
            0
        };
        let max = u64::from(u32::MAX).saturating_sub(kept);
        if needed > max {
            return Err(Error::TooLarge {
                what: "segment without records",
                len: to_usize(needed),
                max: to_usize(max),
            });
        }
        Ok(true)
    }

    /// An upper bound for the table frame, if one has to go before the next frame.
    fn head_len(&self) -> u64 {
        if self.needs_table() {
            to_u64(crate::limits::UPSTREAM_TABLE_BYTES_MAX)
        } else {
            0
        }
    }

    fn needs_table(&self) -> bool {
        self.next.position == SEGMENT_HEADER_LEN && !self.pending_table.is_empty()
    }

    /// Gives the frame its place behind all others. The caller has asked [`Self::room_for`].
    pub(super) fn place(
        &mut self,
        draft: &Draft,
        upstream: Option<(&str, u64)>,
        now_ms: u64,
    ) -> Result<Range<Offset>> {
        if self.needs_table() {
            let table = Draft::table(&self.pending_table)?;
            self.push(&table, now_ms);
        }
        let first = self.next.end;
        self.push(draft, now_ms);
        if let Some((name, position)) = upstream {
            self.pending_table.advance(name, position);
            self.pending.upstreams.push((name.to_owned(), position));
        }
        Ok(first..self.next.end)
    }

    fn push(&mut self, draft: &Draft, now_ms: u64) {
        let spot = Spot {
            first: self.next.end,
            // A roll syncs, so all that is not proven lies in this segment.
            unproven: self.next.position.saturating_sub(self.durable.position),
            recorded_at_ms: now_ms,
            salt: self.active.salt.at(self.next.position),
        };
        if draft.count() > 0 {
            let entry = (self.next.end, self.next.position);
            self.pending.index.push(entry);
        }
        let chain = draft.put(&mut self.pending.bytes, &spot);
        let count = u64::from(draft.count());
        self.next = Place {
            position: self.next.position.saturating_add(draft.frame_len()),
            end: self.next.end.plus(count),
            chain,
            records: self.next.records.saturating_add(count),
        };
    }

    /// A note for behind the last frame, as its bytes.
    pub(super) fn note(&self, now_ms: u64) -> Vec<u8> {
        let header = Header {
            payload_len: 0,
            first: self.durable.end,
            count: 0,
            unproven: 0,
            recorded_at_ms: now_ms,
            kind: FrameKind::Note,
            flags: 0,
            payload_crc: 0,
        };
        frame::encode(header, &[], self.active.salt.at(self.durable.position)).0
    }

    /// The group after which everything placed so far is durable; `None` if it is already.
    pub(super) fn last_group(&self) -> Option<Arc<Group>> {
        if self.pending.bytes.is_empty() {
            self.in_flight.clone()
        } else {
            Some(Arc::clone(&self.pending.group))
        }
    }

    /// Takes all that is pending, for a commit. Frames placed from now on form the next group.
    pub(super) fn take_batch(&mut self) -> Batch {
        let fresh = Pending {
            bytes: std::mem::take(&mut self.spare),
            ..Pending::default()
        };
        let pending = std::mem::replace(&mut self.pending, fresh);
        self.busy = true;
        self.in_flight = Some(Arc::clone(&pending.group));
        Batch {
            start: self.durable.position,
            pending,
            active: self.active.clone(),
            after: self.next,
        }
    }

    /// A commit is on disk: what it held becomes visible, and its callers hear so.
    pub(super) fn publish(&mut self, batch: Batch, catalog: &Catalog) {
        let Batch { pending, after, .. } = batch;
        self.durable = after;
        for (name, position) in &pending.upstreams {
            self.table.advance(name, *position);
        }
        for (offset, position) in &pending.index {
            catalog.note(*offset, *position);
        }
        catalog.publish(after.end, after.position);
        self.in_flight = None;
        pending.group.set(Ok(()));
        let mut bytes = pending.bytes;
        if bytes.capacity() <= SPARE_BYTES_MAX && self.spare.capacity() < bytes.capacity() {
            bytes.clear();
            self.spare = bytes;
        }
    }

    /// A commit failed. The frames placed behind it carry offsets that build on its own, so they
    /// fail with it.
    ///
    /// With `stop` it is not known what is on disk, and the handle stops. It also stops if a
    /// `write` had already been told an offset that is now lost.
    pub(super) fn fail(&mut self, batch: &Batch, failure: Failure) {
        let pending = std::mem::take(&mut self.pending);
        let promise_broken = batch.pending.promised || pending.promised;
        self.in_flight = None;
        self.next = self.durable;
        self.pending_table = self.table.clone();
        match failure {
            Failure::Erased(error) => {
                batch.pending.group.set(Err(error.clone()));
                if promise_broken {
                    self.stop(&error);
                    // Never handed to the system.
                    pending.group.set(self.usable());
                } else {
                    pending.group.set(Err(error));
                }
            }
            Failure::Unknown(error) => {
                self.stop(&error);
                batch.pending.group.set(Err(error));
                pending.group.set(self.usable());
            }
        }
    }

    /// No more appends on this handle.
    pub(super) fn stop(&mut self, error: &Error) {
        tracing::error!(%error, "the log takes no more appends");
        self.phase = Phase::Stopped(error.to_string().into());
    }
}

/// What came of an attempt to write.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing of it is on disk, and that is synced.
    Erased(Error),
    /// Some of it may be on disk, or become so later.
    Unknown(Error),
}
