//! The decision table of `plan.rs`, row by row.

#![expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "lengths of a few kilobytes"
)]

use super::*;
use crate::frame::{FLAG_TABLE, HEADER_LEN};
use crate::log::recovery::Trimmed;
use crate::storage::sim::{CallKind, Fault, Filter, Repeat};

const FILE: &str = "00000000000000000000.seg";

fn opens_with(disk: &SimDisk, expected: &[&str]) -> Recovered {
    let recovered = open(disk).unwrap();
    assert_eq!(ids(&recovered), expected);
    assert_eq!(recovered.tail.end, Offset::new(expected.len() as u64));
    recovered
}

/// Opens again and again: nothing is left to do, and nothing more is kept aside.
fn settled(disk: &SimDisk, expected: &[&str]) {
    let kept = quarantine(disk);
    for _ in 0..2 {
        let again = opens_with(disk, expected);
        assert_eq!(again.report.trimmed, None);
        assert!(again.report.finished_roll.is_none());
        assert!(again.report.discarded_files.is_empty());
        assert_eq!(quarantine(disk), kept);
    }
}

fn trimmed(disk: &SimDisk, expected: &[&str]) -> Trimmed {
    let recovered = opens_with(disk, expected);
    let trimmed = recovered.report.trimmed.clone().expect("a trim");
    assert_eq!(trimmed.file, recovered.tail.name);
    assert_eq!(trimmed.from, recovered.tail.end);
    assert_eq!(trimmed.position, recovered.tail.position);
    let copy = disk.read_file(&trimmed.quarantine).expect("a copy");
    assert_eq!(copy.len() as u64, trimmed.bytes);
    drop(recovered);
    settled(disk, expected);
    trimmed
}

#[test]
fn a_read_error_is_an_error_and_changes_nothing() {
    let one = Lay::first().data(&["a", "b"]).sync().seal();
    let two = one.next().data(&["c"]).sync().data(&["d"]).put(b"torn");
    let mut struck = 0;
    for kind in [
        CallKind::Read,
        CallKind::Len,
        CallKind::Open,
        CallKind::List,
    ] {
        for nth in 1.. {
            let disk = disk(&[&one, &two]);
            plant(&disk, &anchor(2, one.chain));
            let before = disk.image_hash();
            disk.fail(Filter::kinds(&[kind]), nth, Fault::Io, Repeat::Once);
            let answer = open(&disk);
            if disk.faults_struck() == 0 {
                break;
            }
            struck += 1;
            // Behind the first change an error may come too; before it, nothing has changed.
            let Err(Error::Io { .. }) = answer else {
                panic!("{kind:?} {nth}: {answer:?}")
            };
            disk.clear_faults();
            if disk.list("quarantine").is_err() {
                assert_eq!(before, disk.image_hash(), "{kind:?} {nth}");
            }
            trimmed(&disk, &["a", "b", "c", "d"]);
        }
    }
    assert!(struck > 15, "{struck}");
}

