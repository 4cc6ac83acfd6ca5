//! A log of several segments, damaged by a script, and what must hold when it is opened again:
//! no record that was never written, and none missing without an error that evidence proves.
//!
//! What is evidence is said here a second time, from DESIGN.md, and found by comparing bytes with
//! those that were written; nothing is asked of the code under test.

use std::sync::OnceLock;

use foldlog::sequence::Sequence;
use foldlog::state::fake::FakeStates;
use foldlog::storage::sim::{CrashMode, SimDisk};
use foldlog::{Body, Error, Event, Offset, Options, Store};

use crate::{FRAME_HEADER_LEN, SEGMENT_HEADER_LEN, read_all};

const ANCHOR: &str = "state/c/ANCHOR";
const DATA: u8 = 1;
/// Fewer changed bytes than two checksums and a change that they cover: so no such changes can
/// pass for a good frame.
const CHANGES_MAX: usize = 3;
const STEPS_MAX: usize = 6;

/// The choices of an input, one byte each; zeros when they run out.
pub struct Script<'a>(pub &'a [u8]);

impl Script<'_> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % n
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[usize::from(self.byte()) % all.len()]
    }
}

struct Frame {
    position: usize,
    end: usize,
    unproven: usize,
    kind: u8,
    end_offset: u64,
}

struct File {
    name: String,
    bytes: Vec<u8>,
    base: u64,
    frames: Vec<Frame>,
}

/// A log as it was written, whole.
pub struct Written {
    disk: SimDisk,
    states: FakeStates,
    bodies: Vec<Body>,
    files: Vec<File>,
    anchor: Option<(Vec<u8>, u64)>,
}

/// The logs to damage: closed with a consumer at its end; crashed with a consumer in its middle;
/// crashed within a roll, with a `.seg.new`.
pub fn written() -> &'static [Written; 3] {
    static WRITTEN: OnceLock<[Written; 3]> = OnceLock::new();
    WRITTEN.get_or_init(|| [closed(), crashed(), rolling()])
}

/// How to open a store on this disk with this state.
pub fn options(disk: &SimDisk, states: &FakeStates) -> Options {
    crate::options(disk).state_backend(std::sync::Arc::new(states.clone()))
}

/// An event of the log: mostly in order, sometimes too early or of a bad version.
fn event(n: u64) -> Event {
    let version = [1, 2, 3, 5, 4, 2][usize::try_from(n % 6).expect("small")];
    Event::new(format!("e{n}"), format!("k{}", n / 6), version, "kind").with_payload([b'!'; 200])
}

/// Appends frames of 1, 2 and 3 records until one fails or there are so many records.
fn fill(store: &Store, from: u64, to: u64) {
    let mut next = from;
    while next < to {
        let many = (1 + next % 3).min(to - next);
        let batch: Vec<Event> = (next..next + many).map(event).collect();
        if store.append_batch(&batch).is_err() {
            return;
        }
        next += many;
    }
}

fn closed() -> Written {
    let (disk, states) = (SimDisk::new(), FakeStates::new());
    let store = options(&disk, &states).open("store").expect("open");
    fill(&store, 0, 50);
    let consumer = store.consumer("c", Sequence).expect("consumer");
    consumer.flush().expect("flush");
    drop(consumer);
    store.close().expect("close");
    drop(store);
    Written::of(disk, states)
}

fn crashed() -> Written {
    let (disk, states) = (SimDisk::with_seed(1), FakeStates::new());
    let store = options(&disk, &states).open("store").expect("open");
    fill(&store, 0, 20);
    let consumer = store.consumer("c", Sequence).expect("consumer");
    consumer.flush().expect("flush");
    fill(&store, 20, 47);
    let image = disk.crash(CrashMode::KeepAll, 0);
    Written::of(image, states.copy())
}

