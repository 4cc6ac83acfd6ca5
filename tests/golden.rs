//! Format 1, for ever: a log written by hand from DESIGN.md, byte by byte. A change of the
//! format adds files here and edits none.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "files are laid by hand, behind the store's back"
)]

use std::path::Path;

use foldlog::orders::Orders;
use foldlog::{Action, Body, Decision, Error, Event, Offset, Store};

const LOG_ID: u64 = 0x0102_0304_0506_0708;
const SALT: [u64; 2] = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888];

fn crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

fn halves(salt: u64) -> (u32, u32) {
    (
        u32::try_from(salt & 0xffff_ffff).unwrap(),
        u32::try_from(salt >> 32).unwrap(),
    )
}

/// DESIGN.md 5.1.
fn segment_header(salt: u64, base: u64, chain: u32) -> Vec<u8> {
    let mut bytes = b"FOLDLOG\0".to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(LOG_ID.to_le_bytes());
    bytes.extend(salt.to_le_bytes());
    bytes.extend(base.to_le_bytes());
    bytes.extend(chain.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(crc(&bytes).to_le_bytes());
    assert_eq!(bytes.len(), 64);
    bytes
}

/// DESIGN.md 5.2: appends a frame to the file's bytes, and answers its header's checksum.
fn frame(
    file: &mut Vec<u8>,
    salt: u64,
    (kind, flags): (u8, u8),
    first: u64,
    count: u32,
    payload: &[u8],
) -> u32 {
    let (low, high) = halves(salt);
    let position = u32::try_from(file.len()).unwrap();
    let mut head = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    head.extend(first.to_le_bytes());
    head.extend(count.to_le_bytes());
    head.extend(0_u32.to_le_bytes()); // unproven: all before it was synced
    head.extend(1_700_000_000_000_u64.to_le_bytes());
    head.extend([kind, flags, 1]);
    head.extend((crc(payload) ^ low).to_le_bytes());
    let check = crc(&head) ^ high ^ position;
    head.extend(check.to_le_bytes());
    assert_eq!(head.len(), 39);
    file.extend(head);
    file.extend(payload);
    check
}

/// DESIGN.md 5.3.
fn record(kind: u8, key: &str, body: &[u8]) -> Vec<u8> {
    let hash = key.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let mut bytes = vec![kind, 1];
    bytes.extend(if key.is_empty() { 0 } else { hash }.to_le_bytes());
    bytes.push(u8::try_from(body.len()).unwrap());
    bytes.extend(body);
    bytes
}

fn seal(end: u64, records: u64, chain: u32) -> Vec<u8> {
    [
        &end.to_le_bytes()[..],
        &records.to_le_bytes(),
        &chain.to_le_bytes(),
    ]
    .concat()
}

/// Two segments with a frame of each kind.
fn by_hand() -> [Vec<u8>; 2] {
    let mut first = segment_header(SALT[0], 0, 0);
    let reserve = record(1, "k", b"\x02e1\x01k\x02\x07reserve\x00");
    let pay = record(1, "k", b"\x02e2\x01k\x04\x03pay\x02\x00\xff");
    let both = [reserve, pay].concat();
    frame(&mut first, SALT[0], (1, 0), 0, 2, &both);
    // From upstream "u", which stands at 300 afterwards: bincode of [("u", 300)].
    let part = [&6_u32.to_le_bytes()[..], b"\x01\x01u\xfb\x2c\x01"].concat();
    let cancel = record(1, "k", b"\x02e3\x01k\x06\x06cancel\x00");
    let chain = frame(&mut first, SALT[0], (1, 2), 2, 1, &[part, cancel].concat());
    frame(&mut first, SALT[0], (3, 0), 3, 0, &seal(3, 3, chain));
    let mut second = segment_header(SALT[1], 3, chain);
    let table = [&6_u32.to_le_bytes()[..], b"\x01\x01u\xfb\x2c\x01"].concat();
    frame(&mut second, SALT[1], (1, 4), 3, 0, &table);
    // Discard { offset: 2 } by "orders" with the note "ops".
    let discard = record(2, "k", b"\x06orders\x01\x03ops\x03\x02");
    frame(&mut second, SALT[1], (1, 1), 3, 1, &discard);
    frame(&mut second, SALT[1], (2, 0), 4, 0, b"");
    second.resize(4096, 0);
    [first, second]
}

fn lay(dir: &Path, [first, second]: &[Vec<u8>; 2]) {
    std::fs::create_dir_all(dir.join("log")).unwrap();
    std::fs::write(dir.join("log/00000000000000000000.seg"), first).unwrap();
    std::fs::write(dir.join("log/00000000000000000003.seg"), second).unwrap();
}

fn bodies(store: &Store) -> Vec<Body> {
    let batch = store.next_batch(Offset::ZERO, 1000).unwrap();
    assert_eq!(batch.next, store.durable_end());
    batch
        .records
        .into_iter()
        .map(|record| record.body)
        .collect()
}

fn expected() -> Vec<Body> {
    vec![
        Body::Event(Event::new("e1", "k", 1, "reserve")),
        Body::Event(Event::new("e2", "k", 2, "pay").with_payload(*b"\x00\xff")),
        Body::Event(Event::new("e3", "k", 3, "cancel")),
        Body::Decision(Decision {
            consumer: "orders".to_owned(),
            note: Some("ops".to_owned()),
            action: Action::Discard {
                offset: Offset::new(2),
            },
        }),
    ]
}

#[test]
fn log_written_by_hand_from_the_design_page_is_read_and_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    lay(dir.path(), &by_hand());
    for round in 0..2_u64 {
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.recovery().trimmed, None);
        let found = bodies(&store);
        assert_eq!(found[..4], expected());
        assert_eq!(store.upstream_position("u"), Some(300));
        let orders = store.consumer("orders", Orders).unwrap();
        assert_eq!(orders.get("k").unwrap().unwrap().version, 2);
        assert_eq!(orders.counters().discarded, 1);
        assert!(orders.verify().unwrap().is_sound());
        let next = Event::new(format!("n{round}"), "other", 1, "reserve");
        assert_eq!(store.append(&next).unwrap(), Offset::new(4 + round));
    }
}

