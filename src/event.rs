//! What the log holds: [`Event`]s, [`Decision`]s, and [`Record`]s around them, with their bytes.
//!
//! Record bytes, inside a frame's payload (all integers little endian):
//!
//! | position | width | field |
//! |---|---|---|
//! | 0 | 1 | record kind: 1 event, 2 decision |
//! | 1 | 1 | version of the record encoding: 1 |
//! | 2 | 4 | FNV-1a 32 of the key the record is about; 0 for a decision about no one key |
//! | 6 | 1–5 | length of the body, LEB128 in its shortest form |
//! | … | length | the body: bincode, varint integers, little endian |
//!
//! The body of an event is `id, key, version, kind, payload`; of a decision `consumer, note,
//! action`. Kind, version and length stand outside bincode so that an unknown record is *named*,
//! never misread.

use serde::{Deserialize, Serialize};

use crate::codec::{self, CodecError};
use crate::error::{Error, Result};
use crate::limits;
use crate::num::{to_u32, to_usize};
use crate::offset::Offset;
use crate::partition;

mod borrowed;

pub use borrowed::EventRef;

/// What a producer sends.
///
/// `version` is the version of `key` that the event produces; the first is 1. It is signed because
/// producers send what they send: the fold judges it, the log keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// The producer's name for this event. Not empty; at most [`limits::ID_BYTES_MAX`] bytes.
    pub id: String,
    /// What the event is about. Not empty; at most [`limits::KEY_BYTES_MAX`] bytes.
    pub key: String,
    /// The version of `key` that the event produces, from 1.
    pub version: i64,
    /// What happened; the state machine knows the kinds. At most [`limits::KIND_BYTES_MAX`] bytes.
    pub kind: String,
    /// Opaque to foldlog. At most [`limits::PAYLOAD_BYTES_MAX`] bytes.
    #[serde(with = "payload_bytes")]
    pub payload: Vec<u8>,
}

/// Payloads go through serde as one run of bytes, not as a sequence of numbers: the encoding is
/// the same, the speed is not.
mod payload_bytes {
    use serde::{Deserializer, Serializer, de::Visitor};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(bytes.to_vec())
            }
            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Self::Value, E> {
                Ok(bytes)
            }
        }
        from.deserialize_bytes(Bytes)
    }
}

impl Event {
    /// An event with an empty payload.
    pub fn new(
        id: impl Into<String>,
        key: impl Into<String>,
        version: i64,
        kind: impl Into<String>,
    ) -> Self {
        Self {
            id: id.into(),
            key: key.into(),
            version,
            kind: kind.into(),
            payload: Vec::new(),
        }
    }

    /// The same event with this payload.
    #[must_use]
    pub fn with_payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Checks everything that append checks, without a log.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] for an empty id or key, [`Error::TooLarge`] for a field over its limit.
    pub fn check(&self) -> Result<()> {
        if self.id.is_empty() {
            return Err(Error::Empty { what: "id" });
        }
        if self.key.is_empty() {
            return Err(Error::Empty { what: "key" });
        }
        bounded("id", self.id.len(), limits::ID_BYTES_MAX)?;
        bounded("key", self.key.len(), limits::KEY_BYTES_MAX)?;
        bounded("kind", self.kind.len(), limits::KIND_BYTES_MAX)?;
        bounded("payload", self.payload.len(), limits::PAYLOAD_BYTES_MAX)
    }
}

pub(crate) fn bounded(what: &'static str, len: usize, max: usize) -> Result<()> {
    if len > max {
        Err(Error::TooLarge { what, len, max })
    } else {
        Ok(())
    }
}

/// What an operator or reconcile sends: a change of a consumer's state, as a record in the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Decision {
    /// The consumer it is for; the others pass over it.
    pub consumer: String,
    /// Who decided, and why. At most [`limits::NOTE_BYTES_MAX`] bytes.
    pub note: Option<String>,
    /// What was decided.
    pub action: Action,
}