fn rolling() -> Written {
    for number in 1.. {
        let (disk, states) = (SimDisk::with_seed(2), FakeStates::new());
        disk.crash_at(number);
        if let Ok(store) = options(&disk, &states).open("store") {
            fill(&store, 0, 50);
        }
        assert!(
            disk.crashed(),
            "no crash left a `.seg.new` beside two segments"
        );
        let image = disk.crash(CrashMode::KeepAll, 0);
        let files = image.files();
        let fresh = files.iter().any(|name| name.ends_with(".seg.new"));
        if fresh && files.iter().filter(|name| is_log(name)).count() == 3 {
            return Written::of(image, states);
        }
    }
    unreachable!()
}

fn is_log(name: &str) -> bool {
    name.starts_with("log/") && name.contains(".seg")
}

/// All files of the log with their bytes.
pub fn log_files(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let names = disk.files().into_iter().filter(|name| is_log(name));
    names
        .map(|name| {
            let bytes = disk.read_file(&name).expect("listed");
            (name, bytes)
        })
        .collect()
}

fn frames(bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut position = SEGMENT_HEADER_LEN;
    while let Some(header) = bytes.get(position..position + FRAME_HEADER_LEN) {
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let kind = header[28];
        if kind == 0 {
            break;
        }
        let first = u64::from_le_bytes(header[4..12].try_into().expect("eight"));
        let end = position + FRAME_HEADER_LEN + usize::try_from(word(0)).expect("small");
        frames.push(Frame {
            position,
            end,
            unproven: usize::try_from(word(16)).expect("small"),
            kind,
            end_offset: first + u64::from(word(12)),
        });
        position = end;
    }
    frames
}

impl Written {
    fn of(disk: SimDisk, states: FakeStates) -> Self {
        let files = log_files(&disk).into_iter().map(|(name, bytes)| File {
            base: name["log/".len()..][..20].parse().expect("digits"),
            frames: frames(&bytes),
            name,
            bytes,
        });
        let files: Vec<File> = files.collect();
        let anchor = disk.read_file(ANCHOR).map(|bytes| {
            let checkpoint = bytes[24..32].try_into().expect("eight");
            (bytes, u64::from_le_bytes(checkpoint))
        });
        let store = crate::options(&disk.fork()).open("store").expect("open");
        let (records, error) = read_all(&store);
        assert!(error.is_none());
        assert!(files.len() > 2, "too few segments");
        Self {
            bodies: records.into_iter().map(|record| record.body).collect(),
            disk,
            states,
            files,
            anchor,
        }
    }

    /// A copy to damage.
    pub fn copy(&self) -> (SimDisk, FakeStates) {
        (self.disk.fork(), self.states.copy())
    }

    /// How many records must be served, or an error: by an anchor, headers of segments and of
    /// frames that stand where they stood, unharmed.
    fn proven(&self, disk: &SimDisk) -> u64 {
        let mut proven = 0;
        if let Some((bytes, checkpoint)) = &self.anchor
            && disk.read_file(ANCHOR).as_ref() == Some(bytes)
        {
            proven = *checkpoint;
        }
        for (file, now) in self.unharmed_files(disk) {
            proven = proven.max(file.base);
            for frame in file.unharmed_frames(&now) {
                let place = frame.position - frame.unproven;
                let before = file.frames.iter().filter(|frame| frame.kind == DATA);
                let before = before.filter(|frame| frame.end <= place);
                proven = proven.max(before.map(|frame| frame.end_offset).max().unwrap_or(0));
            }
        }
        proven
    }

    /// Files of the log under their own name and with their own header, and what they hold now.
    fn unharmed_files(&self, disk: &SimDisk) -> impl Iterator<Item = (&File, Vec<u8>)> {
        let header = ..SEGMENT_HEADER_LEN;
        self.files
            .iter()
            .filter_map(|file| Some((file, disk.read_file(&file.name)?)))
            .filter(move |(file, now)| {
                // Without a header it is only a name.
                now.get(header).is_some() && now.get(header) == file.bytes.get(header)
            })
    }

    fn prefix(&self, bodies: &[Body]) {
        assert!(
            self.bodies.starts_with(bodies),
            "records that were never written"
        );
    }
}

impl File {
    fn unharmed_frames<'a>(&'a self, now: &'a [u8]) -> impl Iterator<Item = &'a Frame> {
        self.frames.iter().filter(|frame| {
            let header = frame.position..frame.position + FRAME_HEADER_LEN;
            now.get(header.clone()) == self.bytes.get(header)
        })
    }
}

