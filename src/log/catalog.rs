//! The list of segments that the writer and all readers share: which segments there are, how far
//! the log is durable, where in a segment to start looking, and the open read handles.
//!
//! Nothing here is on disk, and nothing here is needed to find the truth: the index is a sparse
//! list of places where a frame starts, and a reader checks what it finds there.
//!
//! The writer calls, after each sync: [`Catalog::note`] for each data frame, then
//! [`Catalog::publish`] once; and [`Catalog::add`] when it has rolled.
//!
//! Invariants:
//! - The index of a segment has at most [`INDEX_ENTRIES_MAX`] entries:
//!   `index_thins_itself_out_and_still_finds_a_place_before_each_offset`.
//! - At most [`HANDLES_MAX`] read handles are kept open: `only_so_many_handles_stay_open`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::segment::{self, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::error::{Error, Result};
use crate::offset::Offset;
use crate::storage::{OpenMode, Storage, StorageFile};

/// One index entry is kept for about this many bytes of log.
const INDEX_STRIDE: u64 = 16 * 1024;
/// Most entries in the index of one segment; beyond it, every second one goes.
const INDEX_ENTRIES_MAX: usize = 4096;
/// Most sealed segments whose index, once built, is kept.
const INDEXES_MAX: usize = 256;
/// Most read handles kept open.
const HANDLES_MAX: usize = 16;

/// The segments of one log. Cheap to clone: all clones are the same list.
#[derive(Clone, Debug)]
pub(crate) struct Catalog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    storage: Arc<dyn Storage>,
    state: RwLock<State>,
    /// Most recently used last.
    handles: Mutex<VecDeque<(Offset, Arc<dyn StorageFile>)>>,
    /// Sealed segments whose index was built by a pass, oldest first.
    indexed: Mutex<VecDeque<Arc<Segment>>>,
}

#[derive(Debug)]
struct State {
    /// In ascending order of base.
    segments: Vec<Arc<Segment>>,
    /// Readers see the records below this offset.
    end: Offset,
    /// Where, in the last segment, the frame before `end` ends.
    position: u64,
}

/// One segment of the list.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    index: Mutex<Index>,
}

impl Segment {
    /// A segment whose data frames will all be noted ([`Catalog::note`]).
    pub(crate) fn new(header: &SegmentHeader) -> Self {
        Self::indexed(header, Index::new(true))
    }

    /// A segment that was there before: its index is built when someone looks into it.
    pub(crate) fn unindexed(header: &SegmentHeader) -> Self {
        Self::indexed(header, Index::new(false))
    }

    /// A segment that was read, and whose further data frames will all be noted.
    pub(crate) fn indexed(header: &SegmentHeader, index: Index) -> Self {
        Self {
            header: *header,
            index: Mutex::new(index),
        }
    }

    /// The place from which to look for `offset`: that of a frame that starts at or before it.
    /// `None` while the segment has no index.
    pub(crate) fn place(&self, offset: Offset) -> Option<(Offset, u64)> {
        let base = self.header.base;
        if offset == base {
            return Some((offset, SEGMENT_HEADER_LEN));
        }
        let index = lock(&self.index);
        index.complete.then(|| index.find(offset, base))
    }

    /// The name inside the store's directory.
    pub(crate) fn name(&self) -> String {
        segment::path(self.header.base)
    }
}

/// One segment, for people.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// The file, inside the store's directory.
    pub file: String,
    /// The offset of its first record.
    pub base: Offset,
    /// The offset after its last durable record.
    pub end: Offset,
    /// Whether it is sealed: complete, and followed by another.
    pub sealed: bool,
}

/// Where frames start, every so many bytes.
#[derive(Debug)]
pub(crate) struct Index {
    entries: Vec<(Offset, u64)>,
    stride: u64,
    /// Whether all frames of the segment were noted (or will be, by the writer).
    complete: bool,
}

impl Index {
    pub(crate) const fn new(complete: bool) -> Self {
        Self {
            entries: Vec::new(),
            stride: INDEX_STRIDE,
            complete,
        }
    }

