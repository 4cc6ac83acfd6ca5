//! Every bit, every length, and the scenarios of double restarts.

#![expect(clippy::as_conversions, reason = "lengths of a few kilobytes")]

use super::*;
use crate::frame::FLAG_TABLE;
use crate::log::Log;
use crate::log::recovery::Trimmed;
use crate::storage::OpenMode;
use crate::storage::disk::Disk;

/// Two segments of a few frames, and the ids of their events. `note`: closed well.
fn two_segments(note: bool) -> (Lay, Lay, Vec<&'static str>) {
    let one = Lay::first()
        .data(&["a", "b"])
        .sync()
        .upstream("u", 1, 0)
        .sync()
        .data(&["c"])
        .seal();
    let two = one
        .next()
        .upstream("u", 1, FLAG_TABLE)
        .data(&["d"])
        .sync()
        .data(&["e", "f"])
        .sync()
        .data(&["g"])
        .data(&["h"]);
    let two = if note { two.note() } else { two };
    let ids = vec!["a", "b", "c", "d", "e", "f", "g", "h"];
    (one, two.zeros(100), ids)
}

/// Opens and reads everything; what is read must be a front part of `ids`.
fn read(disk: &SimDisk, ids: &[&str]) -> Result<(usize, Option<Trimmed>)> {
    let before = disk.image_hash();
    let opened = open(disk);
    if opened.is_err() {
        assert_eq!(before, disk.image_hash());
    }
    let recovered = opened?;
    let found = ids_of(&recovered.catalog)?;
    assert_eq!(found[..], ids[..found.len()]);
    Ok((found.len(), recovered.report.trimmed))
}

fn is_damage(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt { .. } | Error::MissingSegment { .. } | Error::LogShorterThanAnchor { .. }
    )
}

