//! A disk in memory that can crash and fail at any call, for tests of what must survive.
//!
//! [`SimDisk`] keeps apart what readers see and what is on disk, as an operating system does: bytes
//! per sector of 512, lengths, and names are on disk only after the sync that covers them.
//! [`SimDisk::crash`] gives the disk as a crash would leave it, in one of the ways of
//! [`CrashMode`]; the worst of them ([`CrashMode::Random`]) is the worst that a POSIX file system
//! may do:
//!
//! - each unsynced sector ends with any content written to it since its last sync, or the synced
//!   one; zeros or garbage only where no sync ever covered the sector since its allocation;
//! - each unsynced change of length and of a name happened or not, whatever happened to the others;
//!   operations on one name keep their order, and a rename never loses the file;
//! - bytes under a failed sync stay readable and are forgotten: no later sync brings them to disk
//!   unless they are written again. What a failed `sync_dir` covered stays pending.
//!
//! Everything is deterministic: the clock, the random numbers, and each crash by its seed.
//!
//! ```
//! use foldlog::storage::sim::{CrashMode, SimDisk};
//! use foldlog::storage::{OpenMode, Storage};
//!
//! let disk = SimDisk::new();
//! let file = disk.open("file", OpenMode::Create)?;
//! disk.sync_dir("")?;
//! file.write_at(b"synced", 0)?;
//! file.sync()?;
//! file.write_at(b"gone", 0)?;
//! disk.crash_at(5); // four calls were made
//! assert!(file.sync().is_err());
//! let after = disk.crash(CrashMode::DropAll, 0);
//! assert_eq!(after.read_file("file").as_deref(), Some(&b"synced"[..]));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_128;

pub use super::{DirEntry, Lock, OpenMode, Storage, StorageFile};
use crate::num::{to_u64, to_usize};

mod access;
mod calls;
mod crash;
mod file;
mod image;
mod raw;
#[cfg(test)]
mod tests;
mod tree;

pub use calls::{Call, CallKind, Fault, Filter, Repeat};
pub use crash::CrashMode;

use calls::Calls;
use crash::Rng;
use image::Image;
use tree::{Ino, Tree};

/// Where the clock of a new disk stands, in milliseconds since 1970.
const CLOCK_START_MS: u64 = 1_700_000_000_000;
/// A simulated disk. Clones are handles to the same one.
///
/// The store's own directory always exists. Directories are durable when `create_dir` returns, as
/// on the real disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

struct State {
    tree: Tree,
    calls: Calls,
    /// The call that the crash interrupted, if a part of it may have happened.
    dying: Option<Dying>,
    locked: bool,
    free_bytes: Option<u64>,
    clock_ms: u64,
    rng: Rng,
    look: Option<Look>,
}

/// What [`SimDisk::on_call`] was given.
type Look = Box<dyn FnMut(&SimDisk) + Send>;

/// A call of several steps that a crash may interrupt between them.
#[derive(Clone, Debug)]
enum Dying {
    Write {
        ino: Ino,
        bytes: Vec<u8>,
        position: u64,
    },
    CreateDir(String),
    RemoveDir(String),
}

impl State {
    /// Shows the crash at the call that is about to be made.
    fn show(&mut self, dying: Option<Dying>) {
        let Some(mut look) = self.look.take() else {
            return;
        };
        let dead = SimDisk::from_tree(self.tree.fork(), self.clock_ms, self.rng);
        {
            let mut state = dead.state();
            state.calls.die();
            state.dying = dying;
        }
        look(&dead);
        self.look = Some(look);
    }

    /// The files with a part of the interrupted call, where it has parts.
    fn tear(&self, rng: &mut Rng) -> Option<Tree> {
        let dying = self.dying.as_ref()?;
        let mut tree = self.tree.fork();
        match dying {
            Dying::Write {
                ino,
                bytes,
                position,
            } => {
                let kept = to_usize(rng.below(to_u64(bytes.len()).saturating_add(1)));
                let seq = tree.tick();
                let file = tree.file_mut(*ino).ok()?;
                file.write(seq, bytes.get(..kept)?, *position);
            }
            // The steps are few; what goes beyond them is the whole call.
            Dying::CreateDir(dir) => tree.create_dir(dir, rng.below(6)).ok()?,
            Dying::RemoveDir(dir) => tree.remove_dir(dir, rng.below(6)).ok()?,
        }
        Some(tree)
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.calls();
        f.debug_struct("SimDisk").field("calls", &calls).finish()
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::with_seed(0)
    }

