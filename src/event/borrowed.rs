//! Events decoded without a copy: [`EventRef`], and its plain decoder.
//!
//! The decoder reads the same bytes as `codec.rs` and refuses what that refuses
//! (`decodes_what_the_codec_decodes_and_refuses_what_it_refuses`); it exists because an event is
//! decoded once per record in every replay, and a general decoder costs several times as much.

use super::{Event, RecordError};

/// An [`Event`] that still lies in the buffer it was read into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventRef<'a> {
    /// The producer's name for this event.
    pub id: &'a str,
    /// What the event is about.
    pub key: &'a str,
    /// The version of `key` that the event produces.
    pub version: i64,
    /// What happened.
    pub kind: &'a str,
    /// Opaque to foldlog.
    pub payload: &'a [u8],
}

impl EventRef<'_> {
    /// The same event as a value of its own.
    #[must_use]
    pub fn to_event(&self) -> Event {
        Event {
            id: self.id.to_owned(),
            key: self.key.to_owned(),
            version: self.version,
            kind: self.kind.to_owned(),
            payload: self.payload.to_owned(),
        }
    }
}

/// Reads the body of an event record; all of it.
pub(crate) fn decode(body: &[u8]) -> Result<EventRef<'_>, RecordError> {
    let (id, rest) = text(body)?;
    let (key, rest) = text(rest)?;
    let (version, rest) = varint(rest)?;
    let (kind, rest) = text(rest)?;
    let (payload, rest) = run(rest)?;
    if !rest.is_empty() {
        return Err(bad("bytes are left over behind the event"));
    }
    Ok(EventRef {
        id,
        key,
        version: unzigzag(version),
        kind,
        payload,
    })
}

fn bad(what: &str) -> RecordError {
    RecordError::Body(what.to_owned())
}

/// A number in the variable form: below 251 as one byte, else a byte that says 2, 4 or 8 and so
/// many bytes, little endian.
fn varint(bytes: &[u8]) -> Result<(u64, &[u8]), RecordError> {
    const SHORT: &str = "a number is cut short";
    let (first, rest) = bytes.split_first().ok_or_else(|| bad(SHORT))?;
    match first {
        0..=250 => Ok((u64::from(*first), rest)),
        251 => {
            let (n, rest) = rest.split_first_chunk().ok_or_else(|| bad(SHORT))?;
            Ok((u16::from_le_bytes(*n).into(), rest))
        }
        252 => {
            let (n, rest) = rest.split_first_chunk().ok_or_else(|| bad(SHORT))?;
            Ok((u32::from_le_bytes(*n).into(), rest))
        }
        253 => {
            let (n, rest) = rest.split_first_chunk().ok_or_else(|| bad(SHORT))?;
            Ok((u64::from_le_bytes(*n), rest))
        }
        254.. => Err(bad("a number is wider than 64 bits")),
    }
}

/// The signed number that was folded into `n`: 0, -1, 1, -2, 2, …
const fn unzigzag(n: u64) -> i64 {
    let half = (n >> 1).cast_signed();
    if n & 1 == 0 { half } else { !half }
}

fn run(bytes: &[u8]) -> Result<(&[u8], &[u8]), RecordError> {
    let (len, rest) = varint(bytes)?;
    usize::try_from(len)
        .ok()
        .and_then(|len| rest.split_at_checked(len))
        .ok_or_else(|| bad("a length is beyond the end"))
}

fn text(bytes: &[u8]) -> Result<(&str, &[u8]), RecordError> {
    let (run, rest) = run(bytes)?;
    let text = std::str::from_utf8(run).map_err(|_| bad("a text is not UTF-8"))?;
    Ok((text, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::limits::RECORD_BYTES_MAX;

    fn both(body: &[u8]) -> Option<Event> {
        let by_codec = codec::decode::<Event>(body, RECORD_BYTES_MAX).ok();
        let borrowed = decode(body).ok().map(|event| event.to_event());
        assert_eq!(borrowed, by_codec, "{body:x?}");
        borrowed
    }

    #[test]
    fn decodes_what_the_codec_decodes_and_refuses_what_it_refuses() {
        let mut decoded = 0_u32;
        for version in [
            0,
            1,
            -1,
            124,
            125,
            126,
            -126,
            1 << 15,
            -(1 << 40),
            i64::MIN,
            i64::MAX,
        ] {
            for len in [0, 1, 250, 251, 70_000] {
                let text = "é".repeat(len / 2);
                let event = Event::new(&*text, "k", version, "pay").with_payload(vec![7; len]);
                let body = codec::encode(&event, RECORD_BYTES_MAX).unwrap();
                assert_eq!(both(&body), Some(event));
                decoded += 1;
                // Every cut, and every change of the first bytes.
                for cut in (0..body.len()).take(300) {
                    decoded += u32::from(both(&body[..cut]).is_some());
                }
                for at in (0..body.len()).take(12) {
                    for byte in 0..=255 {
                        let mut body = body.clone();
                        body[at] = byte;
                        decoded += u32::from(both(&body).is_some());
                    }
                }
            }
        }
        assert!(decoded > 1_000, "{decoded} bodies decoded");
    }

    #[test]
    fn a_number_in_a_longer_form_than_it_needs_is_read_as_the_codec_reads_it() {
        for body in [
            &b"\xfb\x02\x00e1\x01k\x02\x03pay\x02\x00\xff"[..],
            b"\x02e1\x01k\xfd\x02\0\0\0\0\0\0\0\x03pay\x02\x00\xff",
            b"\x02e1\x01k\xfe\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03pay\x02\x00\xff",
            b"\x02e1\x01k\xff\x03pay\x02\x00\xff",
            b"\x02\xff\xfe\x01k\x02\x03pay\x02\x00\xff",
        ] {
            both(body);
        }
    }
}