#[test]
fn what_a_newer_version_wrote_is_never_cut() {
    let lay = Lay::first().data(&["a"]).sync();
    let at = lay.at();
    // A frame of version 2 at the place, and one behind garbage at the place.
    let newer = |lay: Lay, unproven: u32| {
        let mut head = frame::encode_header(
            &Header {
                payload_len: 0,
                first: Offset::new(1),
                count: 0,
                unproven,
                recorded_at_ms: 1,
                kind: FrameKind::Data,
                flags: 0,
                payload_crc: 0,
            },
            lay.header.salt,
        )
        .0;
        head[30] = 2;
        let place = (lay.header.salt.0 >> 32) as u32 ^ lay.at() as u32;
        let crc = crc32fast::hash(&head[..35]) ^ place;
        head[35..].copy_from_slice(&crc.to_le_bytes());
        lay.put(&head)
    };
    for lay in [
        newer(lay.clone(), 0).zeros(100),
        newer(lay.clone().put(b"garbage"), 7).zeros(100),
    ] {
        let error = refused(&disk(&[&lay]));
        let Error::UnsupportedFormat { what, found, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((what, found), ("frame", 2));
    }
    // A record of a version, and of a kind, that nobody knows.
    for record in [b"\x01\x02\0\0\0\0\0", b"\x09\x01\0\0\0\0\0"] {
        let error = refused(&disk(&[&lay.clone().raw(0, 1, record)]));
        let Error::UnsupportedFormat { what, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(what, "record");
    }
    // Whole frames that make no sense.
    for (flags, count, payload) in [
        (0, 1, &b"\x01\x01\0\0\0\0\0left over"[..]),
        (0, 2, &b"\x01\x01\0\0\0\0\0"[..]),
        (FLAG_UPSTREAM, 0, &b"\xff\xff\xff\xff"[..]),
    ] {
        let error = refused(&disk(&[&lay.clone().raw(flags, count, payload)]));
        assert_eq!(corrupt_at(&error), (FILE.to_owned(), at, 1));
    }
}

#[test]
fn a_segment_of_a_newer_version_is_named_as_such() {
    let mut lay = Lay::first().data(&["a"]);
    lay.bytes[8] = 9;
    let crc = crc32fast::hash(&lay.bytes[..60]);
    lay.bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    let Error::UnsupportedFormat { found: 9, .. } = refused(&disk(&[&lay])) else {
        panic!()
    };
}

#[test]
fn a_frame_of_another_offset_is_corruption() {
    let lay = Lay::first().data(&["a"]).sync();
    let at = lay.at();
    for end in [0, 2] {
        let mut lay = lay.clone();
        lay.end = end;
        let error = refused(&disk(&[&lay.data(&["b"])]));
        assert_eq!(corrupt_at(&error), (FILE.to_owned(), at, 1));
    }
}

#[test]
fn a_segment_before_the_last_must_be_whole_to_its_seal() {
    let start = Lay::first().data(&["a"]).sync();
    let whole = start.clone().data(&["b"]).seal();
    let two = whole.next().data(&["c"]);
    assert_eq!(ids(&open(&disk(&[&whole, &two])).unwrap()), ["a", "b", "c"]);
    assert_eq!(
        ids(&open(&disk(&[&whole.clone().zeros(9000), &two])).unwrap()),
        ["a", "b", "c"]
    );
    let b = start.at();
    let seal = start.clone().data(&["b"]).at();
    let len = whole.at();
    let cut = |len: u64| {
        let mut cut = whole.clone();
        cut.bytes.truncate(len as usize);
        cut
    };
    for (damaged, at, offset) in [
        // The last record gone at an exact frame boundary; the seal gone; half of each.
        (cut(b), b, 1),
        (cut(b).zeros(500), b, 1),
        (cut(b + 10), b, 1),
        (cut(seal), seal, 2),
        (cut(len - 1), seal, 2),
        (whole.clone().flip(seal + 41), seal, 2),
        // Bytes behind the seal, near and far.
        (whole.clone().put(b"x"), len, 2),
        (whole.clone().zeros(5000).put(b"x"), len, 2),
    ] {
        let error = refused(&disk(&[&damaged, &two]));
        assert_eq!(corrupt_at(&error), (FILE.to_owned(), at, offset), "{error}");
    }
    // Rot in the middle of a sealed segment is met by who reads it, not before.
    let recovered = open(&disk(&[&whole.clone().flip(b + 45), &two])).unwrap();
    let error = ids_of(&recovered.catalog).unwrap_err();
    assert_eq!(corrupt_at(&error), (FILE.to_owned(), b, 1));
}

#[test]
fn damage_before_a_later_proof_is_corruption() {
    let start = Lay::first().data(&["a"]).sync();
    let at = start.at();
    let b = start.clone().data(&["b"]);
    for proof in [
        b.clone().sync().data(&["c"]),
        b.clone().note(),
        b.clone().seal(),
        b.clone().data(&["c"]).data(&["d"]).sync().data(&["e"]),
        // The proof's own payload is damaged too: its header is enough.
        b.clone().sync().data(&["c"]).flip(b.at() + 45),
        // A frame that only moves an upstream is missed as well.
        start.clone().upstream("u", 1, 0).note(),
    ] {
        for byte in [0, 4, 35, HEADER_LEN as u64 + 2] {
            let error = refused(&disk(&[&proof.clone().flip(at + byte).zeros(300)]));
            assert_eq!(corrupt_at(&error), (FILE.to_owned(), at, 1), "{error}");
        }
        // Zeros in its place are no better.
        let mut zeroed = proof.clone();
        zeroed.bytes[at as usize..at as usize + HEADER_LEN].fill(0);
        assert_eq!(corrupt_at(&refused(&disk(&[&zeroed]))).1, at);
    }
}

#[test]
fn an_anchor_above_the_end_proves_a_loss_and_one_at_the_end_does_not() {
    let lay = Lay::first().data(&["a"]).sync().data(&["b"]);
    let at = lay.at();
    for rest in [&b""[..], &[0; 1000]] {
        let disk = disk(&[&lay.clone().put(rest)]);
        plant(&disk, &anchor(3, 1));
        let error = refused(&disk);
        let Error::LogShorterThanAnchor {
            consumer,
            checkpoint,
            end,
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(
            (&consumer[..], checkpoint.get(), end.get()),
            ("orders", 3, 2)
        );
    }
    let torn = disk(&[&lay.clone().put(b"torn").zeros(1000)]);
    plant(&torn, &anchor(3, 1));
    assert_eq!(corrupt_at(&refused(&torn)), (FILE.to_owned(), at, 2));
    // One equal to the end proves only the records before it.
    plant(&torn, &anchor(2, lay.chain));
    trimmed(&torn, &["a", "b"]);
    // Of another log, or of before an accepted loss: no evidence, but reported.
    let other = Anchor {
        log_id: LOG_ID + 1,
        ..anchor(9, 1)
    };
    plant(&torn, &other);
    let report = opens_with(&torn, &["a", "b"]).report;
    assert_eq!(report.ignored_anchors, ["orders"]);
    assert!(!report.is_clean());
}

#[test]
fn an_anchor_of_other_records_or_of_a_later_epoch_is_refused() {
    let one = Lay::first().data(&["a", "b"]).sync().seal();
    let crc_ab = one.chain;
    let two = one.next().data(&["c"]).sync().data(&["d"]).note();
    for (checkpoint, crc, good) in [
        (0, 0, true),
        (1, crc_ab, true),
        (2, crc_ab, true),
        (2, crc_ab ^ 1, false),
        (1, two.chain, false),
        (4, two.chain, true),
        (4, crc_ab, false),
        (0, 1, false),
    ] {
        let disk = disk(&[&one, &two]);
        plant(&disk, &anchor(checkpoint, crc));
        if good {
            opens_with(&disk, &["a", "b", "c", "d"]);
            continue;
        }
        let Error::Diverged { checkpoint: at, .. } = refused(&disk) else {
            panic!("{checkpoint}")
        };
        assert_eq!(at.get(), checkpoint);
    }
    let later = Anchor {
        epoch: 1,
        ..anchor(2, crc_ab)
    };
    let disk = disk(&[&one, &two]);
    plant(&disk, &later);
    assert!(matches!(refused(&disk), Error::Diverged { .. }));
}

#[test]
fn a_clean_end_is_the_end_of_the_data_and_never_rounded() {
    let lay = Lay::first().data(&["a"]).data(&["b"]).data(&["c"]);
    for zeros in [0, 1, 4096, 1_000_000] {
        for (lay, proven, rewritten) in [
            (lay.clone(), 0, lay.at() - 64),
            (lay.clone().note(), 3, 0),
            (Lay::first(), 0, 0),
        ] {
            let expected = ["a", "b", "c"];
            let expected = &expected[..usize::try_from(lay.end).unwrap()];
            let disk = disk(&[&lay.clone().zeros(zeros)]);
            let recovered = opens_with(&disk, expected);
            let report = &recovered.report;
            assert_eq!(report.trimmed, None);
            assert_eq!(report.proven_end, Offset::new(proven));
            assert_eq!(report.rewritten_bytes, rewritten);
            assert!(report.is_clean());
            let place = if lay.end == 0 { 64 } else { lay.at() };
            let note = u64::from(proven == 3) * HEADER_LEN as u64;
            assert_eq!(recovered.tail.position, place - note);
            assert_eq!(recovered.tail.allocated, lay.at() + zeros as u64);
            assert_eq!(recovered.tail.chain, lay.chain);
            settled(&disk, expected);
            // Synced once, and a note says so: not done again.
            if zeros >= HEADER_LEN {
                let again = opens_with(&disk, expected).report;
                assert_eq!(again.rewritten_bytes, 0);
                assert_eq!(again.proven_end, again.end);
            }
        }
    }
}

#[test]
fn a_torn_tail_is_kept_aside_cut_and_reported() {
    let lay = Lay::first().data(&["a"]).sync().data(&["b"]);
    let at = lay.at();
    let c = lay.clone().sync().data(&["c", "d"]);
    let c_len = c.at() - at;
    let mut half = c.clone();
    half.bytes.truncate(c.bytes.len() - 20);
    let mut hole = c.clone().data(&["e"]).data(&["f"]);
    hole.bytes[at as usize..(at + c_len) as usize].fill(0);
    let later = c.clone().data(&["e"]).data(&["f"]);
    let range = |to: u64| Some(Offset::new(2)..Offset::new(to));
    for (torn, zeros, undecidable) in [
        // Less than a header, and the file's end.
        (lay.clone().put(b"torn"), 0, None),
        // The file ends inside the frame.
        (half.clone(), 0, None),
        // The rest of the frame never reached the disk: looks like a rotted payload.
        (half.clone(), 700, range(4)),
        (c.clone().flip(at + 50), 0, range(4)),
        (c.clone().flip(at + 50), 700, range(4)),
        // A rotted header: how many records is not known.
        (c.clone().flip(at + 1), 700, range(3)),
        // Not even a whole header, or no byte of the payload: a torn note looks so.
        (lay.clone().put(b"torn"), 700, None),
        (
            lay.clone().put(&c.bytes[at as usize..][..HEADER_LEN]),
            700,
            None,
        ),
        (lay.clone().put(&[7; 600]), 0, range(3)),
        // Later frames of the same unsynced group.
        (later.clone().flip(at + 50), 700, range(6)),
        (later.clone().flip(at + 1), 0, range(6)),
        // Its first sectors never reached the disk: certainly torn.
        (hole, 700, None),
        // A note was there, and a frame over it did not make it; nothing was lost.
        (lay.clone().note().put(b"half a frame"), 700, None),
        (lay.clone().note().zeros(1000).put(&[1; 100]), 0, None),
    ] {
        let disk = disk(&[&torn.clone().zeros(zeros)]);
        let found = trimmed(&disk, &["a", "b"]);
        assert_eq!(found.position, at);
        assert_eq!(found.undecidable, undecidable);
        let last = torn.bytes.iter().rposition(|byte| *byte != 0).unwrap();
        let kept = quarantine(&disk);
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].1, torn.bytes[at as usize..=last]);
        assert_eq!(kept[0].0, found.quarantine);
        // What is left is the log to the byte.
        assert_eq!(disk.read_file(&torn.name()).unwrap(), lay.bytes);
    }
}

#[test]
fn strict_refuses_a_torn_tail_and_nothing_else() {
    let lay = Lay::first().data(&["a"]);
    let strict = LogOptions {
        strict: true,
        ..options()
    };
    let clean = disk(&[&lay.clone().zeros(100)]);
    recover(&storage(&clean), &strict, &[]).unwrap();
    let torn = disk(&[&lay.clone().put(b"torn").zeros(100)]);
    let before = torn.image_hash();
    let Err(Error::TornTail {
        position,
        bytes,
        offset,
        ..
    }) = recover(&storage(&torn), &strict, &[])
    else {
        panic!()
    };
    assert_eq!((position, bytes, offset.get()), (lay.at(), 4, 1));
    assert_eq!(before, torn.image_hash());
}

#[test]
fn nothing_valid_from_the_first_byte_on_is_not_an_empty_log() {
    let frames = Lay::first()
        .data(&["a"])
        .sync()
        .data(&["b"])
        .sync()
        .data(&["c"]);
    // The first frame only; the header only; no byte at all.
    let error = refused(&disk(&[&frames.clone().flip(64)]));
    assert_eq!(corrupt_at(&error), (FILE.to_owned(), 64, 0));
    let error = refused(&disk(&[&frames.clone().flip(20)]));
    assert_eq!(corrupt_at(&error), (FILE.to_owned(), 0, 0));
    for len in [0, 63] {
        let mut short = frames.clone();
        short.bytes.truncate(len);
        assert_eq!(corrupt_at(&refused(&disk(&[&short]))).1, 0);
        let mut zeroed = frames.clone();
        zeroed.bytes.fill(0);
        assert_eq!(corrupt_at(&refused(&disk(&[&zeroed]))).1, 0);
    }
}

#[test]
fn an_interrupted_roll_is_finished_or_undone() {
    let open_end = Lay::first().data(&["a"]).sync().data(&["b"]);
    let sealed = open_end.clone().seal();
    let next = sealed.next().zeros(500);

    // Sealed, and the next one is ready: finished, and durable.
    let ready = disk(&[&sealed.clone().zeros(100)]);
    ready.write_file(&next.fresh_name(), &next.bytes).unwrap();
    let recovered = opens_with(&ready, &["a", "b"]);
    assert_eq!(recovered.report.finished_roll, Some(next.name()));
    assert_eq!(recovered.tail.name, next.name());
    assert_eq!(recovered.tail.position, 64);
    assert_eq!(recovered.tail.chain, sealed.chain);
    assert!(ready.read_file(&next.fresh_name()).is_none());
    assert_eq!(ready.pending(), 0, "all of it is on disk");
    settled(&ready, &["a", "b"]);

    // Sealed, and no next one.
    let error = refused(&disk(&[&sealed]));
    let Error::MissingSegment { before, from, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((&before[..], from.get()), (FILE, 2));

    // Sealed, and the next one is damaged, or not its next one.
    for bad in [
        next.clone().flip(3),
        Lay::new(2, sealed.chain ^ 1),
        Lay::with(SegmentHeader {
            log_id: 5,
            ..next.header
        }),
    ] {
        let disk = disk(&[&sealed]);
        disk.write_file(&next.fresh_name(), &bad.bytes).unwrap();
        let (file, ..) = corrupt_at(&refused(&disk));
        assert_eq!(file, "00000000000000000002.seg.new");
    }
}

#[test]
fn what_was_prepared_for_a_roll_that_never_was_goes() {
    let open_end = Lay::first().data(&["a"]).sync().data(&["b"]);
    let sealed = open_end.clone().seal();
    let next = sealed.next().zeros(500);
    for bytes in [next.bytes.clone(), vec![], vec![0xaa; 300]] {
        let disk = disk(&[&open_end]);
        disk.write_file(&next.fresh_name(), &bytes).unwrap();
        let recovered = opens_with(&disk, &["a", "b"]);
        assert_eq!(recovered.report.discarded_files, [next.fresh_name()]);
        assert!(disk.read_file(&next.fresh_name()).is_none());
        settled(&disk, &["a", "b"]);
    }

    // A seal that is torn is no seal, and no record is in doubt.
    let disk_ = disk(&[&sealed.clone().flip(open_end.at() + 45)]);
    disk_.write_file(&next.fresh_name(), &next.bytes).unwrap();
    assert_eq!(trimmed(&disk_, &["a", "b"]).undecidable, None);

    // Not sealed, but the next one says that more was there: nothing goes.
    let far = disk(&[&open_end]);
    let later = open_end.clone().data(&["c"]).next();
    far.write_file(&later.fresh_name(), &later.bytes).unwrap();
    assert_eq!(
        corrupt_at(&refused(&far)),
        (FILE.to_owned(), open_end.at(), 2)
    );

    // Frames in a segment that is not part of the log: nothing goes.
    let odd = disk(&[&open_end]);
    let full = sealed.next().data(&["c"]);
    odd.write_file(&full.fresh_name(), &full.bytes).unwrap();
    assert_eq!(corrupt_at(&refused(&odd)).0, "00000000000000000002.seg.new");
}

#[test]
fn bytes_behind_the_seal_of_the_last_segment_are_corruption() {
    let sealed = Lay::first().data(&["a"]).seal();
    let next = sealed.next();
    let disk = disk(&[&sealed.clone().zeros(50).put(b"x")]);
    disk.write_file(&next.fresh_name(), &next.bytes).unwrap();
    assert_eq!(
        corrupt_at(&refused(&disk)),
        (FILE.to_owned(), sealed.at(), 1)
    );
}

#[test]
fn missing_foreign_and_renamed_segments_are_refused() {
    let one = Lay::first().data(&["a"]).seal();
    let two = one.next().data(&["b"]).seal();
    let three = two.next().data(&["c"]).note();
    let all = [&one, &two, &three];
    assert_eq!(ids(&open(&disk(&all)).unwrap()), ["a", "b", "c"]);
    let hole = |segments: &[&Lay]| {
        let error = refused(&disk(segments));
        let Error::MissingSegment {
            before,
            after,
            from,
            to,
        } = error
        else {
            panic!("{error}")
        };
        (before, after, from.get(), to.get())
    };
    let name = |base: u64| format!("{base:020}.seg");
    assert_eq!(
        hole(&[&two, &three]),
        ("the start".to_owned(), name(1), 0, 1)
    );
    assert_eq!(hole(&[&one, &three]), (name(0), name(2), 1, 2));
    assert_eq!(hole(&[&one, &two]), (name(1), "the end".to_owned(), 2, 2));

    // A copy under another name, and the segment itself under another name.
    let renamed = disk(&all);
    renamed
        .write_file("log/00000000000000000007.seg", &two.bytes)
        .unwrap();
    assert!(matches!(
        refused(&renamed),
        Error::Corrupt { .. } | Error::MissingSegment { .. }
    ));
    // Ranges that overlap, and a segment written behind other records.
    let longer = Lay::first().data(&["a", "z"]).seal();
    assert_eq!(
        corrupt_at(&refused(&disk(&[&longer, &two, &three]))),
        (name(1), 32, 2)
    );
    let other = Lay::first().data(&["A"]).seal();
    assert_eq!(
        corrupt_at(&refused(&disk(&[&other, &two, &three]))),
        (name(1), 40, 1)
    );
    // A flipped bit in the header of the middle one.
    let error = refused(&disk(&[&one, &two.clone().flip(30), &three]));
    assert_eq!(corrupt_at(&error), (name(1), 0, 1));
    // Of another log; of an earlier epoch.
    for header in [
        SegmentHeader {
            log_id: 1,
            ..two.header
        },
        SegmentHeader {
            epoch: 4,
            ..one.header
        },
    ] {
        let id = if header.epoch == 4 { "a" } else { "b" };
        let odd = Lay::with(header).data(&[id]).seal();
        let result = if header.epoch == 4 {
            refused(&disk(&[&odd, &two, &three]))
        } else {
            refused(&disk(&[&one, &odd, &three]))
        };
        assert!(matches!(result, Error::Corrupt { .. }), "{result}");
    }
}

#[test]
fn foreign_files_are_left_alone_and_reported() {
    let one = Lay::first().data(&["a"]).seal();
    let two = one.next().data(&["b"]).note();
    let foreign = disk(&[&one, &two]);
    foreign.write_file("log/notes.txt", b"mine").unwrap();
    foreign.write_file("log/1.seg", b"mine").unwrap();
    let report = opens_with(&foreign, &["a", "b"]).report;
    assert_eq!(report.ignored_files, ["1.seg", "notes.txt"]);
    assert!(!report.is_clean());
    assert_eq!(foreign.read_file("log/notes.txt").unwrap(), b"mine");
}

#[test]
fn a_renamed_segment_is_refused() {
    let one = Lay::first().data(&["a"]).seal();
    let two = one.next().data(&["b"]);
    let disk = disk(&[&one]);
    disk.write_file("log/00000000000000000009.seg", &two.bytes)
        .unwrap();
    let error = refused(&disk);
    assert_eq!(
        corrupt_at(&error),
        ("00000000000000000009.seg".to_owned(), 0, 9)
    );
}

#[test]
fn a_log_is_created_only_where_nothing_says_that_there_was_one() {
    let empty = SimDisk::new();
    let recovered = opens_with(&empty, &[]);
    assert!(recovered.report.created);
    assert_eq!(recovered.tail.position, 64);
    assert_eq!(empty.pending(), 0, "all of it is on disk");
    let id = recovered.log_id;
    let again = opens_with(&empty, &[]);
    assert!(!again.report.created);
    assert_eq!(again.log_id, id);

    // An interrupted creation is done again.
    for bytes in [vec![], vec![3; 100], Lay::first().zeros(50).bytes] {
        let half = SimDisk::new();
        half.write_file(&Lay::first().fresh_name(), &bytes).unwrap();
        let report = opens_with(&half, &[]).report;
        assert!(report.created);
        assert_eq!(report.discarded_files, [Lay::first().fresh_name()]);
        assert_eq!(half.files(), [Lay::first().name()]);
    }
    // An anchor without a log; a prepared segment without those before it; one with frames.
    let lost = SimDisk::new();
    plant(&lost, &anchor(1, 1));
    assert!(matches!(refused(&lost), Error::LogShorterThanAnchor { .. }));
    let lost = SimDisk::new();
    let later = Lay::new(5, 1);
    lost.write_file(&later.fresh_name(), &later.bytes).unwrap();
    assert!(matches!(refused(&lost), Error::MissingSegment { .. }));
    let lost = SimDisk::new();
    let full = Lay::first().data(&["a"]);
    lost.write_file(&full.fresh_name(), &full.bytes).unwrap();
    assert!(matches!(refused(&lost), Error::Corrupt { .. }));
}

#[test]
fn upstream_positions_come_from_the_last_segment_that_has_frames() {
    let one = Lay::first()
        .upstream("gone", 1, 0)
        .upstream("u", 5, 0)
        .upstream("u", 3, 0)
        .data(&["a"])
        .seal();
    let empty = one.next().zeros(100);
    let recovered = opens_with(&disk(&[&one, &empty]), &["a"]);
    let positions: Vec<(&str, u64)> = recovered
        .upstreams
        .iter()
        .map(|(name, position)| (&name[..], *position))
        .collect();
    assert_eq!(positions, [("gone", 1), ("u", 5)]);
    // A table is the whole truth: whatever the segment before said is in it.
    let table = one
        .next()
        .upstream("u", 7, FLAG_TABLE)
        .upstream("v", 1, 0)
        .data(&["b"]);
    let recovered = opens_with(&disk(&[&one, &table]), &["a", "b"]);
    assert_eq!(recovered.upstreams.len(), 2);
    assert_eq!(recovered.upstreams["u"], 7);
}

#[test]
fn a_length_that_lies_allocates_nothing() {
    let lay = Lay::first().data(&["a"]).sync();
    let at = lay.at() as usize;
    for len in [0, 1, 1 << 26, 1 << 31, u32::MAX] {
        // With a header checksum that holds, as only a writer could make it.
        let mut header = Header {
            payload_len: len,
            first: Offset::new(1),
            count: 1,
            unproven: 0,
            recorded_at_ms: 1,
            kind: FrameKind::Data,
            flags: 0,
            payload_crc: 9,
        };
        let lying = lay
            .clone()
            .put(&frame::encode_header(&header, lay.header.salt.at(lay.at())).0);
        let disk_ = disk(&[&lying.zeros(200)]);
        if len > 1 << 26 {
            assert!(matches!(refused(&disk_), Error::UnsupportedFormat { .. }));
        } else {
            trimmed(&disk_, &["a"]);
        }
        // And with one that does not.
        header.payload_len = 1;
        let mut lying = lay
            .clone()
            .put(&frame::encode_header(&header, lay.header.salt.at(lay.at())).0);
        lying.bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
        if len != 1 {
            trimmed(&disk(&[&lying.zeros(200)]), &["a"]);
        }
    }
}

#[test]
fn frames_of_this_segment_in_another_place_prove_nothing() {
    let lay = Lay::first().data(&["a"]).sync().data(&["b"]);
    let rest = lay.clone().sync().data(&["c"]).data(&["d"]).note();
    let stale = &rest.bytes[lay.bytes.len()..];
    for shift in [1, 39, 512, 4096] {
        let moved = lay.clone().zeros(shift).put(stale);
        trimmed(&disk(&[&moved]), &["a", "b"]);
    }
    let there = disk(&[&lay.put(stale)]);
    assert_eq!(ids(&open(&there).unwrap()), ["a", "b", "c", "d"]);
}

#[test]
fn other_bytes_under_the_same_name_are_kept_beside_it() {
    let lay = Lay::first().data(&["a"]).put(b"torn");
    let first = disk(&[&lay]);
    let name = trimmed(&first, &["a"]).quarantine;
    // The same place, length and checksum cannot be had by hand; the name can.
    for there in [&b"rent"[..], b"longer than it"] {
        let disk = disk(&[&lay]);
        disk.write_file(&name, there).unwrap();
        assert_eq!(trimmed(&disk, &["a"]).quarantine, format!("{name}-2"));
        assert_eq!(disk.read_file(&name).unwrap(), there);
    }
    let same = disk(&[&lay]);
    same.write_file(&name, b"torn").unwrap();
    assert_eq!(trimmed(&same, &["a"]).quarantine, name);
    assert_eq!(quarantine(&same).len(), 1);
}
