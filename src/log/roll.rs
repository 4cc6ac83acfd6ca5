//! The roll: closes the active segment and starts the next one.
//!
//! The steps, in order, and what a crash after each leaves:
//! 1. Write and sync what is pending; sync the old segment. Nothing but a longer log.
//! 2. Create `<base>.seg.new` with zeros and header, sync it and its directory. A `.seg.new` beside
//!    an unsealed segment: discarded at open.
//! 3. Write the seal into the old segment, sync. A sealed segment and a `.seg.new` with a valid
//!    header: open finishes the roll.
//! 4. Rename to `<base>.seg`, sync the directory. A new, empty segment.
//! 5. Only now frames may go into it.
//!
//! A failure in step 2, or of the seal's write once that is erased, fails only the call that wanted
//! the roll; so does a lack of descriptors or space in step 4, which the next call repeats. Any
//! other failure from the first write on stops the handle.
//!
//! Invariants:
//! - The steps come in this order: `calls_come_in_the_order_that_durability_needs`.
//! - A crash between any two of them loses nothing:
//!   `every_crash_leaves_all_that_was_acknowledged_and_whole_frames_only`.
//! - A roll that failed does not stand in the way of the next:
//!   `roll_that_fails_before_the_seal_fails_one_call_and_the_next_succeeds`,
//!   `directory_sync_without_a_descriptor_is_repeated_by_the_next_call`.

use std::io;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::frame::{self, FrameKind, Header, Salt, Seal};
use crate::log::catalog::Segment;
use crate::log::commit::{Guard, Writer};
use crate::log::pending::{Active, Failure, Place, State};
use crate::log::segment::{self, SEGMENT_HEADER_LEN, SegmentHeader, SegmentName};
use crate::num::to_u64;
use crate::storage::{StorageFile, write_full};

/// A segment that stands ready behind a sealed one.
#[derive(Clone, Debug)]
pub(super) struct Next {
    file: Arc<dyn StorageFile>,
    header: SegmentHeader,
    renamed: bool,
}

/// Why a roll did not finish.
struct Undone {
    error: Error,
    stop: bool,
    next: Option<Box<Next>>,
}

impl Undone {
    /// Only the call that wanted the roll fails.
    fn once(error: Error) -> Self {
        Self {
            error,
            stop: false,
            next: None,
        }
    }

    /// The handle stops.
    fn stop(error: Error) -> Self {
        Self {
            error,
            stop: true,
            next: None,
        }
    }
}

impl Writer {
    /// Rolls, or does what has to be done first; the caller looks at everything again. The caller
    /// has seen that nobody is busy.
    pub(super) fn roll<'a>(&'a self, mut state: Guard<'a>) -> Result<Guard<'a>> {
        state.rolling = true;
        if !state.pending.bytes.is_empty() {
            state = self.commit(state, false);
        }
        let mut answer = state.usable();
        if answer.is_ok() {
            (state, answer) = self.roll_empty(state);
        }
        state.rolling = false;
        self.release(&mut state);
        answer.map(|()| state)
    }

    /// Rolls with nothing pending.
    fn roll_empty<'a>(&'a self, mut state: Guard<'a>) -> (Guard<'a>, Result<()>) {
        state.busy = true;
        let (active, place) = (state.active.clone(), state.durable);
        let prepared = state.next_segment.take();
        drop(state);
        let rolled = match prepared {
            Some(next) => self.name(next),
            None => self
                .prepare(&active, place)
                .and_then(|next| self.name(next)),
        };
        let mut state = self.lock();
        let answer = match rolled {
            Ok(next) => {
                self.activate(&mut state, next);
                Ok(())
            }
            Err(undone) => {
                state.next_segment = undone.next.map(|next| *next);
                if undone.stop {
                    state.stop(&undone.error);
                    state.usable()
                } else {
                    tracing::warn!(error = %undone.error, "roll failed");
                    Err(undone.error)
                }
            }
        };
        (state, answer)
    }

    /// Steps 1 to 3.
    fn prepare(&self, active: &Active, place: Place) -> Result<Next, Undone> {
        let unknown = |source| Undone::stop(self.unknown("sync", &active.name, source));
        active.file.sync().map_err(unknown)?;
        let header = SegmentHeader {
            log_id: self.log_id,
            epoch: self.epoch,
            salt: Salt(self.storage.random()),
            base: place.end,
            chain: place.chain,
        };
        let file = segment::create(&*self.storage, &header, self.options.first_chunk())
            .map_err(Undone::once)?;
        if let Err(source) = self.seal(active, place) {
            let len = to_u64(frame::SEAL_LEN);
            return Err(match self.erase(active, place.position, len, source) {
                Failure::Erased(error) => {
                    self.discard(&header);
                    Undone::once(error)
                }
                Failure::Unknown(error) => Undone::stop(error),
            });
        }
        active.file.sync().map_err(unknown)?;
        Ok(Next {
            file: file.into(),
            header,
            renamed: false,
        })
    }

    fn seal(&self, active: &Active, place: Place) -> io::Result<()> {
        let seal = Seal {
            end: place.end,
            records: place.records,
            chain: place.chain,
        };
        let header = Header {
            payload_len: 0,
            first: place.end,
            count: 0,
            unproven: 0,
            recorded_at_ms: self.storage.now_ms(),
            kind: FrameKind::Seal,
            flags: 0,
            payload_crc: 0,
        };
        let salt = active.salt.at(place.position);
        let (bytes, _) = frame::encode(header, &seal.encode(), salt);
        write_full(&*active.file, &bytes, place.position)
    }

    /// Step 4. What can be repeated keeps the prepared segment for the next try.
    fn name(&self, mut next: Next) -> Result<Next, Undone> {
        let name = SegmentName::live(next.header.base).to_path();
        let fail = |op, source| Error::io(op, self.storage.path(&name), None, 0, source);
        if !next.renamed {
            let fresh = SegmentName::fresh(next.header.base).to_path();
            if let Err(source) = self.storage.rename(&fresh, &name) {
                let error = fail("rename", source);
                // The system refused before it changed anything.
                let again = matches!(error, Error::NoSpace { .. } | Error::TooManyFiles { .. });
                return Err(Undone {
                    error,
                    stop: !again,
                    next: again.then(|| Box::new(next)),
                });
            }
            next.renamed = true;
        }
        if let Err(error) = segment::sync_log_dir(&*self.storage) {
            // Without a descriptor there was no sync that could have failed.
            let again = matches!(error, Error::TooManyFiles { .. });
            return Err(Undone {
                error,
                stop: !again,
                next: again.then(|| Box::new(next)),
            });
        }
        Ok(next)
    }

    fn activate(&self, state: &mut State, next: Next) {
        let Next { file, header, .. } = next;
        let name = SegmentName::live(header.base).to_path();
        tracing::debug!(file = name, "new segment");
        self.catalog.add(Segment::new(&header));
        state.active = Active {
            file,
            name: name.into(),
            salt: header.salt,
            allocated: self.options.first_chunk(),
        };
        state.durable = Place {
            position: SEGMENT_HEADER_LEN,
            records: 0,
            ..state.durable
        };
        state.next = state.durable;
    }

    /// Takes a half-made segment away again. Best effort: open discards it as well, and the next
    /// roll writes over it.
    fn discard(&self, header: &SegmentHeader) {
        let name = SegmentName::fresh(header.base).to_path();
        if let Err(error) = self.storage.remove(&name) {
            tracing::debug!(%error, file = name, "could not remove a half-made segment");
        }
    }
}