/// Damages the files of the log, and the anchor, as the script says.
pub fn damage(disk: &SimDisk, script: &mut Script<'_>) {
    let mut changes = 0;
    for _ in 0..STEPS_MAX {
        let files = log_files(disk);
        if files.is_empty() || script.0.is_empty() {
            return;
        }
        let step = script.byte() % 11;
        let (name, mut bytes) = script.pick(&files).clone();
        let put = |bytes: &[u8]| disk.write_file(&name, bytes).expect("a good path");
        match step {
            0 | 1 if changes < CHANGES_MAX && !bytes.is_empty() => {
                changes += 1;
                let place = script.below(bytes.len());
                bytes[place] ^= script.byte();
                put(&bytes);
            }
            2 if !bytes.is_empty() => {
                let from = script.below(bytes.len());
                let to = (from + 4 * usize::from(script.byte())).min(bytes.len());
                bytes[from..to].fill(0);
                put(&bytes);
            }
            3 => {
                bytes.truncate(script.below(bytes.len() + 1));
                put(&bytes);
            }
            4 => {
                bytes.resize(bytes.len() + script.below(2048), 0);
                put(&bytes);
            }
            5 if !bytes.is_empty() => {
                let other = &script.pick(&files).1;
                let from = script.below(other.len() + 1);
                let len = (4 * usize::from(script.byte())).min(other.len() - from);
                let place = script.below(bytes.len());
                let len = len.min(bytes.len() - place);
                bytes[place..place + len].copy_from_slice(&other[from..from + len]);
                put(&bytes);
            }
            6 => {
                let (other, content) = script.pick(&files);
                disk.write_file(other, &bytes).expect("a good path");
                put(content);
            }
            7 => {
                disk.remove_file(&name).expect("listed");
                disk.write_file(&other_name(script, &name), &bytes)
                    .expect("a good path");
            }
            8 => disk.remove_file(&name).expect("listed"),
            9 => disk
                .write_file(&other_name(script, &name), &bytes)
                .expect("a good path"),
            _ => {
                let anchor = disk.read_file(ANCHOR);
                let _ = disk.remove_file(ANCHOR);
                if let Some(mut bytes) = anchor.filter(|_| script.byte() % 2 == 0) {
                    let place = script.below(bytes.len());
                    bytes[place] ^= script.byte();
                    disk.write_file(ANCHOR, &bytes).expect("a good path");
                }
            }
        }
    }
}

/// Another name that a segment, or a `.seg.new`, may have.
fn other_name(script: &mut Script<'_>, name: &str) -> String {
    match script.byte() % 4 {
        0 => name.replace(".new", "") + ".new",
        1 => name.replace(".new", ""),
        _ => format!(
            "log/{:020}.seg{}",
            script.byte(),
            if name.ends_with(".new") { ".new" } else { "" }
        ),
    }
}

/// How to check a damaged copy.
#[derive(Clone, Copy)]
pub struct How {
    /// The damage may hold frames with good checksums: what is read need not be what was written.
    pub forged: bool,
    /// The id of the record to go on with.
    pub after: &'static str,
}

/// What an opening served.
#[derive(Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Whether the copy opened and could be read to its end.
    pub whole: bool,
    /// The records.
    pub bodies: Vec<Body>,
}

fn read_bodies(store: Result<Store, Error>) -> Accepted {
    let Ok(store) = store else {
        let bodies = Vec::new();
        return Accepted {
            whole: false,
            bodies,
        };
    };
    let (records, error) = read_all(&store);
    for (place, record) in (0..).zip(&records) {
        assert_eq!(record.offset, Offset::new(place));
    }
    Accepted {
        whole: error.is_none(),
        bodies: records.into_iter().map(|record| record.body).collect(),
    }
}