    /// An empty disk whose random numbers ([`Storage::random`]) follow from `seed`.
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        Self::from_tree(Tree::default(), CLOCK_START_MS, Rng::new(seed))
    }

    fn from_tree(tree: Tree, clock_ms: u64, rng: Rng) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                tree,
                calls: Calls::default(),
                dying: None,
                locked: false,
                free_bytes: None,
                clock_ms,
                rng,
                look: None,
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls made so far, the failed ones too; those after a crash do not count.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state().calls.total()
    }

    /// Calls of one kind made so far.
    #[must_use]
    pub fn calls_of(&self, kind: CallKind) -> u64 {
        self.state().calls.of(kind)
    }

    /// Lets the machine crash at call `number` (counted from 1 since this disk was made): that call
    /// and all later ones fail, and nothing more reaches the disk.
    pub fn crash_at(&self, number: u64) {
        self.state().calls.crash_at(number);
    }

    /// Whether the call of [`SimDisk::crash_at`] was reached.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.state().calls.crashed()
    }

    /// Before every call, hands `look` a disk on which the machine has just crashed at that call:
    /// as if [`SimDisk::crash_at`] had named it, while this disk goes on. So one run shows every
    /// crash of it. `look` must not use this disk, which waits for it.
    pub fn on_call(&self, look: impl FnMut(&Self) + Send + 'static) {
        self.state().look = Some(Box::new(look));
    }

    /// Takes away what [`SimDisk::on_call`] was given.
    pub fn clear_on_call(&self) {
        self.state().look = None;
    }

    /// Makes the `nth` call from now (counted from 1) that matches `filter` fail, once or with all
    /// matching ones after it. Several faults may wait at the same time; the oldest that is due
    /// strikes, and a call that one struck is not counted by the younger ones.
    pub fn fail(&self, filter: impl Into<Filter>, nth: u64, fault: Fault, repeat: Repeat) {
        self.state().calls.arm(filter.into(), nth, fault, repeat);
    }

    /// Takes all faults away.
    pub fn clear_faults(&self) {
        self.state().calls.disarm();
    }

    /// Calls that a fault has struck: a test that expects one checks that it came.
    #[must_use]
    pub fn faults_struck(&self) -> u64 {
        self.state().calls.struck()
    }

    /// Leaves room for `bytes` more (`None`: no limit). Writes beyond the end of a file use it up,
    /// first short and then with `ENOSPC`; writes in place do not.
    pub fn set_free_bytes(&self, bytes: Option<u64>) {
        self.state().free_bytes = bytes;
    }

    /// Starts to write down every call.
    pub fn start_trace(&self) {
        self.state().calls.start_trace();
    }

    /// The calls written down since the start or the last time they were taken.
    #[must_use]
    pub fn trace(&self) -> Vec<Call> {
        self.state().calls.take_trace()
    }

    /// Sets the clock, to any time.
    pub fn set_now_ms(&self, now_ms: u64) {
        self.state().clock_ms = now_ms;
    }

    /// Operations that are not synced and that a crash may lose.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.state().tree.pending().len()
    }

    /// Drops from memory what failed syncs left there: reads show what is on disk. A real system
    /// does so at any time when it needs the memory.
    pub fn evict(&self) {
        for file in self.state().tree.files_mut() {
            file.evict();
        }
    }

    /// The disk as a crash at this moment leaves it: without faults, limits and locks, its calls
    /// counted from 0.
    ///
    /// This disk goes on as before, so many crashes can be had of one moment. The same disk, mode
    /// and seed give the same disk.
    #[must_use]
    pub fn crash(&self, mode: CrashMode, seed: u64) -> Self {
        let state = self.state();
        let mut rng = state.rng.branch(seed);
        let torn = match mode {
            CrashMode::Kill
            | CrashMode::Random
            | CrashMode::TornSectors
            | CrashMode::TornPrefix => state.tear(&mut rng),
            CrashMode::DropAll
            | CrashMode::KeepAll
            | CrashMode::Prefix
            | CrashMode::SizeZeros
            | CrashMode::SizeGarbage
            | CrashMode::NamesLost
            | CrashMode::NamesReordered
            | CrashMode::NamesOnly => None,
        };
        let tree = torn.as_ref().unwrap_or(&state.tree);
        let tree = match mode.plan(seed, tree) {
            Some(plan) => tree.after_crash(&plan, &mut rng),
            None => tree.fork(),
        };
        Self::from_tree(tree, state.clock_ms, rng)
    }

    /// An independent copy of the disk with everything that is pending; faults, limits, locks and
    /// counts stay behind.
    #[must_use]
    pub fn fork(&self) -> Self {
        let state = self.state();
        Self::from_tree(state.tree.fork(), state.clock_ms, state.rng)
    }

    /// A number that tells the contents that readers see (names, lengths, bytes) from all others.
    #[must_use]
    pub fn image_hash(&self) -> u128 {
        let state = self.state();
        let mut text = Vec::new();
        for (path, file) in state.tree.walk() {
            text.extend_from_slice(path.as_bytes());
            match file {
                Some(file) => {
                    text.push(1);
                    file.live.fingerprint(&mut text);
                }
                None => text.push(0),
            }
        }
        XxHash3_128::oneshot(&text)
    }

    /// The paths of all files, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        let state = self.state();
        let files = state.tree.walk().into_iter();
        files
            .filter_map(|(path, file)| file.map(|_| path))
            .collect()
    }

    /// The bytes of a file as readers see them, or `None` if there is none. Not a counted call.
    #[must_use]
    pub fn read_file(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let ino = state.tree.open(name).ok()?;
        Some(state.tree.file(ino).ok()?.live.bytes())
    }

    /// Puts a file there as if it had always been, durable, with the directories it needs. Not a
    /// counted call.
    ///
    /// # Errors
    ///
    /// If the path leads through a file, to a directory, or is none.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.state().tree.plant(name, Some(Image::new(bytes)))
    }

    /// Takes a file away as if it had never been. Not a counted call.
    ///
    /// # Errors
    ///
    /// If there is no file.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        self.state().tree.plant(name, None)
    }

    /// Makes everything durable that waits for it, as an idle system does in the end.
    pub fn settle(&self) {
        self.state().tree.settle_all();
    }
}
