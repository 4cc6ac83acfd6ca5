//! The names of the simulated disk: directories, what of them is on disk, and what is not yet.
//!
//! - A created, renamed or removed name is durable after a sync of its directory, not before
//!   (`names_are_lost_until_their_directory_is_synced`).
//! - A file is never lost by a rename: it has the old name, the new one, or (across directories, if
//!   only the new one was synced) both (`a_rename_that_is_lost_leaves_the_old_name`).
//! - Operations on the same name keep their order; others survive in any combination.
//!
//! A file's bytes do not depend on its names.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::file::File;
use super::image::Image;
use crate::num::to_usize;
use crate::storage::DirEntry;

/// Number of a file or directory.
pub(super) type Ino = u64;
/// The store's own directory.
pub(super) const ROOT: Ino = 0;
/// Operations on names that are remembered between syncs of their directories; a file that is
/// replaced for ever without a sync would keep them all.
const OPS_MAX: usize = 1024;

pub(super) type Names = BTreeMap<Arc<str>, Ino>;
/// A name in a directory.
pub(super) type Slot = (Ino, Arc<str>);

#[derive(Clone, Debug, Default)]
pub(super) struct Dir {
    pub(super) live: Names,
    pub(super) durable: Names,
}

/// An operation on names that is not on disk yet: a creation sets, a removal clears, a rename does
/// both.
#[derive(Clone, Debug)]
pub(super) struct NameOp {
    pub(super) seq: u64,
    pub(super) clears: Option<Slot>,
    pub(super) sets: Option<(Slot, Ino)>,
}

impl NameOp {
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.clears
            .iter()
            .chain(self.sets.iter().map(|(slot, _)| slot))
    }
}

/// All files and directories.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) dirs: BTreeMap<Ino, Dir>,
    pub(super) files: BTreeMap<Ino, File>,
    pub(super) ops: Vec<NameOp>,
    pub(super) last_ino: Ino,
    pub(super) last_seq: u64,
    /// Unreachable files are swept when there are more files than this.
    pub(super) sweep_at: usize,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            dirs: BTreeMap::from([(ROOT, Dir::default())]),
            files: BTreeMap::new(),
            ops: Vec::new(),
            last_ino: ROOT,
            last_seq: 0,
            sweep_at: 64,
        }
    }
}

impl Tree {
    /// An independent copy with everything that is pending. Files without names are kept only by
    /// handles, and the copy has none.
    pub(super) fn fork(&self) -> Self {
        let mut tree = self.clone();
        for file in tree.files.values_mut() {
            file.handles = Arc::new(());
        }
        tree
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.last_seq = self.last_seq.saturating_add(1);
        self.last_seq
    }

    pub(super) fn new_ino(&mut self) -> Ino {
        self.last_ino = self.last_ino.saturating_add(1);
        self.last_ino
    }