#[test]
fn every_bit_of_a_log_gives_its_records_an_error_or_a_reported_trim() {
    let mut seen = [0_u32; 3];
    for (note, with_anchor) in [(true, false), (false, false), (false, true)] {
        let (one, two, ids) = two_segments(note);
        for (which, lay) in [&one, &two].into_iter().enumerate() {
            for bit in 0..lay.bytes.len() * 8 {
                let mut bad = lay.clone();
                bad.bytes[bit / 8] ^= 1 << (bit % 8);
                let pair = if which == 0 {
                    [&bad, &two]
                } else {
                    [&one, &bad]
                };
                let disk = disk(&pair);
                if with_anchor {
                    plant(&disk, &anchor(8, two.chain));
                }
                match read(&disk, &ids) {
                    Ok((8, None)) => seen[0] += 1,
                    Ok((8, Some(trimmed))) => {
                        assert_eq!(trimmed.undecidable.map_or(8, |range| range.start.get()), 8);
                        seen[0] += 1;
                    }
                    // Only g and h are proven by nothing, and only as long as nothing proves them.
                    Ok((left, trimmed)) => {
                        assert!(!note && !with_anchor && left >= 6, "{which} {bit} {left}");
                        let doubt = trimmed.expect("reported").undecidable.expect("in doubt");
                        assert_eq!(doubt, Offset::new(left as u64)..Offset::new(8));
                        seen[1] += 1;
                    }
                    Err(error) => {
                        assert!(is_damage(&error), "{which} {bit}: {error}");
                        seen[2] += 1;
                    }
                }
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 500), "{seen:?}");
}

#[test]
fn every_length_of_a_log_gives_its_records_an_error_or_a_trim_of_what_nothing_proves() {
    for (note, with_anchor) in [(true, false), (false, false), (false, true)] {
        let (one, two, ids) = two_segments(note);
        for (which, lay) in [&one, &two].into_iter().enumerate() {
            let mut lowest = 8;
            for len in 0..lay.bytes.len() {
                let mut bad = lay.clone();
                bad.bytes.truncate(len);
                let pair = if which == 0 {
                    [&bad, &two]
                } else {
                    [&one, &bad]
                };
                let disk = disk(&pair);
                if with_anchor {
                    plant(&disk, &anchor(8, two.chain));
                }
                match read(&disk, &ids) {
                    Ok((left, trimmed)) => {
                        assert!(!with_anchor || left == 8, "{len} {left}");
                        assert!(which == 1 || left == 8, "{len} {left}");
                        // With the end of the file all evidence behind it is gone too; what is
                        // left of a cut frame is reported.
                        assert!(len >= 64);
                        if let Some(trimmed) = trimmed {
                            assert_eq!(trimmed.from.get(), left as u64);
                        }
                        lowest = lowest.min(left);
                        // And it stays so.
                        assert_eq!(read(&disk, &ids[..left]).unwrap(), (left, None));
                    }
                    Err(error) => assert!(is_damage(&error), "{which} {len}: {error}"),
                }
            }
            assert_eq!(lowest, if which == 0 || with_anchor { 8 } else { 3 });
        }
    }
}

fn event(id: &str) -> Event {
    Event::new(id, "k", 1, "x")
}

fn log(disk: &SimDisk) -> Log {
    Log::open(storage(disk), options()).unwrap()
}

fn all(log: &Log) -> Vec<String> {
    let batch = log.next_batch(Offset::ZERO, 100).unwrap();
    let events = batch.records.into_iter().map(|record| match record.body {
        crate::event::Body::Event(event) => event.id,
        crate::event::Body::Decision(_) => panic!(),
    });
    events.collect()
}

/// B-001, B-004, B-007: what is appended behind a trimmed tail is there after the next restarts.
#[test]
fn torn_tail_is_trimmed_and_its_offset_is_reused_over_two_restarts() {
    let lay = Lay::first().data(&["a"]).sync().data(&["b"]);
    let torn = lay.clone().sync().data(&["lost"]);
    for cut in [1, 20, 39, 45, torn.bytes.len() - lay.bytes.len() - 1] {
        for zeros in [0, 1, 500, 3000] {
            let mut bytes = torn.bytes.clone();
            bytes.truncate(lay.bytes.len() + cut);
            bytes.resize(bytes.len() + zeros, 0);
            let disk = SimDisk::new();
            disk.write_file(&lay.name(), &bytes).unwrap();
            let first = log(&disk);
            assert!(first.recovery().trimmed.is_some());
            assert_eq!(all(&first), ["a", "b"]);
            let range = first.append(&[event("c")]).unwrap();
            assert_eq!(range.start, Offset::new(2));
            first.append(&[event("d")]).unwrap();
            // Killed without a close.
            let killed = disk.fork();
            let second = log(&killed);
            assert_eq!(second.recovery().trimmed, None);
            assert_eq!(all(&second), ["a", "b", "c", "d"]);
            second.append(&[event("e")]).unwrap();
            second.close().unwrap();
            let third = log(&killed);
            assert!(third.recovery().is_clean());
            assert_eq!(all(&third), ["a", "b", "c", "d", "e"]);
            // No zero gap between the frames, and what stood there is untouched.
            let bytes = killed.read_file(&lay.name()).unwrap();
            assert_eq!(&bytes[..lay.bytes.len()], &lay.bytes[..]);
            assert_eq!(quarantine(&killed).len(), 1);
        }
    }
}

/// B-008: a clean end with any number of zeros behind it.
#[test]
fn zeros_are_neither_records_nor_damage() {
    let lay = Lay::first().data(&["a"]).data(&["b"]).data(&["c"]);
    for zeros in [4096, 1_000_000] {
        let disk = disk(&[&lay.clone().zeros(zeros)]);
        let first = log(&disk);
        assert!(first.recovery().is_clean());
        let range = first.append(&[event("d")]).unwrap();
        assert_eq!(range.start, Offset::new(3));
        drop(first);
        assert_eq!(all(&log(&disk)), ["a", "b", "c", "d"]);
    }
}

#[test]
fn a_torn_tail_on_a_real_disk_is_trimmed_and_the_log_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Storage> = Arc::new(Disk::open(root.path()));
    let log = Log::open(Arc::clone(&disk), options()).unwrap();
    for n in 0..100 {
        log.append(&[event(&n.to_string())]).unwrap();
    }
    let active = log.segments().last().unwrap().file.clone();
    assert!(log.segments().len() > 1);
    log.close().unwrap();
    // Behind the note that close has left.
    let file = disk.open(&active, OpenMode::Write).unwrap();
    let bytes = file.len().unwrap();
    file.write_at(b"torn", bytes - 4).unwrap();
    drop(file);
    let reader = LogOptions {
        read_only: true,
        ..options()
    };
    let looked = Log::open(Arc::clone(&disk), reader).unwrap();
    assert!(looked.recovery().trimmed.is_some());
    assert_eq!(all(&looked).len(), 100);
    let log = Log::open(Arc::clone(&disk), options()).unwrap();
    let trimmed = log.recovery().trimmed.clone().unwrap();
    assert!(disk.path(&trimmed.quarantine).exists());
    assert_eq!(trimmed.undecidable, None);
    log.append(&[event("100")]).unwrap();
    assert_eq!(looked.refresh().unwrap(), Offset::new(101));
    drop(log);
    let log = Log::open(disk, options()).unwrap();
    assert!(log.recovery().is_clean());
    assert_eq!(all(&log).len(), 100, "batches of at most 100");
    assert_eq!(log.durable_end(), Offset::new(101));
}
