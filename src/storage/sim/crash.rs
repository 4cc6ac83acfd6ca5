//! What a crash does to everything that was not synced, as a choice per file, sector and name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::file::File;
use super::image::SectorData;
use super::tree::{Dir, Ino, Names, ROOT, Slot, Tree, join};
use crate::num::{to_u64, to_usize};

/// Sectors of other files that garbage is drawn from.
const STALE_MAX: usize = 64;

/// How much of what was not synced survives a crash.
///
/// What was synced survives in every mode. The seed chooses where the mode leaves a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CrashMode {
    /// Power loss; nothing that was not synced survives.
    DropAll,
    /// Power loss; everything survives, except what a failed sync lost.
    KeepAll,
    /// Power loss; the first operations survive, the later ones do not. With n operations that are
    /// not synced ([`super::SimDisk::pending`]) exactly `seed % (n + 1)` survive, so the seeds 0 to
    /// n are all the prefixes.
    Prefix,
    /// As [`CrashMode::Prefix`], and of the last surviving operation only some of its sectors.
    TornPrefix,
    /// Power loss; lengths and names survive, and of the data any subset of sectors.
    TornSectors,
    /// Power loss; everything that was not synced survives or not, independently: each sector with
    /// any of its contents, each length, each name (operations on one name keep their order).
    /// Sectors never synced may hold zeros or garbage.
    Random,
    /// Power loss; lengths and names survive, data does not: zeros in its place where there was
    /// nothing.
    SizeZeros,
    /// As [`CrashMode::SizeZeros`] with random garbage instead of zeros.
    SizeGarbage,
    /// Power loss; data and lengths survive, no name does: created files vanish, renamed and
    /// removed ones have their old names.
    NamesLost,
    /// Power loss; data and lengths survive, and any subset of the operations on names.
    NamesReordered,
    /// Power loss; names survive, data and lengths do not: the empty file under a good name.
    NamesOnly,
    /// The process is killed, the machine lives on: readers of the new disk see all that was
    /// written, and what was not synced may still be lost in a later crash. A write that the kill
    /// interrupted leaves a prefix of its bytes.
    Kill,
}

impl CrashMode {
    /// Every mode.
    pub const ALL: [Self; 12] = [
        Self::DropAll,
        Self::KeepAll,
        Self::Prefix,
        Self::TornPrefix,
        Self::TornSectors,
        Self::Random,
        Self::SizeZeros,
        Self::SizeGarbage,
        Self::NamesLost,
        Self::NamesReordered,
        Self::NamesOnly,
        Self::Kill,
    ];

    /// Whether the seed may make a difference.
    #[must_use]
    pub fn is_seeded(self) -> bool {
        match self {
            Self::DropAll | Self::KeepAll | Self::SizeZeros | Self::NamesLost | Self::NamesOnly => {
                false
            }
            Self::Prefix
            | Self::TornPrefix
            | Self::TornSectors
            | Self::Random
            | Self::SizeGarbage
            | Self::NamesReordered
            | Self::Kill => true,
        }
    }

    /// The choices of a power loss; `None` for a mere kill.
    pub(super) fn plan(self, seed: u64, tree: &Tree) -> Option<Plan> {
        use Fresh::{Durable, Either, Garbage, Zeros};
        use Pick::{Any, Latest, Synced, Torn, UpTo};
        let last = || tree.nth_pending(seed);
        let (data, size, names, fresh) = match self {
            Self::DropAll => (Synced, Synced, Synced, Durable),
            Self::KeepAll => (Latest, Latest, Latest, Durable),
            Self::Prefix => (UpTo(last()), UpTo(last()), UpTo(last()), Durable),
            Self::TornPrefix => (Torn(last()), UpTo(last()), UpTo(last()), Zeros),
            Self::TornSectors => (Any, Latest, Latest, Zeros),
            Self::Random => (Any, Any, Any, Either),
            Self::SizeZeros => (Synced, Latest, Latest, Zeros),
            Self::SizeGarbage => (Synced, Latest, Latest, Garbage),
            Self::NamesLost => (Latest, Latest, Synced, Durable),
            Self::NamesReordered => (Latest, Latest, Any, Durable),
            Self::NamesOnly => (Synced, Synced, Latest, Durable),
            Self::Kill => return None,
        };
        let stale = match fresh {
            Durable | Zeros => Vec::new(),
            Garbage | Either => tree.stale_sectors(),
        };
        Some(Plan {
            data,
            size,
            names,
            fresh,
            stale,
        })
    }
}

