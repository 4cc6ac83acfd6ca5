//! Rot in a whole store: every bit, every length, every sector of a log of two segments of 32 KiB,
//! and segments that are swapped, doubled, renamed or gone.
//!
//! What must come of each case is worked out here, from what was appended and from where the frames
//! stand (a walk along DESIGN.md 5.1 and 5.2 that shares no code with foldlog). A case may end in
//! three ways only: all records as appended; a typed error that names the file and the byte; or a
//! cut of what no evidence calls acknowledged, reported, with a copy of the very bytes that went.
//!
//! `FOLDLOG_ROT=all` takes every bit of every kind of ending; CI takes every bit that decides
//! something else than its neighbours do (headers, seals, unproven frames), each 16th of the rest.
#![cfg(feature = "sim")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::case_sensitive_file_extension_comparisons,
    clippy::too_many_lines,
    clippy::wildcard_enum_match_arm,
    reason = "tests panic, index, count, and say how many cases they had"
)]

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use foldlog::orders::Orders;
use foldlog::state::fake::FakeStates;
use foldlog::storage::sim::{CallKind, CrashMode, SimDisk};
use foldlog::{
    Action, Body, Consumer, ConsumerOptions, Decision, Error, Event, Ingested, Offset, Options,
    Store,
};

/// Bytes of a segment: two of them are the log of 64 KiB.
const SEGMENT: u64 = 32 * 1024;
const HEADER: usize = 64;
const FRAME: usize = 39;
/// Events of the last group, which one sync covered.
const GROUP: u64 = 3;

/// Past the test harness, which hides what a passing test prints.
fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "rot: {line}").unwrap();
}

fn all_bits() -> bool {
    std::env::var("FOLDLOG_ROT").is_ok_and(|value| value == "all")
}

/// How a frame stands in its file, by DESIGN.md 5.2.
#[derive(Clone, Debug)]
struct Frame {
    at: usize,
    end: usize,
    first: u64,
    kind: u8,
}

/// The frames of a whole segment, seal and note included.
fn frames(bytes: &[u8]) -> Vec<Frame> {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut found = Vec::new();
    let mut at = HEADER;
    while at + FRAME <= bytes.len() && bytes[at + 28] != 0 {
        let end = at + FRAME + u32_at(at) as usize;
        found.push(Frame {
            at,
            end,
            first: u64::from_le_bytes(bytes[at + 4..at + 12].try_into().unwrap()),
            kind: bytes[at + 28],
        });
        at = end;
    }
    found
}

const DATA: u8 = 1;
const NOTE: u8 = 2;
const SEAL: u8 = 3;

/// A log, and what was put into it.
#[derive(Clone)]
struct Log {
    disk: SimDisk,
    states: FakeStates,
    /// All records that were acknowledged, in order.
    records: Vec<Body>,
    /// The log's files in order, their bytes and frames.
    files: Vec<(String, Vec<u8>, Vec<Frame>)>,
    /// Records below this offset are proven by something behind them.
    proven: u64,
}

/// What the log's last bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The power went right after the sync of a group of three: nothing behind it proves it.
    PowerCut,
    /// Closed, so that a note proves everything.
    Closed,
    /// As `PowerCut`, and a consumer's anchor proves everything.
    Anchored,
}

fn options(disk: &SimDisk, states: &FakeStates, segment_bytes: u64) -> Options {
    Store::options()
        .segment_bytes(segment_bytes)
        .storage(Arc::new(disk.clone()))
        .state_backend(Arc::new(states.clone()))
}

fn consumer(store: &Store) -> Consumer<Orders> {
    let options = ConsumerOptions::default();
    store.consumer_with("orders", Orders, options).unwrap()
}

/// Event `n`: each third is of a kind that Orders calls poison.
fn event(n: u64) -> Event {
    let kind = ["reserve", "pay", "no such kind"][n as usize % 3];
    let payload: Vec<u8> = (0..350).map(|at| (at * 7 + n * 13) as u8 | 1).collect();
    Event::new(
        format!("e{n}"),
        format!("k{}", n / 3),
        i64::try_from(n % 3 + 1).unwrap(),
        kind,
    )
    .with_payload(payload)
}

