//! The bytes of one simulated file: what readers see, what is on disk, and what lies between.
//!
//! - A sector of 512 bytes that was written since the last sync may end, after a crash, with any
//!   content written to it since, or the synced one; zeros or garbage only if it was never synced
//!   since it was allocated (`garbage_appears_only_in_sectors_never_synced`).
//! - A failed sync leaves its sectors readable but no longer scheduled for the disk
//!   (`failed_sync_loses_what_reads_still_show`).
//!
//! A crash image of a file without pending changes costs one counter.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::crash::{Fresh, Pick, Plan, Rng};
use super::image::{
    Content, Image, SECTOR_BYTES, SECTOR_BYTES_U64, SectorData, content, part, pieces,
};
use crate::num::to_u64;

/// What an unwritten sector reads as.
static ZEROS: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];
/// Versions of one sector (or length) that are remembered between syncs. More only cost memory:
/// a file that is rewritten for ever without a sync, such as a mark file, would keep them all.
const VERSIONS_MAX: usize = 32;
/// Most bytes of an unsynced extension that a crash fills with garbage, so that a sparse file of
/// gigabytes does not become a real one.
const GARBAGE_BYTES_MAX: u64 = 1024 * 1024;

/// One content of a sector, and the operation that gave it.
#[derive(Clone, Debug)]
struct Version {
    seq: u64,
    content: Content,
    /// Not written but freed by a cut: it comes true only together with the cut.
    freed: bool,
}

/// What may still become of a sector.
#[derive(Clone, Debug, Default)]
struct Unsynced {
    versions: Vec<Version>,
    /// So many of the versions were in a sync that failed: the system takes them for written.
    lost: usize,
    /// The sector had never been on disk when its sync failed.
    fresh: bool,
}

impl Unsynced {
    fn pending(&self) -> &[Version] {
        self.versions.get(self.lost..).unwrap_or_default()
    }

    fn push(&mut self, version: Version) {
        if self.versions.len() >= VERSIONS_MAX {
            self.versions.remove(0);
            self.lost = self.lost.saturating_sub(1);
        }
        self.versions.push(version);
    }
}

/// A length that the file had, and the operation that gave it.
#[derive(Clone, Copy, Debug)]
struct Length {
    seq: u64,
    len: u64,
}

/// One file, independent of its names.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// The name it has, or had last: for traces and fault filters.
    pub(super) name: Arc<str>,
    /// Shared with every open handle: the file is kept while there is one.
    pub(super) handles: Arc<()>,
    /// What readers see.
    pub(super) live: Image,
    durable: Image,
    unsynced: BTreeMap<u64, Unsynced>,
    lengths: Vec<Length>,
    lost_lengths: usize,
    /// The length that the next good sync makes durable. Behind the live one only after a failed
    /// sync, until a write or cut sets it anew.
    scheduled_len: u64,
}

impl File {
    /// A file that is wholly on disk.
    pub(super) fn settled(name: Arc<str>, image: Image) -> Self {
        Self {
            name,
            scheduled_len: image.len,
            durable: image.clone(),
            live: image,
            ..Self::default()
        }
    }

    pub(super) fn write(&mut self, seq: u64, bytes: &[u8], position: u64) {
        let mut rest = bytes;
        for piece in pieces(position, bytes.len()) {
            let (head, tail) = rest.split_at(piece.len);
            rest = tail;
            let old = self.live.sector(piece.index).cloned();
            let same = match part(old.as_ref(), &piece) {
                Some(old) => old == head,
                None => ZEROS.get(..head.len()) == Some(head),
            };
            if same {
                self.rewrite(seq, piece.index, old);
                continue;
            }
            let mut sector = old.map_or([0; SECTOR_BYTES], |old| old.bytes);
            if let Some(to) = sector.get_mut(piece.from..piece.to()) {
                to.copy_from_slice(head);
            }
            let content = content(&sector);
            self.live.put(piece.index, content.clone());
            let version = Version {
                seq,
                content,
                freed: false,
            };
            self.unsynced.entry(piece.index).or_default().push(version);
        }
        let end = position.saturating_add(to_u64(bytes.len()));
        self.live.len = self.live.len.max(end);
        if end > self.scheduled_len {
            self.schedule_len(seq, end);
        }
    }