/// What a [`Decision`] does.
///
/// The order of the variants is part of the on-disk format: new ones go to the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Action {
    /// The retry budget in force from here on; below 1 means 3.
    Configure {
        /// The new budget.
        max_attempts: u32,
    },
    /// One redelivery round over the waiting events below this offset.
    Redeliver {
        /// Exclusive bound.
        below: Offset,
    },
    /// Judge this dead letter again, with a fresh budget.
    Redrive {
        /// The event's offset.
        offset: Offset,
    },
    /// Resolve this dead letter without applying it, and end its hold.
    Discard {
        /// The event's offset.
        offset: Offset,
    },
    /// Resolve this dead letter and move the key's version past it, state unchanged.
    Skip {
        /// The event's offset.
        offset: Offset,
    },
    /// A repair: the row becomes `to`, if it still equals `from`.
    Fix {
        /// The row's key.
        key: String,
        /// The row the repair was computed against; `None` is no row.
        from: Option<FixRow>,
        /// The row afterwards; `None` removes it.
        to: Option<FixRow>,
        /// The machine's revision that encoded the states.
        revision: u32,
    },
    /// While record `at` was folded, judging `event` took the process down `attempts` times.
    Crashed {
        /// The record that was being folded.
        at: Offset,
        /// The event that was being judged.
        event: Offset,
        /// How many starts died there.
        attempts: u32,
    },
}

impl Action {
    /// The key this action is about, where the action itself names it.
    pub(crate) fn key(&self) -> Option<&str> {
        match self {
            Self::Fix { key, .. } => Some(key),
            Self::Configure { .. }
            | Self::Redeliver { .. }
            | Self::Redrive { .. }
            | Self::Discard { .. }
            | Self::Skip { .. }
            | Self::Crashed { .. } => None,
        }
    }
}

/// One side of a [`Action::Fix`]: a row's version and encoded state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FixRow {
    /// The row's version.
    pub version: i64,
    /// The row's encoded state; `None` is a row without one (its first version was skipped).
    pub state: Option<Vec<u8>>,
}

/// One entry read back from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub offset: Offset,
    /// When it was appended, in milliseconds since 1970-01-01T00:00:00Z, by the clock of the
    /// machine that appended it. For people: no verdict ever depends on it.
    pub recorded_at_ms: u64,
    /// What it says.
    pub body: Body,
}

/// What a [`Record`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A producer's event.
    Event(Event),
    /// A decision about a consumer.
    Decision(Decision),
}

/// The kind byte of a record header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Event,
    Decision,
}

const KIND_EVENT: u8 = 1;
const KIND_DECISION: u8 = 2;
const RECORD_VERSION: u8 = 1;
const FIXED_HEADER_LEN: usize = 6;

/// A record still in its bytes, borrowed from a frame whose checksum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawRecord<'a> {
    pub(crate) offset: Offset,
    pub(crate) recorded_at_ms: u64,
    pub(crate) kind: RecordKind,
    pub(crate) key_hash: u32,
    pub(crate) body: &'a [u8],
}

/// Why record bytes inside a checksummed frame could not be read. Never a torn write: the bytes are
/// what some writer wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("record kind {kind}, version {version} is not known to this build")]
    Unknown { kind: u8, version: u8 },
    #[error("record header is cut short or not in its shortest form")]
    Header,
    #[error("record body does not decode: {0}")]
    Body(String),
}

impl From<CodecError> for RecordError {
    fn from(error: CodecError) -> Self {
        Self::Body(error.to_string())
    }
}

/// Appends the record bytes of `event` to `out`. The caller has called [`Event::check`].
pub(crate) fn encode_event(out: &mut Vec<u8>, event: &Event) -> Result<()> {
    let key_hash = partition::hash(event.key.as_bytes());
    encode_record(out, KIND_EVENT, key_hash, event)
}

/// Appends the record bytes of `decision` to `out`. `key_hash` is that of the key it is about.
pub(crate) fn encode_decision(out: &mut Vec<u8>, decision: &Decision, key_hash: u32) -> Result<()> {
    bounded(
        "consumer",
        decision.consumer.len(),
        limits::CONSUMER_BYTES_MAX,
    )?;
    bounded(
        "note",
        decision.note.as_ref().map_or(0, String::len),
        limits::NOTE_BYTES_MAX,
    )?;
    if let Some(key) = decision.action.key() {
        bounded("key", key.len(), limits::KEY_BYTES_MAX)?;
    }
    encode_record(out, KIND_DECISION, key_hash, decision)
}

fn encode_record<T: Serialize>(out: &mut Vec<u8>, kind: u8, key_hash: u32, body: &T) -> Result<()> {
    let body = codec::encode(body, limits::RECORD_BYTES_MAX).map_err(|_| Error::TooLarge {
        what: "record",
        len: limits::RECORD_BYTES_MAX.saturating_add(1),
        max: limits::RECORD_BYTES_MAX,
    })?;
    out.extend_from_slice(&[kind, RECORD_VERSION]);
    out.extend_from_slice(&key_hash.to_le_bytes());
    put_leb128(out, to_u32(body.len()));
    out.extend_from_slice(&body);
    Ok(())
}

