//! The narrow seam between foldlog and the world: files in one directory, a lock, a clock and a
//! source of random numbers.
//!
//! Names are relative to the store's directory and use `/` (`log/00000000000000000000.seg`).
//! `disk::Disk` is the real thing; `sim::SimDisk` (feature `sim`) is a disk in memory that can
//! crash and fail at any call. Production code has no other switch for tests.
//!
//! What a caller may assume, and the simulated disk enforces the worst of: written bytes are
//! durable only after `sync` of the file; a created, renamed or removed name only after `sync_dir`
//! of its directory; sectors of 512 bytes are written whole.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::num::to_usize;

pub(crate) mod disk;
#[cfg(feature = "sim")]
pub mod sim;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; the file must exist.
    Read,
    /// For reading and writing; the file must exist.
    Write,
    /// For reading and writing; the file is created, or emptied if it exists.
    Create,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without its directory.
    pub name: String,
    /// Whether it is itself a directory.
    pub is_dir: bool,
    /// Length in bytes (0 for a directory).
    pub len: u64,
}

/// What came of asking for the writer's lock.
#[derive(Debug)]
pub enum Lock {
    /// We hold it until the guard is dropped.
    Held(Box<dyn fmt::Debug + Send + Sync>),
    /// Someone else holds it.
    Busy {
        /// Their process id, where known. For people: nothing is decided by it.
        pid: Option<u32>,
    },
}

/// The directory of one store. Every error is what the operating system said.
#[expect(
    clippy::missing_errors_doc,
    reason = "every error is what the system said; there is nothing to add call by call"
)]
pub trait Storage: fmt::Debug + Send + Sync {
    /// Creates a directory and its parents. `""` is the store's own directory. Existing ones are
    /// no error.
    fn create_dir(&self, dir: &str) -> io::Result<()>;
    /// The entries of a directory, in no order; `NotFound` if there is none.
    fn list(&self, dir: &str) -> io::Result<Vec<DirEntry>>;
    /// Opens a file.
    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Box<dyn StorageFile>>;
    /// Renames a file or directory, replacing what stands at `to` (for a directory: must not
    /// exist).
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, file: &str) -> io::Result<()>;
    /// Removes a directory and all in it.
    fn remove_dir(&self, dir: &str) -> io::Result<()>;
    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Tries to become the one writer. Never blocks, writes nothing before the lock is held.
    fn try_lock(&self) -> io::Result<Lock>;
    /// Whether some process holds the writer's lock right now. Writes nothing.
    fn writer_is_live(&self) -> io::Result<bool>;
    /// Milliseconds since 1970 by the wall clock.
    fn now_ms(&self) -> u64;
    /// A random number, for salts and log ids.
    fn random(&self) -> u64;
    /// The full path of a name, for messages, and for what must go to the file system by itself
    /// (sled's directory).
    fn path(&self, name: &str) -> PathBuf;
}

/// One open file. Every error is what the operating system said.
#[expect(
    clippy::missing_errors_doc,
    reason = "every error is what the system said; there is nothing to add call by call"
)]
#[expect(
    clippy::len_without_is_empty,
    reason = "a file's length, not a collection's"
)]
pub trait StorageFile: fmt::Debug + Send + Sync {
    /// Current length.
    fn len(&self) -> io::Result<u64>;
    /// Reads at a position; fewer bytes than asked for are no error, 0 is the end of the file.
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize>;
    /// Writes at a position; fewer bytes than given are no error. Extends the file as needed.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes the file's bytes and length durable.
    fn sync(&self) -> io::Result<()>;
}

/// Reads until `buf` is full or the file ends; answers how much was read. Interrupted calls are
/// repeated.
pub(crate) fn read_full(
    file: &dyn StorageFile,
    mut buf: &mut [u8],
    position: u64,
) -> io::Result<usize> {
    let mut read = 0_usize;
    while !buf.is_empty() {
        match file.read_at(buf, position.saturating_add(crate::num::to_u64(read))) {
            Ok(0) => break,
            Ok(n) => {
                read = read.saturating_add(n);
                buf = buf.get_mut(n..).unwrap_or_default();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Writes all of `bytes`. Interrupted and short writes are continued; on an error some prefix may
/// have been written.
pub(crate) fn write_full(file: &dyn StorageFile, bytes: &[u8], position: u64) -> io::Result<()> {
    let mut rest = bytes;
    let mut position = position;
    while !rest.is_empty() {
        match file.write_at(rest, position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                rest = rest.get(n..).unwrap_or_default();
                position = position.saturating_add(crate::num::to_u64(n));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The whole of a small file, or `None` if there is none; longer than `max` bytes is `InvalidData`.
pub(crate) fn read_small(storage: &dyn Storage, file: &str, max: usize) -> Result<Option<Vec<u8>>> {
    let fail = |op, source| Error::io(op, storage.path(file), None, 0, source);
    let handle = match storage.open(file, OpenMode::Read) {
        Ok(handle) => handle,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail("open", error)),
    };
    let len = handle.len().map_err(|error| fail("stat", error))?;
    if to_usize(len) > max {
        return Err(fail("read", io::ErrorKind::InvalidData.into()));
    }
    let mut bytes = vec![0; to_usize(len)];
    let read = read_full(&*handle, &mut bytes, 0).map_err(|error| fail("read", error))?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// Replaces a small file in one step: after a crash it holds the old bytes or the new ones. With
/// `durable` the new ones are on disk when this returns.
pub(crate) fn replace_small(
    storage: &dyn Storage,
    dir: &str,
    name: &str,
    bytes: &[u8],
    durable: bool,
) -> Result<()> {
    let fresh = format!("{dir}/{name}.new");
    let fail = |op, source| {
        Error::io(
            op,
            storage.path(&fresh),
            None,
            crate::num::to_u64(bytes.len()),
            source,
        )
    };
    let file = storage
        .open(&fresh, OpenMode::Create)
        .map_err(|error| fail("create", error))?;
    write_full(&*file, bytes, 0).map_err(|error| fail("write", error))?;
    // Synced before the rename even where the rename itself need not be durable: else a crash
    // could leave the name on an empty file.
    file.sync().map_err(|error| fail("sync", error))?;
    storage
        .rename(&fresh, &format!("{dir}/{name}"))
        .map_err(|error| fail("rename", error))?;
    if durable {
        storage
            .sync_dir(dir)
            .map_err(|error| fail("sync directory", error))?;
    }
    Ok(())
}
