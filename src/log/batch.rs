//! What a log gives to read: batches, single records, cursors, decisions. All of it is durable, and
//! all of it goes through [`Cursor`].

use crate::error::{Error, Result};
use crate::event::{Body, Decision, Event, Record, RecordError, RecordKind};
use crate::frame::FLAG_DECISION;
use crate::log::Log;
use crate::log::reader::{self, Cursor, FrameInfo, Headers};
use crate::log::recovery;
use crate::num::to_u64;
use crate::offset::Offset;

/// Some consecutive records, and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batch {
    /// The records, without a hole; none if there are none yet.
    pub records: Vec<Record>,
    /// The offset to ask for next: that after the last record, or the one asked for if there was
    /// no record.
    pub next: Offset,
}

impl Log {
    /// At most `max` records from `from` on, and at most `batch_bytes_max` bytes of them, but
    /// always one if there is one.
    ///
    /// # Errors
    ///
    /// - [`Error::ZeroBatch`] for a `max` of 0.
    /// - [`Error::OffsetOutOfRange`] for a `from` above the durable end.
    /// - [`Error::Corrupt`], [`Error::UnsupportedFormat`], [`Error::Io`] and their like: the first
    ///   record cannot be read. If a later one cannot, the batch ends before it.
    pub(crate) fn next_batch(&self, from: Offset, max: usize) -> Result<Batch> {
        if max == 0 {
            return Err(Error::ZeroBatch);
        }
        let end = self.end_above(from)?;
        let mut cursor = self.cursor(from, end.min(from.plus(to_u64(max))))?;
        let mut batch = Batch {
            records: Vec::new(),
            next: from,
        };
        let mut bytes = 0_usize;
        loop {
            let offset = cursor.offset();
            let record = match cursor.next() {
                Ok(None) => return Ok(batch),
                Ok(Some(raw)) => {
                    bytes = bytes.saturating_add(raw.body.len());
                    let over = bytes > self.inner.options.batch_bytes_max;
                    if over && !batch.records.is_empty() {
                        return Ok(batch);
                    }
                    let record = raw.record();
                    record.map_err(|error| cursor.blame(offset, &error))
                }
                Err(error) => Err(error),
            };
            match record {
                Ok(record) => batch.records.push(record),
                Err(error) if batch.records.is_empty() => return Err(error),
                Err(_) => return Ok(batch),
            }
            batch.next = offset.next();
        }
    }

    /// The record at `offset`.
    ///
    /// # Errors
    ///
    /// [`Error::OffsetOutOfRange`] if there is none yet; else as [`Self::next_batch`].
    pub(crate) fn read(&self, offset: Offset) -> Result<Record> {
        let batch = self.next_batch(offset, 1)?;
        let end = batch.next;
        batch
            .records
            .into_iter()
            .next()
            .ok_or(Error::OffsetOutOfRange {
                requested: offset,
                first: Offset::ZERO,
                end,
            })
    }

    /// The last event stored from an upstream; `None` if there was none.
    ///
    /// # Errors
    ///
    /// As [`Self::next_batch`].
    pub(crate) fn upstream_last(&self, upstream: &str) -> Result<Option<Event>> {
        let end = self.end_above(Offset::ZERO)?;
        let Some(offset) = reader::last_from(&self.inner.catalog, upstream, end)? else {
            return Ok(None);
        };
        match self.read(offset)?.body {
            Body::Event(event) => Ok(Some(event)),
            Body::Decision(_) => Ok(None),
        }
    }

    /// The records of `from..to`, one by one, borrowed.
    ///
    /// # Errors
    ///
    /// [`Error::OffsetOutOfRange`] for an end above the durable one.
    pub(crate) fn cursor(&self, from: Offset, to: Offset) -> Result<Cursor> {
        self.end_above(from.max(to))?;
        Ok(Cursor::new(&self.inner.catalog, from, to))
    }

    /// Checksum of the frame that holds the record before `offset`: it stands for everything
    /// below, as far as that frame goes back. 0 for offset 0.
    ///
    /// # Errors
    ///
    /// As [`Self::next_batch`].
    pub(crate) fn frame_crc_before(&self, offset: Offset) -> Result<u32> {
        self.end_above(offset)?;
        reader::frame_crc_before(&self.inner.catalog, offset)
    }

    /// Reads every segment to its last byte: frames without records, seals, and what stands behind
    /// them. Answers the number of segments, data frames and bytes in use.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] and its like name what is wrong; [`Error::Io`] where it cannot be read.
    pub(crate) fn check(&self) -> Result<(u64, u64, u64)> {
        self.end_above(Offset::ZERO)?;
        let (mut segments, mut frames, mut bytes) = (0_u64, 0_u64, 0_u64);
        for info in self.inner.catalog.segments() {
            let checked = recovery::check(&self.inner.catalog, &info)?;
            segments = segments.saturating_add(1);
            frames = frames.saturating_add(checked.frames);
            bytes = bytes.saturating_add(checked.bytes);
        }
        Ok((segments, frames, bytes))
    }

    /// The error for the record at `offset`, which was read and does not decode; it names the
    /// place.
    pub(crate) fn undecodable(&self, offset: Offset, error: &RecordError) -> Error {
        let mut cursor = Cursor::new(&self.inner.catalog, offset, offset.next());
        match cursor.next() {
            Ok(_) => cursor.blame(offset, error),
            Err(error) => error,
        }
    }

    /// All durable decisions from `from` on, by one pass over the frames' headers.
    ///
    /// # Errors
    ///
    /// As [`Self::next_batch`].
    pub(crate) fn decisions(&self, from: Offset) -> Result<Vec<(Offset, Decision)>> {
        let end = self.end_above(from)?;
        let catalog = &self.inner.catalog;
        let mut headers = Headers::new(catalog, from, end);
        let mut decisions = Vec::new();
        while let Some(FrameInfo { header, .. }) = headers.next()? {
            if header.flags & FLAG_DECISION == 0 {
                continue;
            }
            let mut cursor = Cursor::new(catalog, header.first.max(from), header.end().min(end));
            loop {
                let offset = cursor.offset();
                let decision = match cursor.next()? {
                    None => break,
                    Some(raw) if raw.kind == RecordKind::Decision => raw.decision(),
                    Some(_) => continue,
                };
                let decision = decision.map_err(|error| cursor.blame(offset, &error))?;
                decisions.push((offset, decision));
            }
        }
        Ok(decisions)
    }
}