fn put_leb128(out: &mut Vec<u8>, mut n: u32) {
    loop {
        let [low, ..] = n.to_le_bytes();
        n >>= 7;
        if n == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Reads a shortest-form LEB128 number of at most 32 bits off the front of `bytes`.
fn take_leb128(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut value = 0_u64;
    let mut shift = 0_u32;
    let mut rest = bytes;
    loop {
        let (byte, tail) = rest.split_first()?;
        rest = tail;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            let shortest = *byte != 0 || shift == 0;
            return u32::try_from(value)
                .ok()
                .filter(|_| shortest)
                .map(|value| (value, rest));
        }
        shift = shift.checked_add(7).filter(|shift| *shift < 35)?;
    }
}

/// Splits the first record off `bytes`: its raw form and what follows it.
pub(crate) fn split_record(
    bytes: &[u8],
    offset: Offset,
    recorded_at_ms: u64,
) -> Result<(RawRecord<'_>, &[u8]), RecordError> {
    let (fixed, rest) = bytes
        .split_first_chunk::<FIXED_HEADER_LEN>()
        .ok_or(RecordError::Header)?;
    let [kind, version, h0, h1, h2, h3] = *fixed;
    let kind = match (kind, version) {
        (KIND_EVENT, RECORD_VERSION) => RecordKind::Event,
        (KIND_DECISION, RECORD_VERSION) => RecordKind::Decision,
        _ => return Err(RecordError::Unknown { kind, version }),
    };
    let (len, rest) = take_leb128(rest).ok_or(RecordError::Header)?;
    let (body, rest) = rest
        .split_at_checked(to_usize(len.into()))
        .ok_or(RecordError::Header)?;
    let key_hash = u32::from_le_bytes([h0, h1, h2, h3]);
    Ok((
        RawRecord {
            offset,
            recorded_at_ms,
            kind,
            key_hash,
            body,
        },
        rest,
    ))
}

impl<'a> RawRecord<'a> {
    /// Reads an event in place; only for records of kind [`RecordKind::Event`].
    pub(crate) fn event_ref(&self) -> Result<EventRef<'a>, RecordError> {
        borrowed::decode(self.body)
    }

    /// Decodes an event; only for records of kind [`RecordKind::Event`].
    pub(crate) fn event(&self) -> Result<Event, RecordError> {
        borrowed::decode(self.body).map(|event| event.to_event())
    }

    /// Decodes a decision; only for records of kind [`RecordKind::Decision`].
    pub(crate) fn decision(&self) -> Result<Decision, RecordError> {
        Ok(codec::decode(self.body, limits::RECORD_BYTES_MAX)?)
    }

    /// Decodes the record, whatever its kind.
    pub(crate) fn record(&self) -> Result<Record, RecordError> {
        let body = match self.kind {
            RecordKind::Event => Body::Event(self.event()?),
            RecordKind::Decision => Body::Decision(self.decision()?),
        };
        Ok(Record {
            offset: self.offset,
            recorded_at_ms: self.recorded_at_ms,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_bytes_are_as_the_header_of_this_file_says() {
        let event = Event::new("e1", "k", 1, "pay").with_payload(*b"\x00\xff");
        let mut bytes = Vec::new();
        encode_event(&mut bytes, &event).unwrap();
        // FNV-1a 32 of "k" is 0xee0c2860 by hand: (0x811c9dc5 ^ 0x6b) * 0x01000193 mod 2^32.
        let body = b"\x02e1\x01k\x02\x03pay\x02\x00\xff";
        let mut expected = vec![1, 1];
        expected
            .extend_from_slice(&((0x811c_9dc5_u32 ^ 0x6b).wrapping_mul(0x0100_0193)).to_le_bytes());
        expected.push(13);
        expected.extend_from_slice(body);
        assert_eq!(body.len(), 13);
        assert_eq!(bytes, expected);
        let (raw, rest) = split_record(&bytes, Offset::new(7), 9).unwrap();
        assert!(rest.is_empty());
        assert_eq!(raw.event().unwrap(), event);
    }

    #[test]
    fn leb128_round_trips_and_refuses_longer_forms() {
        for n in [0, 1, 127, 128, 16_383, 16_384, u32::MAX] {
            let mut bytes = Vec::new();
            put_leb128(&mut bytes, n);
            assert_eq!(take_leb128(&bytes), Some((n, &[][..])));
        }
        assert_eq!(take_leb128(&[0x80, 0x00]), None, "not the shortest form");
        assert_eq!(
            take_leb128(&[0xff, 0xff, 0xff, 0xff, 0x1f]),
            None,
            "beyond 32 bits"
        );
        assert_eq!(take_leb128(&[0x80; 9]), None);
    }
}