/// Appends until the log has so many segments; batches of three, an upstream's, and decisions.
fn fill(store: &Store, orders: &Consumer<Orders>, segments: usize, records: &mut Vec<Body>) {
    let mut round = records.len() as u64;
    let mut room = 0;
    while store.segments().len() < segments || room < 10 {
        if store.segments().len() == segments {
            room += 1;
        }
        let n = round * 3;
        round += 1;
        let batch = [event(n), event(n + 1), event(n + 2)];
        let start = records.len() as u64;
        if round.is_multiple_of(4) {
            let stored = store.append_from("up", round, &batch).unwrap();
            assert!(matches!(stored, Ingested::Stored(_)));
        } else {
            store.append_batch(&batch).unwrap();
        }
        records.extend(batch.map(Body::Event));
        if round.is_multiple_of(5) {
            orders.catch_up().unwrap();
            let note = format!("round {round}");
            let letter = Offset::new(start + 2);
            orders.discard(letter, Some(&note)).unwrap();
            records.push(Body::Decision(Decision {
                consumer: "orders".to_owned(),
                note: Some(note),
                action: Action::Discard { offset: letter },
            }));
        }
        assert_eq!(store.durable_end().get(), records.len() as u64);
    }
}

fn make(segments: usize, segment_bytes: u64, ending: Ending) -> Log {
    let (disk, states) = (SimDisk::with_seed(0x0b17), FakeStates::new());
    let store = options(&disk, &states, segment_bytes)
        .open("store")
        .unwrap();
    let orders = consumer(&store);
    let mut records = Vec::new();
    fill(&store, &orders, segments, &mut records);
    for n in 0..GROUP {
        let event = event(1_000_000 + n);
        store.write(&event).unwrap();
        records.push(Body::Event(event));
    }
    disk.settle();
    store.sync().unwrap();
    let disk = match ending {
        Ending::Closed => {
            drop(orders);
            store.close().unwrap();
            disk.crash(CrashMode::DropAll, 0)
        }
        // The note behind the group was not synced.
        Ending::PowerCut => disk.crash(CrashMode::DropAll, 0),
        Ending::Anchored => {
            let cut = disk.crash(CrashMode::DropAll, 0);
            orders.catch_up().unwrap();
            orders.flush().unwrap();
            let anchor = disk.read_file("state/orders/ANCHOR").unwrap();
            cut.write_file("state/orders/ANCHOR", &anchor).unwrap();
            cut
        }
    };
    drop(store);
    if ending != Ending::Anchored {
        let names = disk.files().into_iter();
        for name in names.filter(|name| name.starts_with("state/")) {
            disk.remove_file(&name).unwrap();
        }
    }
    disk.settle();
    let names = disk.files().into_iter();
    let files: Vec<_> = names
        .filter(|name| name.ends_with(".seg"))
        .map(|name| {
            let bytes = disk.read_file(&name).unwrap();
            let frames = frames(&bytes);
            (name, bytes, frames)
        })
        .collect();
    assert_eq!(files.len(), segments);
    let kinds: Vec<u8> = files[segments - 1]
        .2
        .iter()
        .map(|frame| frame.kind)
        .collect();
    assert_eq!(kinds.contains(&NOTE), ending == Ending::Closed, "{kinds:?}");
    assert!(
        files[..segments - 1]
            .iter()
            .all(|file| file.2.last().unwrap().kind == SEAL)
    );
    let end = records.len() as u64;
    Log {
        disk,
        states: FakeStates::new(),
        proven: if ending == Ending::PowerCut {
            end - GROUP
        } else {
            end
        },
        records,
        files,
    }
}

/// What has to come of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Due {
    /// All records, nothing cut.
    Whole,
    /// Refused at open: this file, a byte in this range, this offset expected there.
    Refused(usize, Range<usize>, u64),
    /// Opens; reading stops at this byte of this file, before this offset.
    Unreadable(usize, usize, u64),
    /// Cut from this byte of the last file on: records below this offset stay, and those behind
    /// are named as undecidable.
    Cut(usize, u64),
    /// As `Cut`, where what stands there looks like nothing that was ever synced.
    Torn(usize, u64),
    /// Ends at this offset; there is nothing to cut.
    Ends(u64),
    /// As `Cut`, but later headers are zeroed as well, so that the report can name fewer offsets;
    /// with them the proof may be gone of what was acknowledged, and no anchor has it.
    Unproven(usize, u64),
    /// Refused at open: an anchor proves that the log went on after this offset.
    Shorter(u64),
    /// Refused at open: segments are missing between these names, from and to these offsets.
    Missing(String, String, Range<u64>),
}

/// How many cases ended how.
#[derive(Default, Debug)]
struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }

    fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

fn is_file(path: &Path, name: &str) -> bool {
    path.ends_with(name)
}

