//! Any bytes as the only segment of a store: no panic, no unbounded memory, no silent loss. The
//! first byte says whether they are the whole file, what follows a good header, or a few changes
//! to a whole log, after which no record may be read that was never written.
#![no_main]

use foldlog::{Body, Event};
use foldlog_fuzz::SEGMENT_HEADER_LEN;
use libfuzzer_sys::fuzz_target;

/// Fewer changed bytes than the two checksums and a change that they cover: so no such change
/// can pass for a good frame.
const CHANGES_MAX: usize = 3;

fuzz_target!(|data: &[u8]| {
    let Some((mode, bytes)) = data.split_first() else {
        return;
    };
    let disk = foldlog_fuzz::whole_store();
    let mut segment = foldlog_fuzz::read(&disk);
    match mode % 3 {
        0 => foldlog_fuzz::write(&disk, bytes),
        1 => {
            segment.truncate(SEGMENT_HEADER_LEN);
            segment.extend_from_slice(bytes);
            foldlog_fuzz::write(&disk, &segment);
        }
        _ => {
            for change in bytes.chunks_exact(3).take(CHANGES_MAX) {
                let [low, high, bits] = change else {
                    unreachable!()
                };
                let place = usize::from(u16::from_le_bytes([*low, *high])) % segment.len();
                segment[place] ^= bits;
            }
            foldlog_fuzz::write(&disk, &segment);
            let records = foldlog_fuzz::check_open(&disk);
            let read: Vec<Event> = records.into_iter().filter_map(event).collect();
            let known = foldlog_fuzz::known_events();
            assert_eq!(
                known.get(..read.len()),
                Some(&*read),
                "not what was written"
            );
            return;
        }
    }
    foldlog_fuzz::check_open(&disk);
});

fn event(record: foldlog::Record) -> Option<Event> {
    match record.body {
        Body::Event(event) => Some(event),
        Body::Decision(_) => None,
    }
}
