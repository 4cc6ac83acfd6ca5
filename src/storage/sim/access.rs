//! The simulated disk as the storage that foldlog sees: every call is counted, may be told to fail,
//! and else does what a real disk does.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use super::calls::{Call, CallKind, Fault, Permit};
use super::tree::Ino;
use super::{DirEntry, Dying, Lock, OpenMode, SimDisk, State, Storage, StorageFile};
use crate::num::{to_u64, to_usize};

/// Longest file: what a signed 64-bit position can reach.
const FILE_BYTES_MAX: u64 = 0x7fff_ffff_ffff_ffff;
/// `EBADF`: a write through a handle that was opened for reading.
const BAD_DESCRIPTOR: i32 = 9;
/// `EFBIG`.
const FILE_TOO_BIG: i32 = 27;
/// `ENOSPC`.
const NO_SPACE: i32 = 28;

fn call(kind: CallKind, name: impl Into<Arc<str>>) -> Call {
    Call {
        number: 0,
        kind,
        name: name.into(),
        to: Arc::default(),
        position: 0,
        len: 0,
        disturbed: false,
    }
}

/// How much of a call is to be done.
enum Grant {
    Whole,
    Half,
    HalfThenFail(io::Error),
    Pretend,
}

impl State {
    /// Counts a call; an error is its answer. `dying` is kept if the crash interrupts it.
    fn begin(&mut self, call: Call, dying: impl FnOnce() -> Option<Dying>) -> io::Result<Grant> {
        if self.look.is_none() || self.calls.crashed() {
            return self.answer(call, dying);
        }
        let part = dying();
        self.show(part.clone());
        self.answer(call, || part)
    }

    fn answer(&mut self, call: Call, dying: impl FnOnce() -> Option<Dying>) -> io::Result<Grant> {
        match self.calls.begin(call) {
            Permit::Whole => Ok(Grant::Whole),
            Permit::Half => Ok(Grant::Half),
            Permit::HalfThenFail(error) => Ok(Grant::HalfThenFail(error)),
            Permit::Pretend => Ok(Grant::Pretend),
            Permit::Crash(error) => {
                self.dying = dying();
                Err(error)
            }
            Permit::Fail(_, error) | Permit::Gone(error) => Err(error),
        }
    }

    /// How many of `len` bytes at `position` still fit on the disk; uses up the room.
    fn reserve(&mut self, ino: Ino, position: u64, len: usize) -> io::Result<usize> {
        let end = position
            .checked_add(to_u64(len))
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or_else(|| io::Error::from_raw_os_error(FILE_TOO_BIG))?;
        let Some(free) = self.free_bytes else {
            return Ok(len);
        };
        let old_end = self.tree.file(ino)?.live.len;
        let growth = end.saturating_sub(old_end).min(to_u64(len));
        let missing = growth.saturating_sub(free);
        self.free_bytes = Some(free.saturating_sub(growth));
        let fits = len.saturating_sub(to_usize(missing));
        if fits == 0 && len > 0 {
            return Err(io::Error::from_raw_os_error(NO_SPACE));
        }
        Ok(fits)
    }
}

/// The writer's lock on one simulated disk.
#[derive(Debug)]
struct Guard(SimDisk);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.state().locked = false;
    }
}

impl SimDisk {
    /// Counts a call on a name and gives access to the disk for it.
    fn named(&self, kind: CallKind, name: &str) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.begin(call(kind, name), || None)?;
        Ok(state)
    }
}