/// Calls so far that change anything. The store's own directory is asked for at each open.
fn changes(disk: &SimDisk) -> u64 {
    let kinds = CallKind::ALL.into_iter();
    let kinds = kinds.filter(|kind| kind.changes() && *kind != CallKind::CreateDir);
    kinds.map(|kind| disk.calls_of(kind)).sum()
}

/// Reads up to the end, or to the first error; compares with what was appended.
fn read(store: &Store, log: &Log, context: &str) -> (u64, Option<Error>) {
    let mut from = Offset::ZERO;
    loop {
        if from == store.durable_end() {
            return (from.get(), None);
        }
        match store.next_batch(from, 1000) {
            Err(error) => return (from.get(), Some(error)),
            Ok(batch) => {
                for record in batch.records {
                    let at = record.offset.get();
                    assert_eq!(at, from.get(), "{context}: a hole");
                    assert!(
                        record.body == log.records[at as usize],
                        "{context}: record {at}"
                    );
                    from = record.offset.next();
                }
                assert_eq!(batch.next, from, "{context}");
            }
        }
    }
}

impl Log {
    fn end(&self) -> u64 {
        self.records.len() as u64
    }

    fn last(&self) -> usize {
        self.files.len() - 1
    }

    fn open(&self, disk: &SimDisk) -> Result<Store, Error> {
        options(disk, &self.states, SEGMENT).open("store")
    }

    fn open_to_read(&self, disk: &SimDisk) -> Result<Store, Error> {
        let options = options(disk, &self.states, SEGMENT).read_only(true);
        options.open("store")
    }

    /// A copy of the disk with other bytes in one file.
    fn with(&self, file: usize, bytes: &[u8]) -> SimDisk {
        let disk = self.disk.fork();
        disk.write_file(&self.files[file].0, bytes).unwrap();
        disk
    }

    /// What has to come of damage whose first byte is `at`, in `file`. `may_prove`: whether what
    /// stands behind the damage is still there.
    fn due(&self, file: usize, at: usize) -> Due {
        let (_, _, frames) = &self.files[file];
        let base = frames.first().map_or(0, |frame| frame.first);
        if at < HEADER {
            return Due::Refused(file, 0..1, base);
        }
        let Some(hit) = frames.iter().find(|frame| at < frame.end) else {
            // Zeros written ahead.
            let last = frames.last().unwrap();
            if file < self.last() {
                return Due::Refused(file, last.end..last.end + 1, last.first);
            }
            let place = if last.kind == NOTE { last.at } else { last.end };
            return Due::Cut(place, self.end());
        };
        match hit.kind {
            DATA if file < self.last() => Due::Unreadable(file, hit.at, hit.first),
            DATA if hit.first < self.proven => Due::Refused(file, hit.at..hit.at + 1, hit.first),
            DATA => Due::Cut(hit.at, hit.first),
            NOTE => Due::Cut(hit.at, self.end()),
            _ => Due::Refused(file, hit.at..hit.at + 1, hit.first),
        }
    }

    /// Opens `disk` and checks that it comes as due; `deep` also reads with a reader's handle and
    /// opens once more.
    fn check(&self, disk: &SimDisk, due: &Due, deep: bool, tally: &mut Tally, context: &str) {
        let before = (changes(disk), deep.then(|| disk.image_hash()));
        let unchanged = || {
            assert_eq!(changes(disk), before.0, "{context}: written to");
            assert!(
                before.1.is_none_or(|hash| hash == disk.image_hash()),
                "{context}"
            );
        };
        if deep {
            self.check_reader(disk, due, context);
            unchanged();
        }
        let cuts = matches!(due, Due::Cut(..) | Due::Torn(..) | Due::Unproven(..));
        let found = disk.read_file(&self.files[self.last()].0).filter(|_| cuts);
        let found = found.unwrap_or_default();
        let opened = self.open(disk);
        match due {
            Due::Refused(file, place, offset) => {
                let error = opened.err().unwrap_or_else(|| panic!("{context}: opened"));
                self.check_error(&error, *file, place.clone(), *offset, context);
                unchanged();
                tally.count("refused at open");
            }
            Due::Unreadable(file, at, offset) => {
                let store = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(store.recovery().trimmed, None, "{context}");
                assert_eq!(store.durable_end().get(), self.end(), "{context}");
                let (end, error) = read(&store, self, context);
                assert_eq!(end, *offset, "{context}");
                let error = error.unwrap_or_else(|| panic!("{context}: read"));
                self.check_error(&error, *file, *at..*at + 1, *offset, context);
                let error = store.verify().unwrap_err();
                self.check_error(&error, *file, *at..*at + 1, *offset, context);
                tally.count("error at the first read and in verify");
            }
            Due::Whole | Due::Ends(_) => {
                let due = if let Due::Ends(end) = due {
                    *end
                } else {
                    self.end()
                };
                let store = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(store.recovery().trimmed, None, "{context}");
                let (end, error) = read(&store, self, context);
                assert!(error.is_none() && end == due, "{context}: {end} {error:?}");
                assert_eq!(store.verify().unwrap().records, due, "{context}");
                tally.count(if due == self.end() {
                    "identical"
                } else {
                    "ends without a trace"
                });
            }
            Due::Shorter(_) | Due::Missing(..) => {
                let error = opened.err().unwrap_or_else(|| panic!("{context}: opened"));
                self.check_other_error(&error, due, context);
                unchanged();
                tally.count("refused at open");
            }
            Due::Cut(at, offset) | Due::Torn(at, offset) | Due::Unproven(at, offset) => {
                let store = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
                self.check_cut(&store, disk, (*at, *offset), due, (&found, context));
                drop(store);
                if deep {
                    let again = self.open(disk).unwrap();
                    assert_eq!(again.recovery().trimmed, None, "{context}");
                    assert_eq!(read(&again, self, context).0, *offset, "{context}");
                }
                let all = *offset == self.end();
                tally.count(if all {
                    "cut, all records"
                } else {
                    "cut, undecidable"
                });
            }
        }
    }

