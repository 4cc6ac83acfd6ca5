//! What a commit does to the active segment's file: one write and one sync, zeros written ahead,
//! the note behind it, and the erasing of a write that failed.
//!
//! Invariants:
//! - One commit is one write and one sync: `one_commit_is_one_write_and_one_sync`.
//! - Without space for zeros ahead frames are stored all the same:
//!   `zeros_ahead_are_only_for_speed`.
//! - The place of a failed write is zeros again:
//!   `append_after_a_full_disk_reuses_the_place_and_the_offset`.

use std::io;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::frame::SEAL_LEN;
use crate::log::PREALLOCATE_BYTES;
use crate::log::commit::{Guard, Writer};
use crate::log::pending::{Active, Batch, Failure};
use crate::log::segment::write_zeros;
use crate::num::to_u64;
use crate::storage::write_full;

impl Writer {
    /// Puts the batch on disk; answers up to where the file has bytes afterwards.
    pub(super) fn store(&self, batch: &Batch) -> Result<u64, Failure> {
        let Active { file, name, .. } = &batch.active;
        let bytes = &batch.pending.bytes;
        if let Err(source) = write_full(&**file, bytes, batch.start) {
            if batch.pending.promised {
                return Err(Failure::Unknown(self.unknown("write", name, source)));
            }
            return Err(self.erase(&batch.active, batch.start, to_u64(bytes.len()), source));
        }
        let end = batch.start.saturating_add(to_u64(bytes.len()));
        let allocated = self.extend(&batch.active, end);
        match file.sync() {
            Ok(()) => Ok(allocated),
            Err(source) => Err(Failure::Unknown(self.unknown("sync", name, source))),
        }
    }

    /// After a failed write: zeros over what may have been written, synced.
    pub(super) fn erase(
        &self,
        active: &Active,
        start: u64,
        len: u64,
        source: io::Error,
    ) -> Failure {
        let file = &*active.file;
        let erased = file.len().and_then(|file_len| {
            // Beyond the file's end nothing was written, and there may be no space for zeros.
            let end = file_len.min(start.saturating_add(len));
            write_zeros(file, start, end)?;
            file.sync()
        });
        match erased {
            Ok(()) => {
                let path = self.storage.path(&active.name);
                Failure::Erased(Error::io("write", path, Some(start), len, source))
            }
            Err(error) => {
                tracing::error!(%error, file = %active.name, "failed write could not be erased");
                Failure::Unknown(self.unknown("write", &active.name, source))
            }
        }
    }

    /// Writes zeros ahead if frames have come near the end of those there are. Only for speed: if
    /// it fails, frames extend the file themselves.
    fn extend(&self, active: &Active, end: u64) -> u64 {
        let needed = end.saturating_add(to_u64(SEAL_LEN));
        if needed <= active.allocated {
            return active.allocated;
        }
        let target = active
            .allocated
            .saturating_add(PREALLOCATE_BYTES)
            .min(self.options.segment_bytes)
            .max(needed);
        let from = active.allocated.max(end);
        match write_zeros(&*active.file, from, target) {
            Ok(()) => target,
            Err(error) => {
                tracing::warn!(%error, file = %active.name, "could not write zeros ahead");
                from
            }
        }
    }

    /// Puts a note behind the last frame. The caller has seen that nothing is pending and, unless
    /// it is busy itself, that nobody is.
    pub(super) fn write_note<'a>(
        &'a self,
        mut state: Guard<'a>,
        sync: bool,
    ) -> (Guard<'a>, Result<()>) {
        // A sealed segment needs no note, and has no place for one.
        if state.next_segment.is_some() {
            return (state, Ok(()));
        }
        state.busy = true;
        let Active { file, name, .. } = state.active.clone();
        let position = state.durable.position;
        let note = state.note(self.storage.now_ms());
        drop(state);
        let fail = |op, source| {
            let needed = to_u64(note.len());
            Error::io(op, self.storage.path(&name), Some(position), needed, source)
        };
        let mut answer = write_full(&*file, &note, position).map_err(|error| fail("write", error));
        if answer.is_ok() && sync {
            answer = file.sync().map_err(|error| fail("sync", error));
        }
        if let Err(error) = &answer {
            // Not a failed append: the next frame goes over whatever is there now.
            tracing::warn!(%error, "could not write a note");
        }
        let mut state = self.lock();
        self.release(&mut state);
        (state, answer)
    }

    pub(super) fn unknown(&self, op: &'static str, name: &str, source: io::Error) -> Error {
        Error::OutcomeUnknown {
            op,
            file: self.storage.path(name),
            source: Arc::new(source),
        }
    }
}