    pub(super) fn file(&self, ino: Ino) -> io::Result<&File> {
        self.files
            .get(&ino)
            .ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub(super) fn file_mut(&mut self, ino: Ino) -> io::Result<&mut File> {
        self.files
            .get_mut(&ino)
            .ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub(super) fn files_mut(&mut self) -> impl Iterator<Item = &mut File> {
        self.files.values_mut()
    }

    pub(super) fn dir(&self, ino: Ino) -> io::Result<&Dir> {
        self.dirs
            .get(&ino)
            .ok_or_else(|| ErrorKind::NotADirectory.into())
    }

    fn lookup(&self, path: &str) -> io::Result<Ino> {
        let mut ino = ROOT;
        for part in parts(path) {
            ino = *self.dir(ino)?.live.get(part?).ok_or(ErrorKind::NotFound)?;
        }
        Ok(ino)
    }

    /// The place of a name, whether or not something is there.
    pub(super) fn slot(&self, path: &str) -> io::Result<Slot> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        for part in parts(path) {
            part?;
        }
        if name.is_empty() {
            return Err(ErrorKind::InvalidInput.into());
        }
        let parent = self.lookup(parent)?;
        self.dir(parent)?;
        Ok((parent, Arc::from(name)))
    }

    pub(super) fn at(&self, (dir, name): &Slot) -> Option<Ino> {
        self.dirs.get(dir)?.live.get(name).copied()
    }

    /// Carries out an operation on the live names and remembers it for the disk.
    fn perform(&mut self, clears: Option<Slot>, sets: Option<(Slot, Ino)>) {
        let seq = self.tick();
        if let Some((dir, name)) = &clears
            && let Some(dir) = self.dirs.get_mut(dir)
        {
            dir.live.remove(name);
        }
        if let Some(((dir, name), ino)) = &sets
            && let Some(dir) = self.dirs.get_mut(dir)
        {
            dir.live.insert(Arc::clone(name), *ino);
        }
        self.ops.push(NameOp { seq, clears, sets });
        // The system writes back by itself in the end.
        if self.ops.len() > OPS_MAX {
            let oldest = self.ops.remove(0);
            self.settle(oldest.clears, oldest.sets);
        }
    }

    /// Creates a directory and its parents, each durable unless `steps` are used up: one for the
    /// creation of each, one for the sync of its parent.
    pub(super) fn create_dir(&mut self, path: &str, mut steps: u64) -> io::Result<()> {
        let mut parent = ROOT;
        for part in parts(path) {
            let slot = (parent, Arc::from(part?));
            let dir = if let Some(ino) = self.at(&slot) {
                self.dir(ino)?;
                ino
            } else if steps == 0 {
                return Ok(());
            } else {
                steps = steps.saturating_sub(1);
                let ino = self.new_ino();
                self.dirs.insert(ino, Dir::default());
                self.perform(None, Some((slot, ino)));
                ino
            };
            if steps == 0 {
                return Ok(());
            }
            steps = steps.saturating_sub(1);
            self.commit(parent);
            parent = dir;
        }
        Ok(())
    }

    pub(super) fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        let dir = self.dir(self.lookup(path)?)?;
        let entry = |(name, ino): (&Arc<str>, &Ino)| DirEntry {
            name: name.to_string(),
            is_dir: self.dirs.contains_key(ino),
            len: self.files.get(ino).map_or(0, |file| file.live.len),
        };
        Ok(dir.live.iter().map(entry).collect())
    }

    pub(super) fn open(&self, path: &str) -> io::Result<Ino> {
        let ino = self.lookup(path)?;
        if self.dirs.contains_key(&ino) {
            return Err(ErrorKind::IsADirectory.into());
        }
        Ok(ino)
    }

    pub(super) fn create(&mut self, path: &str) -> io::Result<Ino> {
        let slot = self.slot(path)?;
        if self.at(&slot).is_some() {
            let ino = self.open(path)?;
            let seq = self.tick();
            self.file_mut(ino)?.set_len(seq, 0);
            return Ok(ino);
        }
        self.sweep();
        let ino = self.new_ino();
        self.files
            .insert(ino, File::settled(Arc::from(path), Image::default()));
        self.perform(None, Some((slot, ino)));
        Ok(ino)
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let (old, new) = (self.slot(from)?, self.slot(to)?);
        let ino = self.at(&old).ok_or(ErrorKind::NotFound)?;
        let target = self.at(&new);
        if let Some(file) = self.files.get_mut(&ino) {
            if target.is_some_and(|target| self.dirs.contains_key(&target)) {
                return Err(ErrorKind::IsADirectory.into());
            }
            if target == Some(ino) {
                return Ok(());
            }
            file.name = Arc::from(to);
        } else if target.is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        } else if to
            .strip_prefix(from)
            .is_some_and(|rest| rest.starts_with('/'))
        {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.perform(Some(old), Some((new, ino)));
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &str) -> io::Result<()> {
        let slot = self.slot(path)?;
        self.open(path)?;
        self.perform(Some(slot), None);
        Ok(())
    }

