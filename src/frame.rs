//! The bytes of one frame: what one append call puts on disk, and the notes and seals between.
//!
//! Header, 39 bytes, all integers little endian:
//!
//! | position | width | field |
//! |---|---|---|
//! | 0 | 4 | length of the payload in bytes |
//! | 4 | 8 | offset of the first record (for a frame without records: of the next one) |
//! | 12 | 4 | number of records |
//! | 16 | 4 | `unproven`: how many bytes of this segment just before this frame were not yet known to be synced when it was written |
//! | 20 | 8 | time of the append, milliseconds since 1970 |
//! | 28 | 1 | kind: 1 data, 2 note, 3 seal |
//! | 29 | 1 | flags: 1 holds a decision, 2 payload starts with an upstream position, 4 payload starts with the whole upstream table |
//! | 30 | 1 | version of the frame format: 1 |
//! | 31 | 4 | CRC-32 of the payload, XOR the low half of the segment's salt |
//! | 35 | 4 | CRC-32 of bytes 0..35, XOR the high half of the segment's salt, XOR the frame's position in the segment |
//!
//! A frame is valid if and only if the header CRC holds, kind and version are known, the payload is
//! whole and its CRC holds. Kind 0 does not exist, so zeros are never a frame. The header has a CRC
//! of its own so that a rotted length is never trusted, and a rotted payload still tells where the
//! next frame starts. Salt and position are in it, so that a frame is a frame in its own place
//! only: where a crash leaves sectors with what the disk held before (also of this very segment,
//! say of a tail that was cut), nothing in them counts. All functions below take the salt *of the
//! place* ([`Salt::at`]).
//!
//! `unproven` carries the fault model's *`durable_upto`* as a distance: everything in this segment
//! before `position - unproven` was synced when the frame was written (earlier segments always
//! were: a roll syncs). Bytes rather than offsets, because a frame that only moves an upstream's
//! position takes no offset, and its loss must be provable too.
//!
//! The payload of a data frame is the upstream part, if flagged (4 bytes length, then bincode pairs
//! of name and position), and then the records (`event.rs`). Of a note: empty. Of a seal: see
//! [`Seal`].

use crate::limits;
use crate::num::{to_u32, to_usize};
use crate::offset::Offset;

/// Length of a frame's header.
pub(crate) const HEADER_LEN: usize = 39;
const CRC_WIDTH: usize = 4;
const CHECKED_LEN: usize = HEADER_LEN - CRC_WIDTH;
const FRAME_VERSION: u8 = 1;

const _: () = assert!(HEADER_LEN == 4 + 8 + 4 + 4 + 8 + 1 + 1 + 1 + 4 + 4);
const _: () = assert!(limits::FRAME_BYTES_MAX < 1 << 31);

/// The frame holds at least one decision: one pass over headers finds them all.
pub(crate) const FLAG_DECISION: u8 = 1;
/// The payload starts with the upstream position this frame takes.
pub(crate) const FLAG_UPSTREAM: u8 = 2;
/// The payload starts with the whole upstream table.
pub(crate) const FLAG_TABLE: u8 = 4;
const FLAGS_KNOWN: u8 = FLAG_DECISION | FLAG_UPSTREAM | FLAG_TABLE;

/// The random number of one segment, mixed into both checksums: a frame of another segment, or of
/// what a file held before, never passes for one of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Salt(pub(crate) u64);

impl Salt {
    /// The salt of one place of the segment: of a frame that starts at `position`.
    #[must_use]
    pub(crate) const fn at(self, position: u64) -> Self {
        // Positions in a segment fit 32 bits. The payload's half stays as it is.
        Self(self.0 ^ position.wrapping_shl(32))
    }

    fn halves(self) -> (u32, u32) {
        let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        (half(self.0), half(self.0 >> 32))
    }
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Records, or an upstream position, or both.
    Data,
    /// No records: says that everything before it is durable. The next frame is written over it.
    Note,
    /// The last frame of a sealed segment.
    Seal,
}

impl FrameKind {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Note => 2,
            Self::Seal => 3,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Data),
            2 => Some(Self::Note),
            3 => Some(Self::Seal),
            _ => None,
        }
    }
}

/// A frame's header, without its own checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) payload_len: u32,
    pub(crate) first: Offset,
    pub(crate) count: u32,
    pub(crate) unproven: u32,
    pub(crate) recorded_at_ms: u64,
    pub(crate) kind: FrameKind,
    pub(crate) flags: u8,
    pub(crate) payload_crc: u32,
}

impl Header {
    /// The offset after the frame's last record.
    pub(crate) fn end(&self) -> Offset {
        self.first.plus(self.count.into())
    }

    /// Header and payload together.
    pub(crate) fn frame_len(&self) -> u64 {
        u64::from(self.payload_len).saturating_add(crate::num::to_u64(HEADER_LEN))
    }
}

/// The checksum of a payload, as the header carries it.
pub(crate) fn payload_crc(payload: &[u8], salt: Salt) -> u32 {
    crc32fast::hash(payload) ^ salt.halves().0
}