    /// Equal bytes change nothing, but a sector that a failed sync forgot is scheduled again.
    fn rewrite(&mut self, seq: u64, index: u64, content: Content) {
        if let Some(unsynced) = self.unsynced.get_mut(&index)
            && unsynced.pending().is_empty()
        {
            unsynced.push(Version {
                seq,
                content,
                freed: false,
            });
        }
    }

    pub(super) fn set_len(&mut self, seq: u64, len: u64) {
        for (index, content) in self.live.cut(len) {
            let version = Version {
                seq,
                freed: content.is_none(),
                content,
            };
            self.unsynced.entry(index).or_default().push(version);
        }
        self.live.len = len;
        if len != self.scheduled_len {
            self.schedule_len(seq, len);
        }
    }

    fn schedule_len(&mut self, seq: u64, len: u64) {
        self.scheduled_len = len;
        if self.lengths.len() >= VERSIONS_MAX {
            self.lengths.remove(0);
            self.lost_lengths = self.lost_lengths.saturating_sub(1);
        }
        self.lengths.push(Length { seq, len });
    }

    pub(super) fn sync(&mut self) {
        for (index, unsynced) in std::mem::take(&mut self.unsynced) {
            if unsynced.pending().is_empty() {
                self.unsynced.insert(index, unsynced);
            } else {
                self.durable.put(index, self.live.sector(index).cloned());
            }
        }
        self.durable.len = self.scheduled_len;
        self.lengths.truncate(self.lost_lengths);
        self.lengths
            .retain(|length| length.len > self.scheduled_len);
        self.lost_lengths = self.lengths.len();
    }

    /// The system tried to sync, failed, and from now on takes everything for written. What of it
    /// is on disk is anyone's guess.
    pub(super) fn sync_failed(&mut self) {
        let fresh_from = self.fresh_from(u64::MAX);
        for (index, unsynced) in &mut self.unsynced {
            unsynced.fresh |= index.saturating_mul(SECTOR_BYTES_U64) >= fresh_from;
            unsynced.lost = unsynced.versions.len();
        }
        self.lost_lengths = self.lengths.len();
        self.scheduled_len = self.durable.len;
    }

    /// The system needs memory and drops what it takes for written: reads show the disk's content.
    pub(super) fn evict(&mut self) {
        for (index, unsynced) in &self.unsynced {
            if unsynced.pending().is_empty() {
                self.live.put(*index, self.durable.sector(*index).cloned());
            }
        }
    }

    /// What is on disk, for the garbage of other files.
    pub(super) fn sectors(&self) -> impl Iterator<Item = &Arc<SectorData>> {
        self.durable.sectors.values()
    }

    /// The operations that are not on disk yet and would be.
    pub(super) fn pending(&self, seqs: &mut Vec<u64>) {
        for unsynced in self.unsynced.values() {
            seqs.extend(unsynced.pending().iter().map(|version| version.seq));
        }
        seqs.extend(self.pending_lengths().iter().map(|length| length.seq));
    }

    fn pending_lengths(&self) -> &[Length] {
        self.lengths.get(self.lost_lengths..).unwrap_or_default()
    }

    /// The byte from which on no sector was ever synced since its allocation, if the operations up
    /// to `seq` happened: beyond the synced length, or freed by a cut.
    fn fresh_from(&self, seq: u64) -> u64 {
        let happened = self.lengths.iter().filter(|length| length.seq <= seq);
        let lowest = happened.map(|length| length.len).min();
        self.durable
            .len
            .min(lowest.unwrap_or(u64::MAX))
            .checked_next_multiple_of(SECTOR_BYTES_U64)
            .unwrap_or(u64::MAX)
    }

