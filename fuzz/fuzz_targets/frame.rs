//! Frames with good checksums and any content: kinds, flags, counts, lengths and payloads that no
//! writer of ours would make. Each frame is 12 bytes of fields and then its payload.
#![no_main]

use foldlog_fuzz::{Forged, SEGMENT_HEADER_LEN};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let disk = foldlog_fuzz::whole_store();
    let mut segment = foldlog_fuzz::read(&disk);
    let salt = foldlog_fuzz::salt(&segment);
    segment.truncate(SEGMENT_HEADER_LEN);
    let mut rest = data;
    let mut next = 0_u64;
    while let Some((fields, tail)) = rest.split_first_chunk::<12>() {
        let [
            kind,
            flags,
            version,
            count,
            skew,
            u0,
            u1,
            u2,
            u3,
            len,
            wide,
            cut,
        ] = *fields;
        let len = usize::from(u16::from_le_bytes([len, wide % 4]));
        let (payload, tail) = tail.split_at(len.min(tail.len()));
        let count = u32::from(count);
        let frame = Forged {
            // Mostly the offset that fits; else one near it.
            first: if skew < 240 {
                next
            } else {
                next.wrapping_add(u64::from(skew))
            },
            count: if count < 250 { count } else { u32::MAX - count },
            unproven: u32::from_le_bytes([u0, u1, u2, u3]),
            kind,
            flags,
            version: if version < 240 { 1 } else { version },
            payload,
        };
        let bytes = frame.bytes(salt);
        // Sometimes the frame is cut short, and the next one follows it at once.
        let whole = if cut < 240 {
            bytes.len()
        } else {
            bytes.len() - usize::from(255 - cut)
        };
        segment.extend_from_slice(&bytes[..whole]);
        next = next.wrapping_add(count.into());
        rest = tail;
    }
    segment.extend_from_slice(&[0; 512]);
    foldlog_fuzz::write(&disk, &segment);
    foldlog_fuzz::check_open(&disk);
});