    fn check_cut(
        &self,
        store: &Store,
        disk: &SimDisk,
        (at, offset): (usize, u64),
        due: &Due,
        (bytes, context): (&[u8], &str),
    ) {
        let trimmed = store.recovery().trimmed.clone();
        let trimmed = trimmed.unwrap_or_else(|| panic!("{context}: nothing was cut"));
        assert_eq!(trimmed.file, self.files[self.last()].0, "{context}");
        assert_eq!(
            (trimmed.position, trimmed.from.get()),
            (at as u64, offset),
            "{context}"
        );
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        assert_eq!(trimmed.bytes, (end - at) as u64, "{context}");
        let kept = disk.read_file(&trimmed.quarantine);
        assert!(
            kept.is_some_and(|kept| kept == bytes[at..end]),
            "{context}: the copy"
        );
        assert!(
            !matches!(due, Due::Cut(..)) || offset >= self.proven,
            "{context}: acknowledged records were cut"
        );
        // Whatever may have been acknowledged is named.
        let named = trimmed
            .undecidable
            .map(|range| range.start.get()..range.end.get());
        if matches!(due, Due::Torn(..)) {
            assert_eq!(named, None, "{context}");
        } else if matches!(due, Due::Unproven(..)) {
            // Later headers are gone: at least the frame whose header stands is named.
            let named = named.unwrap_or_else(|| panic!("{context}: nothing is named"));
            assert_eq!(named.start, offset, "{context}");
            assert!(named.end > offset && named.end <= self.end(), "{context}");
        } else if offset < self.end() {
            assert_eq!(named, Some(offset..self.end()), "{context}");
        }
        assert_eq!(store.durable_end().get(), offset, "{context}");
        let (read_to, error) = read(store, self, context);
        assert!(error.is_none() && read_to == offset, "{context}");
    }

    fn check_error(
        &self,
        error: &Error,
        file: usize,
        place: Range<usize>,
        due: u64,
        context: &str,
    ) {
        let Error::Corrupt {
            file: path,
            position,
            offset,
            ..
        } = error
        else {
            panic!("{context}: {error}")
        };
        assert!(is_file(path, &self.files[file].0), "{context}: {error}");
        assert!(
            place.contains(&(*position as usize)),
            "{context}: {error}, not {place:?}"
        );
        assert_eq!(offset.get(), due, "{context}: {error}");
    }

    /// A reader gets what a writer gets, or everything before the damage, and writes nothing.
    fn check_reader(&self, disk: &SimDisk, due: &Due, context: &str) {
        let opened = self.open_to_read(disk);
        match due {
            Due::Refused(file, place, offset) => {
                let error = opened.err().unwrap_or_else(|| panic!("{context}: opened"));
                self.check_error(&error, *file, place.clone(), *offset, context);
            }
            Due::Shorter(_) | Due::Missing(..) => {
                let error = opened.err().unwrap_or_else(|| panic!("{context}: opened"));
                self.check_other_error(&error, due, context);
            }
            Due::Unreadable(_, _, end)
            | Due::Cut(_, end)
            | Due::Torn(_, end)
            | Due::Unproven(_, end) => {
                let store = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
                let (read_to, error) = read(&store, self, context);
                assert_eq!(read_to, *end, "{context}");
                assert_eq!(
                    error.is_some(),
                    matches!(due, Due::Unreadable(..)),
                    "{context}"
                );
                let cut = store.recovery().trimmed.as_ref();
                assert_eq!(
                    cut.is_none(),
                    matches!(due, Due::Unreadable(..)),
                    "{context}"
                );
            }
            Due::Whole | Due::Ends(_) => {
                let end = if let Due::Ends(end) = due {
                    *end
                } else {
                    self.end()
                };
                let store = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(read(&store, self, context).0, end, "{context}");
            }
        }
    }