    /// Notes that the frame whose first record is `offset` starts at `position`. In order.
    pub(crate) fn note(&mut self, offset: Offset, position: u64) {
        let last = self
            .entries
            .last()
            .map_or(SEGMENT_HEADER_LEN, |entry| entry.1);
        if position < last.saturating_add(self.stride) {
            return;
        }
        if self.entries.len() >= INDEX_ENTRIES_MAX {
            let mut keep = false;
            self.entries.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride = self.stride.saturating_mul(2);
        }
        self.entries.push((offset, position));
    }

    pub(crate) fn entries(&self) -> &[(Offset, u64)] {
        &self.entries
    }

    /// The last noted place at or before `offset`: that of a frame whose first record is not above.
    fn find(&self, offset: Offset, base: Offset) -> (Offset, u64) {
        let after = self.entries.partition_point(|entry| entry.0 <= offset);
        after
            .checked_sub(1)
            .and_then(|last| self.entries.get(last))
            .copied()
            .unwrap_or((base, SEGMENT_HEADER_LEN))
    }
}

impl Catalog {
    /// An empty list.
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self {
            shared: Arc::new(Shared {
                storage,
                state: RwLock::new(State {
                    segments: Vec::new(),
                    end: Offset::ZERO,
                    position: SEGMENT_HEADER_LEN,
                }),
                handles: Mutex::default(),
                indexed: Mutex::default(),
            }),
        }
    }

    /// The store's storage.
    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.shared.storage
    }

    /// Adds a published segment behind the others; it is the active one from here on.
    pub(crate) fn add(&self, segment: Segment) {
        let mut state = self.state_mut();
        state.position = SEGMENT_HEADER_LEN;
        state.segments.push(Arc::new(segment));
    }

    /// Notes a data frame of the active segment: its first offset and its position. Called in
    /// order, once the frame is synced and before it is published (a frame that is erased again
    /// must never be noted). Most calls only compare two numbers.
    pub(crate) fn note(&self, offset: Offset, position: u64) {
        if let Some(active) = self.state().segments.last() {
            lock(&active.index).note(offset, position);
        }
    }

    /// Makes the records below `end` visible: they are durable, and the last of them ends at
    /// `position` of the active segment. Never goes back.
    pub(crate) fn publish(&self, end: Offset, position: u64) {
        let mut state = self.state_mut();
        state.end = state.end.max(end);
        state.position = state.position.max(position);
    }

    /// The durable end: readers may read below it.
    pub(crate) fn end(&self) -> Offset {
        self.state().end
    }

    /// All segments with their ranges.
    pub(crate) fn segments(&self) -> Vec<SegmentInfo> {
        let state = self.state();
        let ends = state.segments.iter().skip(1).map(|next| next.header.base);
        let ends = ends.map(Some).chain(std::iter::once(None));
        let segments = state.segments.iter().zip(ends);
        segments
            .map(|(segment, end)| SegmentInfo {
                file: segment.name(),
                base: segment.header.base,
                end: end.unwrap_or(state.end),
                sealed: end.is_some(),
            })
            .collect()
    }

    /// The segment that holds `offset` and the base of the next one, if there is a next one.
    pub(crate) fn segment_of(&self, offset: Offset) -> Option<(Arc<Segment>, Option<Offset>)> {
        let state = self.state();
        let after = state
            .segments
            .partition_point(|segment| segment.header.base <= offset);
        let segment = state.segments.get(after.checked_sub(1)?)?;
        let next = state.segments.get(after).map(|next| next.header.base);
        Some((Arc::clone(segment), next))
    }

    /// How far the segment of this base may be read, where it is the active one.
    pub(crate) fn active_limit(&self, base: Offset) -> Option<u64> {
        let state = self.state();
        let active = state.segments.last()?;
        (active.header.base == base).then_some(state.position)
    }

    /// Keeps an index that a pass over the segment's headers made.
    pub(crate) fn keep_index(&self, segment: &Arc<Segment>, mut index: Index) {
        index.complete = true;
        *lock(&segment.index) = index;
        let mut indexed = lock(&self.shared.indexed);
        indexed.push_back(Arc::clone(segment));
        if indexed.len() > INDEXES_MAX
            && let Some(oldest) = indexed.pop_front()
            && !Arc::ptr_eq(&oldest, segment)
        {
            *lock(&oldest.index) = Index::new(false);
        }
    }

    /// A read handle of `segment`, from the cache or opened now.
    pub(crate) fn file(&self, segment: &Segment) -> Result<Arc<dyn StorageFile>> {
        let base = segment.header.base;
        let mut handles = lock(&self.shared.handles);
        if let Some(at) = handles.iter().position(|(of, _)| *of == base)
            && let Some(entry) = handles.remove(at)
        {
            let file = Arc::clone(&entry.1);
            handles.push_back(entry);
            return Ok(file);
        }
        let opened = match self.open(segment) {
            Err(Error::TooManyFiles { .. }) if !handles.is_empty() => {
                handles.clear();
                self.open(segment)
            }
            opened => opened,
        };
        let file: Arc<dyn StorageFile> = Arc::from(opened?);
        if handles.len() >= HANDLES_MAX {
            handles.pop_front();
        }
        handles.push_back((base, Arc::clone(&file)));
        Ok(file)
    }

    fn open(&self, segment: &Segment) -> Result<Box<dyn StorageFile>> {
        let storage = &self.shared.storage;
        let name = segment.name();
        storage
            .open(&name, OpenMode::Read)
            .map_err(|error| Error::io("open", storage.path(&name), None, 0, error))
    }

    fn state(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.shared
            .state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.shared
            .state
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_thins_itself_out_and_still_finds_a_place_before_each_offset() {
        let mut index = Index::new(true);
        let base = Offset::new(100);
        let frames = 40_000_u64;
        // Frames of 7 records and 5,000 bytes: noted about every fourth, at first.
        for frame in 0..frames {
            let position = SEGMENT_HEADER_LEN + frame * 5000;
            index.note(base.plus(frame * 7), position);
            assert!(index.entries.len() <= INDEX_ENTRIES_MAX);
        }
        assert!(index.entries.len() > INDEX_ENTRIES_MAX / 4);
        for offset in (0..frames * 7).step_by(11) {
            let (first, position) = index.find(base.plus(offset), base);
            let frame = (position - SEGMENT_HEADER_LEN) / 5000;
            assert_eq!(first, base.plus(frame * 7));
            assert!(first <= base.plus(offset));
            let behind = offset / 7 - frame;
            assert!(behind * 5000 <= index.stride * 2, "{offset}: {behind}");
        }
    }
}

