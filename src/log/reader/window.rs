//! A window: the bytes of one file around a position that moves forward, read in chunks that grow,
//! and never more of them than the file has.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::event::RecordError;
use crate::num::{to_u64, to_usize};
use crate::offset::Offset;
use crate::storage::{Storage, StorageFile, read_full};

/// The first read of a file: about what lies between two index entries.
const CHUNK_MIN: usize = 16 * 1024;
/// The largest read, a longer frame aside.
pub(crate) const CHUNK_MAX: usize = 256 * 1024;

/// The bytes of one file around a moving position.
#[derive(Debug)]
pub(crate) struct Window {
    storage: Arc<dyn Storage>,
    name: String,
    file: Arc<dyn StorageFile>,
    /// Nothing at or behind this position is read.
    limit: u64,
    buf: Vec<u8>,
    start: u64,
    chunk: usize,
}

impl Window {
    pub(crate) fn new(
        storage: &Arc<dyn Storage>,
        name: String,
        file: Arc<dyn StorageFile>,
        limit: u64,
    ) -> Self {
        Self {
            storage: Arc::clone(storage),
            name,
            file,
            limit,
            buf: Vec::new(),
            start: 0,
            chunk: CHUNK_MIN,
        }
    }

    /// Bytes from `position` on: `want` of them, or more, or fewer where the file or the limit ends
    /// before.
    pub(crate) fn at(&mut self, position: u64, want: usize) -> Result<&[u8]> {
        if self.loaded(position).len() < want {
            self.fill(position, want)
                .map_err(|error| self.io("read", position, error))?;
        }
        Ok(self.loaded(position))
    }

    /// What is in memory from `position` on.
    pub(super) fn loaded(&self, position: u64) -> &[u8] {
        position
            .checked_sub(self.start)
            .and_then(|skip| self.buf.get(to_usize(skip)..))
            .unwrap_or_default()
    }

    fn fill(&mut self, position: u64, want: usize) -> std::io::Result<()> {
        let mut len = to_u64(want.max(self.chunk)).min(self.limit.saturating_sub(position));
        if len > to_u64(CHUNK_MAX) {
            // Whatever a header claims: no more memory than there are bytes.
            len = len.min(self.file.len()?.saturating_sub(position));
        }
        let len = to_usize(len);
        self.chunk = self.chunk.saturating_mul(4).min(CHUNK_MAX);
        if len <= CHUNK_MAX && self.buf.capacity() > CHUNK_MAX.saturating_mul(2) {
            self.buf = Vec::new();
        }
        self.buf.resize(len, 0);
        self.start = position;
        let read = read_full(&*self.file, &mut self.buf, position);
        self.buf.truncate(read.as_ref().map_or(0, |read| *read));
        read.map(|_| ())
    }

    pub(crate) fn io(&self, op: &'static str, position: u64, error: std::io::Error) -> Error {
        Error::io(op, self.storage.path(&self.name), Some(position), 0, error)
    }

    pub(crate) fn corrupt(
        &self,
        position: u64,
        offset: Offset,
        reason: impl Into<String>,
    ) -> Error {
        Error::Corrupt {
            file: self.storage.path(&self.name),
            position,
            offset,
            reason: reason.into(),
        }
    }

    pub(crate) fn unsupported(&self, what: &'static str, found: u8) -> Error {
        Error::UnsupportedFormat {
            file: self.storage.path(&self.name),
            what,
            found: found.into(),
            supported: 1,
        }
    }

    /// The error for bytes that a checksum vouches for and that make no sense all the same.
    pub(crate) fn record_error(&self, position: u64, offset: Offset, error: &RecordError) -> Error {
        match error {
            RecordError::Unknown { version, .. } => self.unsupported("record", *version),
            RecordError::Header | RecordError::Body(_) => self.corrupt(
                position,
                offset,
                format!("the checksum holds, but what was written makes no sense: {error}"),
            ),
        }
    }
}