    /// Removes a directory and all in it, name by name, unless `steps` are used up.
    pub(super) fn remove_dir(&mut self, path: &str, steps: u64) -> io::Result<()> {
        let slot = self.slot(path)?;
        let ino = self.lookup(path)?;
        self.dir(ino)?;
        let mut names = Vec::new();
        self.collect_names(ino, &mut names);
        names.push(slot);
        for slot in names.into_iter().take(to_usize(steps)) {
            self.perform(Some(slot), None);
        }
        Ok(())
    }

    /// The names below a directory, those of inner ones before the names of these.
    fn collect_names(&self, ino: Ino, names: &mut Vec<Slot>) {
        let Some(dir) = self.dirs.get(&ino) else {
            return;
        };
        for (name, child) in &dir.live {
            self.collect_names(*child, names);
            names.push((ino, Arc::clone(name)));
        }
    }

    pub(super) fn sync_dir(&mut self, path: &str) -> io::Result<()> {
        let ino = self.lookup(path)?;
        self.dir(ino)?;
        self.commit(ino);
        Ok(())
    }

    /// Brings the names of one directory to disk.
    fn commit(&mut self, dir: Ino) {
        let mut kept: Vec<NameOp> = Vec::new();
        for mut op in std::mem::take(&mut self.ops) {
            let clears = op.clears.as_ref().is_some_and(|(place, _)| *place == dir);
            let sets = op
                .sets
                .as_ref()
                .is_some_and(|((place, _), _)| *place == dir);
            if clears {
                self.settle(op.clears.take(), None);
            }
            // Also where the new name is elsewhere: a file is never lost by a rename.
            if (clears || sets)
                && let Some((slot, ino)) = op.sets.take()
            {
                for earlier in &mut kept {
                    earlier.sets.take_if(|(place, _)| *place == slot);
                    earlier.clears.take_if(|place| *place == slot);
                }
                self.settle(None, Some((slot, ino)));
            }
            kept.push(op);
        }
        kept.retain(|op| op.slots().next().is_some());
        self.ops = kept;
    }

    /// Brings everything to disk that waits for it.
    pub(super) fn settle_all(&mut self) {
        for op in std::mem::take(&mut self.ops) {
            self.settle(op.clears, op.sets);
        }
        for file in self.files.values_mut() {
            file.sync();
        }
    }

    fn settle(&mut self, clears: Option<Slot>, sets: Option<(Slot, Ino)>) {
        if let Some((dir, name)) = clears
            && let Some(dir) = self.dirs.get_mut(&dir)
        {
            dir.durable.remove(&name);
        }
        if let Some(((dir, name), ino)) = sets
            && let Some(dir) = self.dirs.get_mut(&dir)
        {
            dir.durable.insert(name, ino);
        }
    }

    /// Forgets files and directories that no name, pending operation or handle leads to.
    fn sweep(&mut self) {
        if self.files.len() < self.sweep_at {
            return;
        }
        let mut reached = BTreeSet::new();
        let mut next = vec![ROOT];
        next.extend(self.ops.iter().filter_map(|op| Some(op.sets.as_ref()?.1)));
        while let Some(ino) = next.pop() {
            if reached.insert(ino)
                && let Some(dir) = self.dirs.get(&ino)
            {
                next.extend(dir.live.values().chain(dir.durable.values()));
            }
        }
        self.files
            .retain(|ino, file| reached.contains(ino) || Arc::strong_count(&file.handles) > 1);
        self.dirs.retain(|ino, _| reached.contains(ino));
        let dirs = &self.dirs;
        self.ops
            .retain(|op| op.slots().any(|(dir, _)| dirs.contains_key(dir)));
        self.sweep_at = self.files.len().saturating_mul(2).max(64);
    }
}

/// The parts of a path; `""` has none. Empty parts, `.` and `..` are refused.
pub(super) fn parts(path: &str) -> impl Iterator<Item = io::Result<&str>> {
    let parts = (!path.is_empty()).then(|| path.split('/'));
    parts.into_iter().flatten().map(|part| {
        if matches!(part, "" | "." | "..") || part.contains('\0') {
            return Err(ErrorKind::InvalidInput.into());
        }
        Ok(part)
    })
}

pub(super) fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() {
        name.to_owned()
    } else {
        format!("{dir}/{name}")
    }
}