    /// Errors that name no byte.
    fn check_other_error(&self, error: &Error, due: &Due, context: &str) {
        match (due, error) {
            (
                Due::Shorter(offset),
                Error::LogShorterThanAnchor {
                    consumer,
                    checkpoint,
                    end,
                },
            ) => {
                assert_eq!(consumer, "orders", "{context}");
                assert_eq!(
                    (checkpoint.get(), end.get()),
                    (self.end(), *offset),
                    "{context}"
                );
            }
            (
                Due::Missing(left, right, offsets),
                Error::MissingSegment {
                    before,
                    after,
                    from,
                    to,
                },
            ) => {
                assert_eq!((before, after), (left, right), "{context}");
                assert_eq!(from.get()..to.get(), *offsets, "{context}");
            }
            _ => panic!("{context}: {error}, not {due:?}"),
        }
    }

    /// What has to come of a file that ends after `len` bytes.
    fn due_for_length(&self, file: usize, len: usize, anchored: bool) -> Due {
        let (_, bytes, frames) = &self.files[file];
        let Some(hit) = frames.iter().find(|frame| len < frame.end) else {
            return Due::Whole;
        };
        if len < HEADER {
            return Due::Refused(file, 0..1, frames[0].first);
        }
        if file < self.last() {
            return Due::Refused(file, hit.at..hit.at + 1, hit.first);
        }
        let rest = bytes[hit.at..len].iter().any(|byte| *byte != 0);
        let offset = if hit.kind == NOTE {
            self.end()
        } else {
            hit.first
        };
        match (rest, anchored && hit.kind == DATA) {
            (true, true) => Due::Refused(file, hit.at..hit.at + 1, offset),
            (false, true) => Due::Shorter(offset),
            (true, false) => Due::Torn(hit.at, offset),
            (false, false) => Due::Ends(offset),
        }
    }

    /// What has to come of a file with zeros in `zeroed`.
    fn due_for_zeros(&self, file: usize, zeroed: Range<usize>, anchored: bool) -> Due {
        let (_, good, _) = &self.files[file];
        let Some(first) = zeroed.clone().find(|at| good[*at] != 0) else {
            return Due::Whole;
        };
        let (_, _, frames) = &self.files[file];
        if file < self.last()
            && zeroed.end > frames.last().unwrap().at
            && first >= HEADER
            && let Some(hit) = frames.iter().find(|frame| first < frame.end)
        {
            // Without a seal at the end the segment is looked through at open.
            return Due::Refused(file, hit.at..hit.at + 1, hit.first);
        }
        match self.due(file, first) {
            Due::Cut(at, offset) => {
                let stays = |at: usize| good[at] != 0 && !zeroed.contains(&at);
                let rest = (at..good.len()).any(stays);
                let header = (at..at + FRAME).any(stays);
                match (rest, header) {
                    (false, _) if anchored && offset < self.end() => Due::Shorter(offset),
                    (false, _) => Due::Ends(offset),
                    (true, false) => Due::Torn(at, offset),
                    // A header with nothing but zeros behind it is a write that was torn.
                    (true, true) if !(at + FRAME..good.len()).any(stays) => Due::Torn(at, offset),
                    (true, true) => {
                        assert!(offset >= self.proven, "zeros from {first}: {offset}");
                        Due::Unproven(at, offset)
                    }
                }
            }
            due => due,
        }
    }
}

/// Whether a bit of this byte is taken in CI. Bits of one payload all do the same.
fn is_taken(log: &Log, file: usize, byte: usize, bit: usize, step: usize) -> bool {
    let (_, bytes, frames) = &log.files[file];
    let Some(frame) = frames.iter().find(|frame| byte < frame.end) else {
        // Zeros: those near the end in full.
        return byte < frames.last().unwrap().end + FRAME || (byte * 8 + bit).is_multiple_of(step);
    };
    let open = frame.kind != DATA || frame.first >= log.proven;
    let last = byte + 1 == bytes.len() || byte + 2 >= frame.end;
    byte < frame.at + FRAME || open || last || (byte * 8 + bit).is_multiple_of(step)
}

