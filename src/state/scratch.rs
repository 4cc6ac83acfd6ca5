//! State stores that live in a temporary directory and are gone when dropped: an empty one, for a
//! fold beside the live state, and a private copy of a state directory, for a read-only look.
//!
//! A copy may have been taken while a writer was at work. That makes it an older state, or a
//! damaged one, and the audit tells which; it never disturbs the original.

use std::io;
use std::ops::Bound;
use std::sync::Arc;

use crate::num::{to_u64, to_usize};
use crate::state::sled_store::SledBackend;
use crate::state::{Change, StateBackend, StateError, StateStore};
use crate::storage::disk::Disk;
use crate::storage::{OpenMode, Storage, StorageFile, read_full, write_full};

/// Bytes copied at a time.
const COPY_BYTES: usize = 1024 * 1024;
/// sled's directories are two levels deep; deeper ones are not its own.
const DEPTH_MAX: usize = 4;
const STORE: &str = "store";

/// A store and the directory that goes with it.
#[derive(Debug)]
struct Scratch {
    // Dropped before the directory is removed.
    store: Arc<dyn StateStore>,
    _dir: tempfile::TempDir,
}

fn fail(op: &'static str, file: std::path::PathBuf, source: io::Error) -> StateError {
    StateError::Io {
        op,
        file,
        source: Arc::new(source),
    }
}

fn temporary() -> Result<(tempfile::TempDir, Arc<Disk>), StateError> {
    let dir = tempfile::Builder::new()
        .prefix("foldlog-")
        .tempdir()
        .map_err(|error| fail("create directory", std::env::temp_dir(), error))?;
    let disk = Arc::new(Disk::open(dir.path()));
    Ok((dir, disk))
}

fn open(dir: tempfile::TempDir, disk: Arc<Disk>) -> Result<Arc<dyn StateStore>, StateError> {
    let store = SledBackend::new(disk).open(STORE)?;
    Ok(Arc::new(Scratch { store, _dir: dir }))
}

/// An empty store.
pub(crate) fn empty() -> Result<Arc<dyn StateStore>, StateError> {
    let (dir, disk) = temporary()?;
    open(dir, disk)
}

/// A private copy of the store in `dir` of `storage`, which is only read.
pub(crate) fn copy(storage: &dyn Storage, dir: &str) -> Result<Arc<dyn StateStore>, StateError> {
    let (temp, disk) = temporary()?;
    copy_dir(storage, dir, &*disk, STORE, DEPTH_MAX)?;
    open(temp, disk)
}

fn copy_dir(
    from: &dyn Storage,
    dir: &str,
    to: &dyn Storage,
    target: &str,
    depth: usize,
) -> Result<(), StateError> {
    let read = |op, name: &str, error| fail(op, from.path(name), error);
    to.create_dir(target)
        .map_err(|error| fail("create directory", to.path(target), error))?;
    for entry in from.list(dir).map_err(|error| read("list", dir, error))? {
        let (name, copy) = (
            format!("{dir}/{}", entry.name),
            format!("{target}/{}", entry.name),
        );
        if entry.is_dir {
            if let Some(depth) = depth.checked_sub(1) {
                copy_dir(from, &name, to, &copy, depth)?;
            }
            continue;
        }
        match from.open(&name, OpenMode::Read) {
            Ok(file) => {
                let new = to
                    .open(&copy, OpenMode::Create)
                    .map_err(|error| fail("create", to.path(&copy), error))?;
                copy_file(&*file, &*new).map_err(|error| read("copy", &name, error))?;
            }
            // A live writer removed it since the listing (an old snapshot, say).
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(read("open", &name, error)),
        }
    }
    Ok(())
}

fn copy_file(from: &dyn StorageFile, to: &dyn StorageFile) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES.min(to_usize(from.len()?).saturating_add(1))];
    let mut position = 0;
    loop {
        let read = read_full(from, &mut buffer, position)?;
        write_full(to, buffer.get(..read).unwrap_or_default(), position)?;
        position = position.saturating_add(to_u64(read));
        if read < buffer.len() {
            return Ok(());
        }
    }
}

impl StateStore for Scratch {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        self.store.get(key)
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        prefix: &[u8],
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StateError> {
        self.store.scan(from, prefix, limit)
    }

    fn apply(&self, batch: &[Change]) -> Result<(), StateError> {
        self.store.apply(batch)
    }

    /// Nothing in a temporary directory needs to survive anything.
    fn sync(&self) -> Result<(), StateError> {
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.store.size_bytes()
    }
}