#[test]
fn a_flipped_bit_in_any_byte_of_the_log_written_by_hand_is_noticed() {
    let files = by_hand();
    let used = files[1].iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let (mut refused, mut trimmed, mut harmless) = (0, 0, 0);
    for (file, len) in [(0, files[0].len()), (1, used)] {
        for bit in (0..len).map(|byte| byte * 8 + byte % 8) {
            let dir = tempfile::tempdir().unwrap();
            let mut bad = files.clone();
            bad[file][bit / 8] ^= 1 << (bit % 8);
            lay(dir.path(), &bad);
            match Store::open(dir.path()) {
                Err(
                    Error::Corrupt { .. }
                    | Error::UnsupportedFormat { .. }
                    | Error::MissingSegment { .. },
                ) => refused += 1,
                Err(error) => panic!("file {file}, bit {bit}: {error}"),
                Ok(store) => match store.next_batch(Offset::ZERO, 1000) {
                    // Damage in a sealed segment shows where it is read.
                    Err(Error::Corrupt { .. } | Error::UnsupportedFormat { .. }) => refused += 1,
                    Err(error) => panic!("file {file}, bit {bit}: {error}"),
                    Ok(batch) => {
                        let found: Vec<_> = batch.records.into_iter().map(|r| r.body).collect();
                        let whole = found == expected();
                        let verified = store.verify();
                        if store.recovery().trimmed.is_some() {
                            // Only the note: nothing says that anything behind it was written.
                            assert!(whole, "file {file}, bit {bit}");
                            trimmed += 1;
                        } else if whole && verified.is_ok() {
                            harmless += 1;
                        } else {
                            assert!(verified.is_err(), "file {file}, bit {bit}: silent");
                            refused += 1;
                        }
                    }
                },
            }
        }
    }
    println!("{refused} flipped bits refused, {trimmed} trimmed and reported, {harmless} harmless");
    assert!(refused > 400);
}