#[test]
fn every_bit_gives_the_records_or_an_error_with_its_place_or_a_reported_cut() {
    let mut bits = 0;
    let mut tally = Tally::default();
    for ending in [Ending::PowerCut, Ending::Closed, Ending::Anchored] {
        let log = make(2, SEGMENT, ending);
        for file in 0..2 {
            let good = log.files[file].1.clone();
            assert_eq!(good.len(), SEGMENT as usize);
            let step = match (all_bits(), ending) {
                (true, _) => 1,
                (false, Ending::PowerCut) => 16,
                // The same but for the last frames.
                (false, _) => 512,
            };
            let mut bad = good.clone();
            for byte in 0..good.len() {
                for bit in 0..8 {
                    if !is_taken(&log, file, byte, bit, step) {
                        continue;
                    }
                    bad[byte] ^= 1 << bit;
                    let context = format!("{ending:?} file {file} byte {byte} bit {bit}");
                    let disk = log.with(file, &bad);
                    let deep = (byte * 8 + bit).is_multiple_of(61);
                    log.check(&disk, &log.due(file, byte), deep, &mut tally, &context);
                    bad[byte] = good[byte];
                    bits += 1;
                }
            }
        }
    }
    say(&format!("{bits} flipped bits: {:?}", tally.0));
    assert_eq!(tally.total(), bits);
    assert!(
        bits >= if all_bits() { 3 * 524_288 } else { 60_000 },
        "{bits}"
    );
    for what in ["refused at open", "cut, undecidable", "cut, all records"] {
        assert!(tally.of(what) > 1000, "{what}: {:?}", tally.0);
    }
}

/// Without an anchor, the end of a file takes all evidence of what stood there with it: the log
/// ends before the cut, by whole frames. With one, not a single record goes without an error.
#[test]
fn every_length_gives_the_records_or_an_error_or_a_reported_cut_of_the_last_segment() {
    let mut lengths = 0;
    let mut tally = Tally::default();
    for ending in [Ending::PowerCut, Ending::Closed, Ending::Anchored] {
        let log = make(2, SEGMENT, ending);
        let anchored = ending == Ending::Anchored;
        for file in 0..2 {
            let good = log.files[file].1.clone();
            for len in 0..good.len() {
                let step = if all_bits() || (file == 1 && ending != Ending::Closed) {
                    1
                } else {
                    8
                };
                let frames = &log.files[file].2;
                let near = frames.iter().any(|frame| len.abs_diff(frame.end) < 2);
                if !near && !len.is_multiple_of(step) {
                    continue;
                }
                let context = format!("{ending:?} file {file} length {len}");
                let disk = log.with(file, &good[..len]);
                let due = log.due_for_length(file, len, anchored);
                let may_end = matches!(due, Due::Torn(..) | Due::Ends(_));
                assert!(
                    !may_end || (!anchored && file == 1) || {
                        // Of the note only.
                        matches!(due, Due::Torn(_, end) | Due::Ends(end) if end == log.end())
                    }
                );
                log.check(&disk, &due, len.is_multiple_of(61), &mut tally, &context);
                lengths += 1;
            }
        }
    }
    say(&format!("{lengths} lengths: {:?}", tally.0));
    assert_eq!(tally.total(), lengths);
    assert!(lengths >= 80_000, "{lengths}");
}

#[test]
fn every_zeroed_sector_gives_the_records_or_an_error_or_a_reported_cut() {
    let mut sectors = 0;
    let mut tally = Tally::default();
    for ending in [Ending::PowerCut, Ending::Closed, Ending::Anchored] {
        let log = make(2, SEGMENT, ending);
        for file in 0..2 {
            let good = log.files[file].1.clone();
            // Not only where a disk would do it: from each multiple of 16 on, and runs of sectors.
            for from in (0..good.len()).step_by(16) {
                for len in [512, 4096] {
                    let to = good.len().min(from + len);
                    let mut bad = good.clone();
                    bad[from..to].fill(0);
                    let disk = log.with(file, &bad);
                    let mut due = log.due_for_zeros(file, from..to, ending == Ending::Anchored);
                    if let Due::Refused(1, ref place, offset) = due
                        && place.start > 0
                        && !log.is_proven_behind(place.start, to, ending)
                    {
                        due = log.due_without_proof(place.start, offset, from..to);
                    }
                    let context = format!("{ending:?} file {file} zeros {from}..{to}");
                    log.check(&disk, &due, from.is_multiple_of(512), &mut tally, &context);
                    sectors += 1;
                }
            }
        }
    }
    say(&format!("{sectors} runs of zeros: {:?}", tally.0));
    assert_eq!(tally.total(), sectors);
    assert!(sectors >= 24_000, "{sectors}");
}

