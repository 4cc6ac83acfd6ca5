//! [`Records`]: a replay that lends each record instead of making a value of it.

use crate::error::Result;
use crate::event::{Decision, EventRef, RecordKind};
use crate::log::Log;
use crate::log::reader::Cursor;
use crate::offset::Offset;

/// The durable records from one offset on, one by one, each lent from the buffer it was read into.
///
/// The fastest way to read the log: checked as every other, no allocation per event, memory of one
/// frame or 256 KiB. Not an `Iterator`, since each record ends before the next begins.
#[derive(Debug)]
pub struct Records {
    log: Log,
    cursor: Cursor,
}

/// A record that still lies in the buffer it was read into.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordRef<'a> {
    /// Its number.
    pub offset: Offset,
    /// When it was appended, in milliseconds since 1970-01-01T00:00:00Z, by the clock of the
    /// machine that appended it.
    pub recorded_at_ms: u64,
    /// What it says.
    pub body: BodyRef<'a>,
}

/// What a [`RecordRef`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyRef<'a> {
    /// A producer's event.
    Event(EventRef<'a>),
    /// A decision about a consumer.
    Decision(Decision),
}

impl<'a> RecordRef<'a> {
    /// The event, if it is one.
    #[must_use]
    pub const fn event(&self) -> Option<EventRef<'a>> {
        match self.body {
            BodyRef::Event(event) => Some(event),
            BodyRef::Decision(_) => None,
        }
    }
}

impl Records {
    /// The next record; `None` at what was the durable end when reading began, or when `None` was
    /// last answered: ask again to go on with what was appended since.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`](crate::Error::Corrupt),
    /// [`Error::UnsupportedFormat`](crate::Error::UnsupportedFormat) and
    /// [`Error::Io`](crate::Error::Io): the record cannot be read; all before it were handed out.
    /// [`Error::Closed`](crate::Error::Closed): the store was closed.
    #[expect(
        clippy::should_implement_trait,
        reason = "what it lends ends before the next: no Iterator can say so"
    )]
    pub fn next(&mut self) -> Result<Option<RecordRef<'_>>> {
        let offset = self.cursor.offset();
        if self.cursor.is_at_end() {
            // What was appended meanwhile is for the next call, so that a replay ends.
            self.cursor = self.log.cursor_from(offset)?;
            return Ok(None);
        }
        let Self { log, cursor } = self;
        let Some(raw) = cursor.next()? else {
            return Ok(None);
        };
        let body = match raw.kind {
            RecordKind::Event => raw.event_ref().map(BodyRef::Event),
            RecordKind::Decision => raw.decision().map(BodyRef::Decision),
        };
        match body {
            Ok(body) => Ok(Some(RecordRef {
                offset,
                recorded_at_ms: raw.recorded_at_ms,
                body,
            })),
            Err(error) => Err(log.undecodable(offset, &error)),
        }
    }

    /// The offset of the record that comes next.
    #[must_use]
    pub fn offset(&self) -> Offset {
        self.cursor.offset()
    }
}

impl Log {
    /// The records from `from` on, lent.
    ///
    /// # Errors
    ///
    /// [`Error::OffsetOutOfRange`](crate::Error::OffsetOutOfRange) beyond the durable end,
    /// [`Error::Closed`](crate::Error::Closed).
    pub(crate) fn records(&self, from: Offset) -> Result<Records> {
        Ok(Records {
            log: self.clone(),
            cursor: self.cursor_from(from)?,
        })
    }

    fn cursor_from(&self, from: Offset) -> Result<Cursor> {
        let end = self.end_above(from)?;
        self.cursor(from, end)
    }
}