impl Written {
    /// Opens a damaged copy in every way there is and checks all that must hold. Answers what an
    /// open for writing accepted.
    pub fn check(&self, (disk, states): &(SimDisk, FakeStates), how: How) -> Accepted {
        let How { forged, after } = how;
        let before = log_files(disk);
        let proven = self.proven(disk);
        let judge = |accepted: &Accepted, what: &str| {
            if forged {
                return;
            }
            self.prefix(&accepted.bodies);
            let served = u64::try_from(accepted.bodies.len()).expect("small");
            assert!(
                !accepted.whole || served >= proven,
                "{what}: {served} records served without an error, {proven} are proven"
            );
        };
        let read_only = options(disk, states).read_only(true);
        let read_only = read_bodies(read_only.open("store"));
        judge(&read_only, "read-only");
        let strict = options(disk, states).read_only(true).strict(true);
        judge(&read_bodies(strict.open("store")), "strict");
        assert!(log_files(disk) == before, "a read-only open wrote");

        let store = options(disk, states).open("store");
        if store.is_err() {
            assert!(log_files(disk) == before, "a refused open wrote");
            return read_bodies(store);
        }
        let accepted = read_bodies(store.clone());
        judge(&accepted, "for writing");
        assert!(
            forged || accepted.bodies.starts_with(&read_only.bodies),
            "a read-only open served more"
        );
        let store = store.expect("just seen");
        if !forged && accepted.whole && store.recovery().trimmed.is_none() {
            self.nothing_silent(&before, accepted.bodies.len());
        }
        check_state(disk, &store);
        go_on((disk, states), store, &accepted, after);
        accepted
    }

    /// After an open that reported no trim no frame is gone that stood unharmed.
    fn nothing_silent(&self, before: &[(String, Vec<u8>)], served: usize) {
        let served = u64::try_from(served).expect("small");
        for (name, now) in before {
            let Some(file) = self.files.iter().find(|file| file.name == *name) else {
                continue;
            };
            for frame in file.unharmed_frames(now) {
                assert!(
                    frame.kind != DATA || frame.end_offset <= served,
                    "a frame went without a word"
                );
            }
        }
    }
}

/// The state that was there is refused, or comes to what a fold of this log comes to.
fn check_state(disk: &SimDisk, store: &Store) {
    let Ok(consumer) = store.consumer("c", Sequence) else {
        return;
    };
    let found = (consumer.digest(), consumer.checkpoint());
    let copy = crate::options(&disk.fork()).read_only(true);
    let Ok(copy) = copy.open("store") else {
        return;
    };
    if let Ok(fresh) = copy.consumer("c", Sequence) {
        assert_eq!((fresh.digest(), fresh.checkpoint()), found, "wrong state");
    }
}

/// What opened can be appended to, and opens again.
fn go_on(
    (disk, states): (&SimDisk, &FakeStates),
    store: Store,
    accepted: &Accepted,
    after: &'static str,
) {
    let event = Event::new(after, "k", 1, "kind");
    let appended = store.append(&event);
    let end = store.durable_end();
    drop(store);
    let store = options(disk, states).open("store");
    let store = store.expect("what opened once opens again");
    assert_eq!(store.durable_end(), end);
    let again = read_bodies(Ok(store));
    assert_eq!(again.whole, accepted.whole);
    let mut expected = accepted.bodies.clone();
    if accepted.whole && appended.is_ok() {
        expected.push(Body::Event(event));
    }
    assert!(again.bodies == expected, "another log at the second open");
}

/// Puts one file of the second log where it stands in the first. Both were opened and went on with
/// a record of their own; what is served must be the history of one of them.
pub fn check_mixed(disk: &SimDisk, other: &SimDisk, which: u8) {
    let histories = [disk, other].map(|disk| {
        let store = crate::options(&disk.fork()).read_only(true).open("store");
        read_bodies(store).bodies
    });
    let (name, bytes) = Script(&[which]).pick(&log_files(other)).clone();
    let mixed = disk.fork();
    mixed.write_file(&name, &bytes).expect("a good path");
    for read_only in [true, false] {
        let store = crate::options(&mixed).read_only(read_only).open("store");
        let served = read_bodies(store).bodies;
        assert!(
            histories.iter().any(|history| history.starts_with(&served)),
            "a log of two histories"
        );
    }
}