impl Log {
    /// Whether the frame at `at` is proven synced by a whole frame header at `from` or behind it
    /// (each frame of the last group proves all before the group, as does a note), or an anchor.
    fn is_proven_behind(&self, at: usize, from: usize, ending: Ending) -> bool {
        let (_, good, frames) = &self.files[self.last()];
        let group = frames
            .iter()
            .rfind(|frame| frame.first < self.end() - GROUP && frame.kind == DATA);
        // Zeroing zeros changes nothing: a header may begin with some.
        let whole = |start: usize| (start..from).all(|byte| good[byte] == 0);
        let behind = frames
            .iter()
            .filter(|frame| frame.at > at && whole(frame.at));
        let in_group = at > group.unwrap().at;
        ending == Ending::Anchored
            || behind
                .into_iter()
                .any(|frame| frame.kind == NOTE || !in_group)
    }

    /// As without proof: cut, or the end.
    fn due_without_proof(&self, at: usize, offset: u64, zeroed: Range<usize>) -> Due {
        let (_, good, _) = &self.files[self.last()];
        let stays = |at: usize| good[at] != 0 && !zeroed.contains(&at);
        // A header with nothing but zeros behind it is a write that was torn: DESIGN.md, recovery.
        let payload = (at + FRAME..good.len()).any(stays);
        match ((at..good.len()).any(stays), (at..at + FRAME).any(stays)) {
            (false, _) => Due::Ends(offset),
            (true, false) => Due::Torn(at, offset),
            (true, true) if !payload => Due::Torn(at, offset),
            (true, true) => Due::Unproven(at, offset),
        }
    }
}

/// A disk on which the segments were moved around, and what has to come of it.
struct Moved {
    name: String,
    disk: SimDisk,
    due: Due,
}

/// Name of the segment with this base.
fn path(base: u64) -> String {
    format!("log/{base:020}.seg")
}

impl Log {
    fn base(&self, file: usize) -> u64 {
        self.files[file].2[0].first
    }

    fn stem(&self, file: usize) -> String {
        self.files[file].0["log/".len()..].to_owned()
    }

    /// `due` for a file that is none of the log's three: named by its own path.
    fn moved(&self, name: String, due: Due, change: impl FnOnce(&SimDisk)) -> Moved {
        let disk = self.disk.fork();
        change(&disk);
        Moved { name, disk, due }
    }

    fn missing(&self, cases: &mut Vec<Moved>) {
        let [a, b, c] = [0, 1, 2].map(|file| self.stem(file));
        let (start, end) = ("the start".to_owned(), "the end".to_owned());
        let [_, second, third] = [0, 1, 2].map(|file| self.base(file));
        let dues = [
            (vec![0], Due::Missing(start.clone(), b.clone(), 0..second)),
            (vec![1], Due::Missing(a.clone(), c.clone(), second..third)),
            (vec![2], Due::Missing(b, end.clone(), third..third)),
            (vec![0, 1], Due::Missing(start, c, 0..third)),
            (vec![1, 2], Due::Missing(a, end, second..second)),
        ];
        for (gone, due) in dues {
            let remove = |disk: &SimDisk| {
                for file in &gone {
                    disk.remove_file(&self.files[*file].0).unwrap();
                }
            };
            cases.push(self.moved(format!("missing {gone:?}"), due, remove));
        }
    }

    fn exchanged(&self, cases: &mut Vec<Moved>) {
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let due = Due::Refused(one, 0..1, self.base(one));
            let swap = |disk: &SimDisk| {
                disk.write_file(&self.files[one].0, &self.files[other].1)
                    .unwrap();
                disk.write_file(&self.files[other].0, &self.files[one].1)
                    .unwrap();
            };
            cases.push(self.moved(format!("swapped {one} {other}"), due, swap));
        }
        for from in 0..3 {
            for to in (0..3).filter(|to| *to != from) {
                let due = Due::Refused(to, 0..1, self.base(to));
                let over = |disk: &SimDisk| {
                    disk.write_file(&self.files[to].0, &self.files[from].1)
                        .unwrap();
                };
                cases.push(self.moved(format!("{from} over {to}"), due, over));
            }
        }
    }
}