/// The header's bytes and its checksum, which (it covers the payload's) stands for the whole frame.
pub(crate) fn encode_header(header: &Header, salt: Salt) -> ([u8; HEADER_LEN], u32) {
    let mut bytes = [0_u8; HEADER_LEN];
    let fields: [&[u8]; 9] = [
        &header.payload_len.to_le_bytes(),
        &header.first.get().to_le_bytes(),
        &header.count.to_le_bytes(),
        &header.unproven.to_le_bytes(),
        &header.recorded_at_ms.to_le_bytes(),
        &[header.kind.to_byte()],
        &[header.flags],
        &[FRAME_VERSION],
        &header.payload_crc.to_le_bytes(),
    ];
    let mut rest: &mut [u8] = &mut bytes;
    for field in fields {
        let (place, tail) = std::mem::take(&mut rest).split_at_mut(field.len());
        place.copy_from_slice(field);
        rest = tail;
    }
    let (checked, _) = bytes.split_at(CHECKED_LEN);
    let crc = crc32fast::hash(checked) ^ salt.halves().1;
    let (_, place) = bytes.split_at_mut(CHECKED_LEN);
    place.copy_from_slice(&crc.to_le_bytes());
    (bytes, crc)
}

/// The whole frame of `header` and `payload`; fills in length and payload checksum.
pub(crate) fn encode(mut header: Header, payload: &[u8], salt: Salt) -> (Vec<u8>, u32) {
    header.payload_len = to_u32(payload.len());
    header.payload_crc = payload_crc(payload, salt);
    let (head, crc) = encode_header(&header, salt);
    let mut bytes = Vec::with_capacity(HEADER_LEN.saturating_add(payload.len()));
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(payload);
    (bytes, crc)
}

/// What the bytes at the place of a header are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderAt {
    /// A header whose checksum holds, and that checksum.
    Valid(Header, u32),
    /// A checksum that holds over a kind, version, flag or length this build does not know. Some
    /// writer wrote it: never a torn write.
    Unknown {
        /// The frame version found.
        version: u8,
    },
    /// Fewer bytes than a header.
    Short,
    /// Not a header of this segment.
    Bad,
}

/// Looks at the first bytes of `bytes` as a header.
pub(crate) fn decode_header(bytes: &[u8], salt: Salt) -> HeaderAt {
    let Some((head, _)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return HeaderAt::Short;
    };
    let (checked, crc) = head.split_at(CHECKED_LEN);
    let Ok(crc) = <[u8; 4]>::try_from(crc).map(u32::from_le_bytes) else {
        return HeaderAt::Bad;
    };
    if crc32fast::hash(checked) ^ salt.halves().1 != crc {
        return HeaderAt::Bad;
    }
    let mut reader = Fields(checked);
    let fields = (|| {
        Some((
            reader.u32()?,
            reader.u64()?,
            reader.u32()?,
            reader.u32()?,
            reader.u64()?,
        ))
    })();
    let tail = (|| Some((reader.u8()?, reader.u8()?, reader.u8()?, reader.u32()?)))();
    let (Some((payload_len, first, count, unproven, recorded_at_ms)), Some(tail)) = (fields, tail)
    else {
        return HeaderAt::Bad;
    };
    let (kind, flags, version, payload_crc) = tail;
    // A zeroed header must not pass even where salt and checksum happen to agree.
    if kind == 0 {
        return HeaderAt::Bad;
    }
    let known = version == FRAME_VERSION
        && flags & !FLAGS_KNOWN == 0
        && to_usize(payload_len.into()) <= limits::FRAME_BYTES_MAX
        && to_usize(count.into()) <= limits::FRAME_RECORDS_MAX;
    match FrameKind::from_byte(kind) {
        Some(kind) if known => HeaderAt::Valid(
            Header {
                payload_len,
                first: Offset::new(first),
                count,
                unproven,
                recorded_at_ms,
                kind,
                flags,
                payload_crc,
            },
            crc,
        ),
        _ => HeaderAt::Unknown { version },
    }
}

/// Reads fixed-width little-endian fields off the front of a slice.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// What the bytes at the place of a frame are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameAt<'a> {
    /// A valid frame, its checksum and its payload.
    Valid(Header, u32, &'a [u8]),
    /// See [`HeaderAt::Unknown`].
    Unknown {
        /// The frame version found.
        version: u8,
    },
    /// The header holds, the payload's checksum does not.
    BadPayload(Header),
    /// The header holds, but `bytes` ends before the payload does.
    Incomplete(Header),
    /// Not a frame of this segment, or fewer bytes than a header.
    Bad,
}

/// Looks at the first bytes of `bytes` as a whole frame. Total: any input gives an answer.
pub(crate) fn decode(bytes: &[u8], salt: Salt) -> FrameAt<'_> {
    let (header, crc) = match decode_header(bytes, salt) {
        HeaderAt::Valid(header, crc) => (header, crc),
        HeaderAt::Unknown { version } => return FrameAt::Unknown { version },
        HeaderAt::Short | HeaderAt::Bad => return FrameAt::Bad,
    };
    let len = to_usize(header.payload_len.into());
    let payload = bytes.get(HEADER_LEN..).and_then(|rest| rest.get(..len));
    match payload {
        None => FrameAt::Incomplete(header),
        Some(payload) if payload_crc(payload, salt) == header.payload_crc => {
            FrameAt::Valid(header, crc, payload)
        }
        Some(_) => FrameAt::BadPayload(header),
    }
}

