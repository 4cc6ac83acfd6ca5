//! A frame that has no place yet: everything about one append call that can be computed before the
//! writer's lock is taken.
//!
//! The payload's checksum is computed here, without the segment's salt: the salt is known only
//! where the frame is placed, and mixing it in is one exclusive or
//! (`placed_draft_equals_the_frame_encoded_at_once`). Every limit is checked here, so what has a
//! place can be written and read back (`what_cannot_be_stored_is_refused_before_it_has_a_place`).

use crate::error::{Error, Result};
use crate::event::{self, Decision, Event, bounded};
use crate::frame::{
    self, FLAG_DECISION, FLAG_TABLE, FLAG_UPSTREAM, FrameKind, HEADER_LEN, Header, Salt,
};
use crate::limits;
use crate::log::upstream::{self, Table};
use crate::num::{to_u32, to_u64};
use crate::offset::Offset;

/// The salt that changes nothing.
const NO_SALT: Salt = Salt(0);

/// A frame without its place.
#[derive(Debug)]
pub(crate) struct Draft {
    payload: Vec<u8>,
    /// Without salt.
    payload_crc: u32,
    count: u32,
    flags: u8,
}

/// Where a frame goes, and what stands there about the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) first: Offset,
    pub(super) unproven: u64,
    pub(super) recorded_at_ms: u64,
    pub(super) salt: Salt,
}

impl Draft {
    /// One frame of these events.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] without events or for an event without id or key, [`Error::TooLarge`] over
    /// a limit.
    pub(crate) fn events(events: &[Event]) -> Result<Self> {
        if events.is_empty() {
            return Err(Error::Empty { what: "batch" });
        }
        Self::with_events(Vec::new(), events, 0)
    }

    /// One frame that moves `upstream` to `position` together with these events, which may be none.
    pub(crate) fn upstream(name: &str, position: u64, events: &[Event]) -> Result<Self> {
        upstream::check_name(name)?;
        let mut payload = Vec::new();
        upstream::put(&mut payload, [(name, position)])?;
        Self::with_events(payload, events, FLAG_UPSTREAM)
    }

    /// One frame of these decisions, each with the hash of the key it is about.
    ///
    /// # Errors
    ///
    /// As [`Self::events`].
    pub(crate) fn decisions(decisions: &[(Decision, u32)]) -> Result<Self> {
        if decisions.is_empty() {
            return Err(Error::Empty { what: "batch" });
        }
        bounded("batch", decisions.len(), limits::FRAME_RECORDS_MAX)?;
        let mut payload = Vec::new();
        for (decision, key_hash) in decisions {
            event::encode_decision(&mut payload, decision, *key_hash)?;
            bounded("batch", payload.len(), limits::FRAME_BYTES_MAX)?;
        }
        Ok(Self::new(payload, to_u32(decisions.len()), FLAG_DECISION))
    }

    /// The frame at the head of a segment: where all upstreams stand.
    pub(super) fn table(table: &Table) -> Result<Self> {
        let mut payload = Vec::new();
        table.put(&mut payload)?;
        Ok(Self::new(payload, 0, FLAG_TABLE))
    }

    fn with_events(mut payload: Vec<u8>, events: &[Event], flags: u8) -> Result<Self> {
        bounded("batch", events.len(), limits::FRAME_RECORDS_MAX)?;
        for event in events {
            event.check()?;
            event::encode_event(&mut payload, event)?;
            bounded("batch", payload.len(), limits::FRAME_BYTES_MAX)?;
        }
        Ok(Self::new(payload, to_u32(events.len()), flags))
    }

    fn new(payload: Vec<u8>, count: u32, flags: u8) -> Self {
        Self {
            payload_crc: frame::payload_crc(&payload, NO_SALT),
            payload,
            count,
            flags,
        }
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Length of the whole frame.
    pub(super) fn frame_len(&self) -> u64 {
        to_u64(HEADER_LEN.saturating_add(self.payload.len()))
    }

    /// Appends the frame to `out`; answers the header's checksum.
    pub(super) fn put(&self, out: &mut Vec<u8>, spot: &Spot) -> u32 {
        let header = Header {
            payload_len: to_u32(self.payload.len()),
            first: spot.first,
            count: self.count,
            // A segment is shorter than 4 GiB (`State::room_for`), so nothing is lost here.
            unproven: u32::try_from(spot.unproven).unwrap_or(u32::MAX),
            recorded_at_ms: spot.recorded_at_ms,
            kind: FrameKind::Data,
            flags: self.flags,
            // The checksum of no bytes is 0: what remains is the salt's part.
            payload_crc: self.payload_crc ^ frame::payload_crc(&[], spot.salt),
        };
        let (head, crc) = frame::encode_header(&header, spot.salt);
        out.extend_from_slice(&head);
        out.extend_from_slice(&self.payload);
        crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placed_draft_equals_the_frame_encoded_at_once() {
        let events = [
            Event::new("e", "k", 1, "pay"),
            Event::new("f", "k", 2, "pay"),
        ];
        let mut payload = Vec::new();
        for event in &events {
            event::encode_event(&mut payload, event).unwrap();
        }
        let spot = Spot {
            first: Offset::new(40),
            unproven: 77,
            recorded_at_ms: 5,
            salt: Salt(0xdead_beef_0bad_f00d),
        };
        let header = Header {
            payload_len: 0,
            first: spot.first,
            count: 2,
            unproven: 77,
            recorded_at_ms: 5,
            kind: FrameKind::Data,
            flags: 0,
            payload_crc: 0,
        };
        let (expected, crc) = frame::encode(header, &payload, spot.salt);
        let draft = Draft::events(&events).unwrap();
        let mut placed = Vec::new();
        assert_eq!(draft.put(&mut placed, &spot), crc);
        assert_eq!(placed, expected);
        assert_eq!(draft.frame_len(), to_u64(placed.len()));
    }

    #[test]
    fn what_cannot_be_stored_is_refused_before_it_has_a_place() {
        let over = |result: Result<Draft>| matches!(result, Err(Error::TooLarge { .. }));
        assert!(matches!(
            Draft::events(&[]),
            Err(Error::Empty { what: "batch" })
        ));
        assert!(Draft::upstream("u", 1, &[]).is_ok());
        assert!(matches!(
            Draft::upstream("", 1, &[]),
            Err(Error::Empty { .. })
        ));
        let long = "u".repeat(limits::UPSTREAM_BYTES_MAX + 1);
        assert!(over(Draft::upstream(&long, 1, &[])));
        let big = Event::new("e", "k", 1, "pay").with_payload(vec![0; limits::PAYLOAD_BYTES_MAX]);
        assert!(over(Draft::events(&[
            big.clone(),
            big.clone(),
            big.clone(),
            big
        ])));
    }
}