#[test]
fn segments_swapped_doubled_renamed_or_missing_are_refused_by_name() {
    let mut tally = Tally::default();
    let mut cases = 0;
    for ending in [Ending::PowerCut, Ending::Closed, Ending::Anchored] {
        let log = make(3, SEGMENT, ending);
        let mut all = Vec::new();
        log.missing(&mut all);
        log.exchanged(&mut all);
        for moved in all {
            let context = format!("{ending:?} {}", moved.name);
            log.check(&moved.disk, &moved.due, true, &mut tally, &context);
            cases += 1;
        }
        let others = [
            1,
            log.base(1) + 1,
            log.base(2) + 1,
            log.end(),
            log.end() + 1000,
            u64::MAX,
        ];
        for file in 0..3 {
            for base in others {
                for keep in [true, false] {
                    let context = format!("{ending:?} {file} as {base}, kept: {keep}");
                    log.check_stranger(file, base, keep, &mut tally, &context);
                    cases += 1;
                }
            }
        }
        cases += log.check_names_that_are_no_segments(&mut tally, ending);
    }
    say(&format!("{cases} moved segments: {:?}", tally.0));
    assert_eq!(tally.total(), cases);
    assert!(cases >= 150, "{cases}");
}

impl Log {
    /// One segment's bytes under the name of another base, beside it or in its place.
    fn check_stranger(&self, file: usize, base: u64, keep: bool, tally: &mut Tally, context: &str) {
        let disk = self.disk.fork();
        disk.write_file(&path(base), &self.files[file].1).unwrap();
        if !keep {
            disk.remove_file(&self.files[file].0).unwrap();
        }
        // In order of the names: whichever comes first, the wrong name or the hole.
        let gone = (!keep).then(|| self.base(file));
        let after_gone = (file + 1..3).map(|file| self.base(file)).min();
        let due = match (gone, after_gone) {
            (Some(_), Some(next)) if next < base => {
                let before = file.checked_sub(1).map(|before| self.stem(before));
                let before = before.unwrap_or_else(|| "the start".to_owned());
                Due::Missing(before, self.stem(file + 1), self.base(file)..next)
            }
            _ => Due::Whole, // The stranger itself; see below.
        };
        if due != Due::Whole {
            return self.check(&disk, &due, true, tally, context);
        }
        let before = disk.image_hash();
        for opened in [self.open(&disk), self.open_to_read(&disk)] {
            let error = opened.err().unwrap_or_else(|| panic!("{context}: opened"));
            let Error::Corrupt {
                file,
                position: 0,
                offset,
                ..
            } = &error
            else {
                panic!("{context}: {error}")
            };
            assert!(is_file(file, &path(base)), "{context}: {error}");
            assert_eq!(offset.get(), base, "{context}");
            assert_eq!(disk.image_hash(), before, "{context}");
        }
        tally.count("refused at open");
    }

    /// Copies under names that are no segment's are left alone; a segment under construction that
    /// holds frames is refused, also in the place of the last: a reader would not see its records.
    fn check_names_that_are_no_segments(&self, tally: &mut Tally, ending: Ending) -> u64 {
        let mut cases = 0;
        for name in [
            "copy.seg",
            "0.seg",
            "00000000000000000000.seg.bak",
            "00000000000000000000",
        ] {
            for file in 0..3 {
                let disk = self.disk.fork();
                disk.write_file(&format!("log/{name}"), &self.files[file].1)
                    .unwrap();
                let context = format!("{ending:?} {file} as {name}");
                assert_eq!(self.open(&disk).unwrap().recovery().ignored_files, [name]);
                self.check(&disk, &Due::Whole, true, tally, &context);
                cases += 1;
            }
        }
        for (file, keep) in [(0, true), (1, true), (2, true), (2, false)] {
            let disk = self.disk.fork();
            let name = format!("{}.new", self.files[file].0);
            disk.write_file(&name, &self.files[file].1).unwrap();
            if !keep {
                disk.remove_file(&self.files[file].0).unwrap();
            }
            let before = disk.image_hash();
            let context = format!("{ending:?} {name}, kept: {keep}");
            for opened in [self.open(&disk), self.open_to_read(&disk)] {
                let error = opened.err().unwrap_or_else(|| panic!("{context}: opened"));
                let Error::Corrupt {
                    file: path,
                    position: 64,
                    offset,
                    ..
                } = &error
                else {
                    panic!("{context}: {error}")
                };
                assert!(is_file(path, &name), "{context}: {error}");
                assert_eq!(offset.get(), self.base(file), "{context}");
                assert_eq!(disk.image_hash(), before, "{context}");
            }
            tally.count("refused at open");
            cases += 1;
        }
        cases
    }
}