/// What a seal's payload says about its segment: 20 bytes, little endian.
///
/// | position | width | field |
/// |---|---|---|
/// | 0 | 8 | end offset of the segment (the base of the next) |
/// | 8 | 8 | number of records in the segment |
/// | 16 | 4 | checksum of the segment's last data frame; 0 in a segment without one |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) end: Offset,
    pub(crate) records: u64,
    pub(crate) chain: u32,
}

/// Length of a seal's payload.
pub(crate) const SEAL_PAYLOAD_LEN: usize = 20;
/// Length of a whole seal; every segment keeps this much room free for it.
pub(crate) const SEAL_LEN: usize = HEADER_LEN + SEAL_PAYLOAD_LEN;

impl Seal {
    pub(crate) fn encode(&self) -> [u8; SEAL_PAYLOAD_LEN] {
        let mut bytes = [0; SEAL_PAYLOAD_LEN];
        let (end, rest) = bytes.split_at_mut(8);
        let (records, chain) = rest.split_at_mut(8);
        end.copy_from_slice(&self.end.get().to_le_bytes());
        records.copy_from_slice(&self.records.to_le_bytes());
        chain.copy_from_slice(&self.chain.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        let seal = Self {
            end: Offset::new(fields.u64()?),
            records: fields.u64()?,
            chain: fields.u32()?,
        };
        fields.0.is_empty().then_some(seal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: Salt = Salt(0x1122_3344_5566_7788);

    fn header() -> Header {
        Header {
            payload_len: 0,
            first: Offset::new(5),
            count: 1,
            unproven: 39,
            recorded_at_ms: 1_700_000_000_000,
            kind: FrameKind::Data,
            flags: FLAG_DECISION,
            payload_crc: 0,
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_of_a_frame_is_noticed() {
        let (bytes, crc) = encode(header(), b"payload", SALT);
        let FrameAt::Valid(back, back_crc, payload) = decode(&bytes, SALT) else {
            panic!()
        };
        assert_eq!(
            (back.first, back.end(), payload),
            (Offset::new(5), Offset::new(6), &b"payload"[..])
        );
        assert_eq!(crc, back_crc);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !matches!(decode(&bad, SALT), FrameAt::Valid(..)),
                "bit {bit}"
            );
        }
        for cut in 0..bytes.len() {
            assert!(
                !matches!(decode(&bytes[..cut], SALT), FrameAt::Valid(..)),
                "cut {cut}"
            );
        }
    }

    #[test]
    fn zeros_and_frames_of_another_salt_are_bad() {
        for salt in [0, 1, u64::MAX, 0x190a_55ad_0000_0000] {
            assert_eq!(decode(&[0; 512], Salt(salt)), FrameAt::Bad);
        }
        // Both checksums made right by hand for a header of zeros: kind 0 still refuses it.
        let crc = crc32fast::hash(&[0; CHECKED_LEN]);
        let salt = Salt(u64::from(crc) << 32);
        assert_eq!(decode(&[0; 512], salt), FrameAt::Bad);
        let (bytes, _) = encode(header(), b"payload", SALT);
        assert_eq!(decode(&bytes, Salt(SALT.0 ^ 1 << 40)), FrameAt::Bad);
        assert!(matches!(
            decode(&bytes, Salt(SALT.0 ^ 1)),
            FrameAt::BadPayload(_)
        ));
    }

    #[test]
    fn a_frame_is_valid_in_its_own_place_only() {
        let (bytes, _) = encode(header(), b"payload", SALT.at(64));
        assert!(matches!(decode(&bytes, SALT.at(64)), FrameAt::Valid(..)));
        for position in [0, 63, 65, 64 + 512, 64 + 4096, 1 << 31] {
            assert_eq!(decode(&bytes, SALT.at(position)), FrameAt::Bad);
        }
        // By hand: the position is in the header's checksum and in nothing else.
        let (elsewhere, _) = encode(header(), b"payload", SALT.at(65));
        assert_eq!(bytes[..35], elsewhere[..35]);
        assert_eq!(bytes[35] ^ elsewhere[35], 1);
        assert_eq!(bytes[36..], elsewhere[36..]);
    }

    #[test]
    fn seal_round_trips_and_refuses_left_over_bytes() {
        let seal = Seal {
            end: Offset::new(9),
            records: 4,
            chain: 7,
        };
        assert_eq!(Seal::decode(&seal.encode()), Some(seal));
        assert_eq!(Seal::decode(&[0; SEAL_PAYLOAD_LEN + 1]), None);
        assert_eq!(Seal::decode(&[0; SEAL_PAYLOAD_LEN - 1]), None);
    }
}