/// Which of the unsynced versions of one thing survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// None.
    Synced,
    /// The last.
    Latest,
    /// The last up to and including this operation.
    UpTo(u64),
    /// As `UpTo`, and of that operation itself each sector or not.
    Torn(u64),
    /// Any.
    Any,
}

/// What a sector holds that was never synced since its allocation and that no write reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fresh {
    /// What the file had there before a cut, else zeros.
    Durable,
    Zeros,
    Garbage,
    Either,
}

/// The choices of one crash.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) data: Pick,
    pub(super) size: Pick,
    pub(super) names: Pick,
    pub(super) fresh: Fresh,
    /// Sectors of other files: what a disk gives to a new file may still hold an old one.
    pub(super) stale: Vec<Arc<SectorData>>,
}

impl Tree {
    /// The operations that are not on disk, oldest first.
    pub(super) fn pending(&self) -> Vec<u64> {
        let mut seqs: Vec<u64> = self.ops.iter().map(|op| op.seq).collect();
        for file in self.files.values() {
            file.pending(&mut seqs);
        }
        seqs.sort_unstable();
        seqs.dedup();
        seqs
    }

    /// The last of the first `n` operations that are not on disk, modulo their number + 1; 0 for
    /// none.
    pub(super) fn nth_pending(&self, n: u64) -> u64 {
        let seqs = self.pending();
        let kept = n
            .checked_rem(to_u64(seqs.len()).saturating_add(1))
            .unwrap_or(0);
        to_usize(kept)
            .checked_sub(1)
            .and_then(|index| seqs.get(index).copied())
            .unwrap_or(0)
    }

    /// Some sectors that other files have on disk.
    pub(super) fn stale_sectors(&self) -> Vec<Arc<SectorData>> {
        let sectors = self.files.values().rev().flat_map(File::sectors);
        sectors.take(STALE_MAX).cloned().collect()
    }

    /// The names that survive a crash.
    fn surviving_names(&self, pick: Pick, rng: &mut Rng) -> BTreeMap<Ino, Names> {
        let durable = self
            .dirs
            .iter()
            .map(|(ino, dir)| (*ino, dir.durable.clone()));
        let mut names: BTreeMap<Ino, Names> = durable.collect();
        let mut blocked: BTreeSet<&Slot> = BTreeSet::new();
        for op in &self.ops {
            let survives = match pick {
                Pick::Synced => false,
                Pick::Latest => true,
                Pick::UpTo(last) | Pick::Torn(last) => op.seq <= last,
                Pick::Any => rng.below(2) == 0 && !op.slots().any(|slot| blocked.contains(slot)),
            };
            if !survives {
                blocked.extend(op.slots());
                continue;
            }
            if let Some((dir, name)) = &op.clears
                && let Some(names) = names.get_mut(dir)
            {
                names.remove(name);
            }
            if let Some(((dir, name), ino)) = &op.sets
                && let Some(names) = names.get_mut(dir)
            {
                names.insert(Arc::clone(name), *ino);
            }
        }
        names
    }

    /// The disk after a power loss: everything on it is durable.
    pub(super) fn after_crash(&self, plan: &Plan, rng: &mut Rng) -> Self {
        let mut names = self.surviving_names(plan.names, rng);
        let mut tree = Self {
            last_ino: self.last_ino,
            last_seq: self.last_seq,
            ..Self::default()
        };
        let mut next = vec![(ROOT, String::new())];
        while let Some((ino, path)) = next.pop() {
            let Some(children) = names.remove(&ino) else {
                continue;
            };
            for (name, child) in &children {
                let path = join(&path, name);
                if self.dirs.contains_key(child) {
                    next.push((*child, path));
                } else if let (Some(file), false) =
                    (self.files.get(child), tree.files.contains_key(child))
                {
                    let image = file.after_crash(plan, rng);
                    tree.files
                        .insert(*child, File::settled(Arc::from(path), image));
                }
            }
            tree.dirs.insert(
                ino,
                Dir {
                    durable: children.clone(),
                    live: children,
                },
            );
        }
        tree
    }
}

/// A small random number generator (`SplitMix64`): the same numbers for the same seed on every
/// machine and in every version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator that differs from this one and from other `seed`s', without moving this one.
    pub(super) fn branch(self, seed: u64) -> Self {
        let mut mixed = Self(seed);
        let mut base = self;
        Self(base.draw() ^ mixed.draw().rotate_left(32))
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.draw().checked_rem(n).unwrap_or(0)
    }

    /// One of the items, or none of them, each as likely.
    pub(super) fn one_of<'i, T>(&mut self, items: &'i [T]) -> Option<&'i T> {
        let n = to_u64(items.len()).saturating_add(1);
        items.get(to_usize(self.below(n)))
    }
}