    /// What the disk holds after a crash.
    pub(super) fn after_crash(&self, plan: &Plan, rng: &mut Rng) -> Image {
        let mut image = self.durable.clone();
        if self.unsynced.is_empty() && self.lengths.is_empty() {
            return image;
        }
        let length = self.pick_length(plan.size, rng);
        image.len = length.len;
        let fresh_from = self.fresh_from(length.seq);
        for (&index, unsynced) in &self.unsynced {
            if index.saturating_mul(SECTOR_BYTES_U64) >= image.len {
                continue;
            }
            let picked = pick_version(unsynced, plan.data, length.seq, rng);
            let content = if let Some(version) = picked {
                version.content.clone()
            } else if unsynced.fresh || index.saturating_mul(SECTOR_BYTES_U64) >= fresh_from {
                plan.unreached(self.durable.sector(index), rng)
            } else {
                continue;
            };
            image.put(index, content);
        }
        if matches!(plan.fresh, Fresh::Garbage | Fresh::Either) {
            let end = image
                .len
                .min(fresh_from.saturating_add(GARBAGE_BYTES_MAX))
                .div_ceil(SECTOR_BYTES_U64);
            for index in fresh_from / SECTOR_BYTES_U64..end {
                if !self.unsynced.contains_key(&index) {
                    image.put(index, plan.unreached(None, rng));
                }
            }
        }
        image.cut(length.len);
        image
    }

    fn pick_length(&self, pick: Pick, rng: &mut Rng) -> Length {
        let durable = Length {
            seq: 0,
            len: self.durable.len,
        };
        let pending = self.pending_lengths();
        let picked = match pick {
            Pick::Synced => None,
            Pick::Latest => pending.last().copied(),
            Pick::UpTo(last) | Pick::Torn(last) => {
                pending.iter().rfind(|length| length.seq <= last).copied()
            }
            Pick::Any => {
                let mut length = rng.one_of(&self.lengths).copied();
                // A length grows step by step while the system writes back.
                if let Some(length) = &mut length
                    && rng.below(4) == 0
                {
                    let edge = length.len.saturating_sub(length.len % SECTOR_BYTES_U64);
                    let steps = edge.saturating_sub(durable.len).div_ceil(SECTOR_BYTES_U64);
                    if steps > 0 {
                        let back = rng.below(steps).saturating_mul(SECTOR_BYTES_U64);
                        length.len = edge.saturating_sub(back);
                    }
                }
                length
            }
        };
        picked.unwrap_or(durable)
    }
}

/// The version of a sector that reached the disk, or `None` for none of them.
fn pick_version<'u>(
    unsynced: &'u Unsynced,
    pick: Pick,
    cut_seq: u64,
    rng: &mut Rng,
) -> Option<&'u Version> {
    let pending = unsynced.pending();
    match pick {
        Pick::Synced => None,
        Pick::Latest => pending.last(),
        Pick::UpTo(last) => pending.iter().rfind(|version| version.seq <= last),
        Pick::Torn(last) => {
            let last = last.saturating_sub(rng.below(2));
            pending.iter().rfind(|version| version.seq <= last)
        }
        Pick::Any => rng
            .one_of(&unsynced.versions)
            .filter(|version| !version.freed || version.seq <= cut_seq),
    }
}

impl Plan {
    /// What stands in a sector that was never synced since its allocation and that no write
    /// reached.
    fn unreached(&self, durable: Option<&Arc<SectorData>>, rng: &mut Rng) -> Content {
        match self.fresh {
            Fresh::Durable => durable.cloned(),
            Fresh::Zeros => None,
            Fresh::Garbage => self.garbage(rng),
            Fresh::Either => match rng.below(3) {
                0 => durable.cloned(),
                1 => None,
                _ => self.garbage(rng),
            },
        }
    }

    fn garbage(&self, rng: &mut Rng) -> Content {
        if rng.below(4) == 0
            && let Some(stale) = rng.one_of(&self.stale)
        {
            return Some(Arc::clone(stale));
        }
        let mut bytes = [0; SECTOR_BYTES];
        for word in bytes.chunks_mut(8) {
            let random = rng.draw().to_le_bytes();
            for (to, from) in word.iter_mut().zip(random) {
                *to = from;
            }
        }
        content(&bytes)
    }
}
