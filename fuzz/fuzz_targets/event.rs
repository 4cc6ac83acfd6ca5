//! Any bytes as the body of a record in a good frame: it decodes or is a typed error, and what
//! decodes is read back the same after it was appended elsewhere. The first byte is the record's
//! kind, the second its version, mostly made good.
#![no_main]

use foldlog::Body;
use foldlog_fuzz::{Forged, SEGMENT_HEADER_LEN};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(([kind, version], body)) = data.split_first_chunk::<2>() else {
        return;
    };
    let kind = if *kind < 240 { 1 + kind % 2 } else { *kind };
    let version = if *version < 240 { 1 } else { *version };
    let mut payload = vec![kind, version, 0, 0, 0, 0];
    let mut len = body.len();
    while len > 0x7f {
        payload.push(0x80 | u8::try_from(len & 0x7f).expect("seven bits"));
        len >>= 7;
    }
    payload.push(u8::try_from(len).expect("seven bits"));
    payload.extend_from_slice(body);

    let disk = foldlog_fuzz::whole_store();
    let mut segment = foldlog_fuzz::read(&disk);
    let salt = foldlog_fuzz::salt(&segment);
    segment.truncate(SEGMENT_HEADER_LEN);
    let frame = Forged {
        count: 1,
        kind: 1,
        flags: u8::from(kind == 2),
        version: 1,
        payload: &payload,
        ..Forged::default()
    };
    segment.extend(frame.bytes(salt));
    segment.extend_from_slice(&[0; 512]);
    foldlog_fuzz::write(&disk, &segment);

    for record in foldlog_fuzz::check_open(&disk) {
        let Body::Event(event) = record.body else {
            continue;
        };
        if event.check().is_err() {
            continue;
        }
        let other = foldlog_fuzz::whole_store();
        let store = foldlog_fuzz::options(&other).open("store").expect("open");
        let offset = store.append(&event).expect("append");
        let batch = store.next_batch(offset, 1).expect("next_batch");
        let read = batch.records.into_iter().next().map(|record| record.body);
        assert_eq!(read, Some(Body::Event(event)));
    }
});