impl Storage for SimDisk {
    fn create_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        state.begin(call(CallKind::CreateDir, dir), || {
            Some(Dying::CreateDir(dir.to_owned()))
        })?;
        state.tree.create_dir(dir, u64::MAX)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<DirEntry>> {
        self.named(CallKind::List, dir)?.tree.list(dir)
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Box<dyn StorageFile>> {
        let (ino, state) = match mode {
            OpenMode::Read | OpenMode::Write => {
                let state = self.named(CallKind::Open, file)?;
                (state.tree.open(file)?, state)
            }
            OpenMode::Create => {
                let mut state = self.named(CallKind::Create, file)?;
                (state.tree.create(file)?, state)
            }
        };
        let handle = Arc::clone(&state.tree.file(ino)?.handles);
        Ok(Box::new(SimFile {
            disk: self.clone(),
            ino,
            writes: mode != OpenMode::Read,
            _handle: handle,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        let call = Call {
            to: Arc::from(to),
            ..call(CallKind::Rename, from)
        };
        state.begin(call, || None)?;
        state.tree.rename(from, to)
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        self.named(CallKind::Remove, file)?.tree.remove(file)
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        state.begin(call(CallKind::RemoveDir, dir), || {
            Some(Dying::RemoveDir(dir.to_owned()))
        })?;
        state.tree.remove_dir(dir, u64::MAX)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        match state.begin(call(CallKind::SyncDir, dir), || None)? {
            Grant::Pretend => Ok(()),
            Grant::Whole | Grant::Half | Grant::HalfThenFail(_) => state.tree.sync_dir(dir),
        }
    }

    fn try_lock(&self) -> io::Result<Lock> {
        let mut state = self.named(CallKind::TryLock, "")?;
        if state.locked {
            // All handles of a simulated disk are in this process.
            let pid = Some(std::process::id());
            return Ok(Lock::Busy { pid });
        }
        state.locked = true;
        Ok(Lock::Held(Box::new(Guard(self.clone()))))
    }

    fn writer_is_live(&self) -> io::Result<bool> {
        Ok(self.named(CallKind::WriterIsLive, "")?.locked)
    }

    /// Moves on by a millisecond with every question.
    fn now_ms(&self) -> u64 {
        let mut state = self.state();
        let now_ms = state.clock_ms;
        state.clock_ms = now_ms.saturating_add(1);
        now_ms
    }

    fn random(&self) -> u64 {
        self.state().rng.draw()
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new("sim").join(name)
    }
}

/// A handle to one file of a simulated disk. It outlives the file's names.
#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    ino: Ino,
    writes: bool,
    /// Tells the disk that the file is still in use.
    _handle: Arc<()>,
}

impl SimFile {
    /// The disk, and the call that is about to be made on the file.
    fn call(&self, kind: CallKind) -> io::Result<(MutexGuard<'_, State>, Call)> {
        let state = self.disk.state();
        let name = Arc::clone(&state.tree.file(self.ino)?.name);
        Ok((state, call(kind, name)))
    }

    fn refuse_reader(&self) -> io::Result<()> {
        if self.writes {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(BAD_DESCRIPTOR))
        }
    }
}

/// The first half, but at least one byte.
fn half(len: usize) -> usize {
    len.div_ceil(2)
}

impl StorageFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        let (mut state, call) = self.call(CallKind::Len)?;
        state.begin(call, || None)?;
        Ok(state.tree.file(self.ino)?.live.len)
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let (mut state, mut call) = self.call(CallKind::Read)?;
        call.position = position;
        call.len = to_u64(buf.len());
        let len = match state.begin(call, || None)? {
            Grant::Half => half(buf.len()),
            Grant::Whole | Grant::HalfThenFail(_) | Grant::Pretend => buf.len(),
        };
        let buf = buf.get_mut(..len).unwrap_or_default();
        Ok(state.tree.file(self.ino)?.live.read(buf, position))
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        let (mut state, mut call) = self.call(CallKind::Write)?;
        call.position = position;
        call.len = to_u64(bytes.len());
        let grant = state.begin(call, || {
            Some(Dying::Write {
                ino: self.ino,
                bytes: bytes.to_vec(),
                position,
            })
        })?;
        self.refuse_reader()?;
        let len = match grant {
            Grant::Half | Grant::HalfThenFail(_) => half(bytes.len()),
            Grant::Whole | Grant::Pretend => bytes.len(),
        };
        let len = state.reserve(self.ino, position, len)?;
        let seq = state.tree.tick();
        let bytes = bytes.get(..len).unwrap_or_default();
        let file = state.tree.file_mut(self.ino)?;
        if !bytes.is_empty() {
            file.write(seq, bytes, position);
        }
        match grant {
            Grant::HalfThenFail(error) => Err(error),
            Grant::Whole | Grant::Half | Grant::Pretend => Ok(len),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let (mut state, mut call) = self.call(CallKind::SetLen)?;
        call.position = len;
        state.begin(call, || None)?;
        self.refuse_reader()?;
        if len > FILE_BYTES_MAX {
            return Err(io::Error::from_raw_os_error(FILE_TOO_BIG));
        }
        let seq = state.tree.tick();
        state.tree.file_mut(self.ino)?.set_len(seq, len);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let (mut state, call) = self.call(CallKind::Sync)?;
        state.show(None);
        let permit = state.calls.begin(call);
        let file = state.tree.file_mut(self.ino)?;
        match permit {
            Permit::Whole | Permit::Half | Permit::HalfThenFail(_) => {
                file.sync();
                Ok(())
            }
            Permit::Pretend => Ok(()),
            Permit::Fail(fault, error) => {
                match fault {
                    Fault::Io | Fault::NoSpace | Fault::Partial => file.sync_failed(),
                    // Refused before anything was tried.
                    Fault::Interrupted
                    | Fault::TooManyFiles
                    | Fault::Permission
                    | Fault::Short
                    | Fault::Lie => {}
                }
                Err(error)
            }
            Permit::Crash(error) | Permit::Gone(error) => Err(error),
        }
    }
}