#[cfg(test)]
#[cfg(feature = "sim")]
mod handle_tests {
    use super::*;
    use crate::frame::Salt;
    use crate::storage::sim::{CallKind, Fault, Filter, Repeat, SimDisk};

    fn catalog(disk: &SimDisk, segments: u64) -> Catalog {
        let catalog = Catalog::new(Arc::new(disk.clone()));
        for base in 0..segments {
            let base = Offset::new(base);
            disk.write_file(&segment::path(base), b"x").unwrap();
            catalog.add(Segment::new(&SegmentHeader {
                log_id: 1,
                epoch: 0,
                salt: Salt(0),
                base,
                chain: 0,
            }));
        }
        catalog
    }

    #[test]
    fn only_so_many_handles_stay_open() {
        let disk = SimDisk::new();
        let catalog = catalog(&disk, 40);
        let get = |offset| {
            let (segment, _) = catalog.segment_of(Offset::new(offset)).unwrap();
            catalog.file(&segment)
        };
        for offset in 0..40 {
            get(offset).unwrap();
            assert!(lock(&catalog.shared.handles).len() <= HANDLES_MAX);
        }
        // The last ones are still there; the first one has to be opened again.
        let opens = disk.calls_of(CallKind::Open);
        get(39).unwrap();
        get(24).unwrap();
        assert_eq!(disk.calls_of(CallKind::Open), opens);
        get(0).unwrap();
        assert_eq!(disk.calls_of(CallKind::Open), opens + 1);
        // Out of descriptors: the cached ones are given back, and it is tried once more.
        let opens = Filter::kinds(&[CallKind::Open]);
        disk.fail(opens, 1, Fault::TooManyFiles, Repeat::Once);
        get(1).unwrap();
        assert_eq!(lock(&catalog.shared.handles).len(), 1);
    }
}
