//! The crash mark: what a consumer was folding when its process died.
//!
//! A plain file, one write, never synced: it has to survive the death of the process, not of the
//! machine. Layout, 41 bytes little endian: from (8), to (8), at (8), event (8), starts (4), state
//! (1: 0 idle, 1 range, 2 record), CRC-32 of all before it (4). Anything else is no mark.
//!
//! - A range is marked before it is folded and unmarked after. A start that finds one folds that
//!   range one record at a time, with the mark on exactly the record and the event being judged.
//! - A start counts only if the process died in that careful pass, on the same mark
//!   (`machine_that_aborts_is_ended_after_max_attempts_starts`).

use crate::error::{Error, Result};
use crate::frame::Fields;
use crate::offset::Offset;
use crate::storage::{OpenMode, Storage, StorageFile, read_full, write_full};

const MARK_LEN: usize = 41;
const CRC_WIDTH: usize = 4;

/// The event being judged in a careful pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judging {
    /// The record being folded.
    pub(crate) at: Offset,
    /// The event handed to the machine.
    pub(crate) event: Offset,
    /// How many starts have reached this point.
    pub(crate) starts: u32,
}

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) from: Offset,
    pub(crate) to: Offset,
    pub(crate) judging: Option<Judging>,
}

impl Mark {
    fn encode(mark: Option<&Self>) -> [u8; MARK_LEN] {
        let from = mark.map_or(Offset::ZERO, |mark| mark.from);
        let to = mark.map_or(Offset::ZERO, |mark| mark.to);
        let judging = mark.and_then(|mark| mark.judging);
        let state = match (mark, judging) {
            (None, _) => 0,
            (Some(_), None) => 1,
            (Some(_), Some(_)) => 2,
        };
        let judging = judging.unwrap_or(Judging {
            at: Offset::ZERO,
            event: Offset::ZERO,
            starts: 0,
        });
        let mut bytes = Vec::with_capacity(MARK_LEN);
        for number in [from, to, judging.at, judging.event] {
            bytes.extend_from_slice(&number.get().to_le_bytes());
        }
        bytes.extend_from_slice(&judging.starts.to_le_bytes());
        bytes.push(state);
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        let mut array = [0; MARK_LEN];
        array.copy_from_slice(&bytes);
        array
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_at_checked(MARK_LEN.checked_sub(CRC_WIDTH)?)?;
        if crc != crc32fast::hash(body).to_le_bytes() {
            return None;
        }
        let mut fields = Fields(body);
        let mut offset = || fields.u64().map(Offset::new);
        let (from, to, at, event) = (offset()?, offset()?, offset()?, offset()?);
        let starts = fields.u32()?;
        match fields.u8()? {
            1 => Some(Self {
                from,
                to,
                judging: None,
            }),
            2 => Some(Self {
                from,
                to,
                judging: Some(Judging { at, event, starts }),
            }),
            _ => None,
        }
    }
}

/// The open mark file of one consumer.
#[derive(Debug)]
pub(crate) struct MarkFile {
    file: Box<dyn StorageFile>,
    path: std::path::PathBuf,
}

impl MarkFile {
    /// Opens the file, creating it if need be, and reads what the last process left in it.
    pub(crate) fn open(storage: &dyn Storage, dir: &str) -> Result<(Self, Option<Mark>)> {
        let name = format!("{dir}/MARK");
        let path = storage.path(&name);
        let fail =
            |op, source| Error::io(op, path.clone(), None, crate::num::to_u64(MARK_LEN), source);
        let file = match storage.open(&name, OpenMode::Write) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => storage
                .open(&name, OpenMode::Create)
                .map_err(|error| fail("create", error))?,
            Err(error) => return Err(fail("open", error)),
        };
        let mut bytes = [0; MARK_LEN];
        let read = read_full(&*file, &mut bytes, 0).map_err(|error| fail("read", error))?;
        let mark = bytes.get(..read).and_then(Mark::decode);
        Ok((Self { file, path }, mark))
    }

    /// Unmarks for good after a careful pass: a mark that counts starts must not come back after a
    /// power loss, or an innocent event would pay for it.
    pub(crate) fn clear(&self) -> Result<()> {
        self.set(None)?;
        self.file
            .sync()
            .map_err(|source| Error::io("sync", self.path.clone(), None, 0, source))
    }

    /// Replaces the mark; `None` is idle.
    pub(crate) fn set(&self, mark: Option<&Mark>) -> Result<()> {
        write_full(&*self.file, &Mark::encode(mark), 0).map_err(|source| {
            Error::io(
                "write",
                self.path.clone(),
                Some(0),
                crate::num::to_u64(MARK_LEN),
                source,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_round_trip_and_damage_is_no_mark() {
        let judging = Judging {
            at: Offset::new(3),
            event: Offset::new(2),
            starts: 9,
        };
        let mark = Mark {
            from: Offset::new(1),
            to: Offset::new(4),
            judging: Some(judging),
        };
        let bytes = Mark::encode(Some(&mark));
        assert_eq!(Mark::decode(&bytes), Some(mark));
        assert_eq!(Mark::decode(&Mark::encode(None)), None);
        for bit in 0..MARK_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Mark::decode(&bad), None, "bit {bit}");
        }
        for cut in 0..MARK_LEN {
            assert_eq!(Mark::decode(&bytes[..cut]), None);
        }
    }
}
