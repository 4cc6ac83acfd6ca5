//! Copies of bytes that recovery is about to cut off.
//!
//! A copy is `quarantine/<segment>-<position>-<crc>[-<k>]`, the CRC-32 being of its bytes: the same
//! bytes of the same place are one file, however often recovery is interrupted. Where other bytes
//! already have that name, k counts on from 2. A copy is written under another name, synced, and
//! renamed. What an accepted loss takes out of the log is kept file by file in a directory of its
//! own, `quarantine/repair-<epoch>-<offset>/<file>[-<k>]`.
//!
//! Invariants:
//! - The copy is on disk before anything is cut, and once only:
//!   `recovery_killed_at_every_call_ends_the_same_with_one_quarantine_file`.
//! - Nothing there is overwritten: `other_bytes_under_the_same_name_are_kept_beside_it`.

use std::sync::Arc;

use super::super::reader::{CHUNK_MAX, Window};
use super::plan::Torn;
use super::scan::{self, Opened};
use crate::error::{Error, Result};
use crate::num::to_u64;
use crate::storage::{DirEntry, OpenMode, Storage, StorageFile, write_full};

pub(super) const DIR: &str = "quarantine";

/// Keeps the torn bytes; answers the name of the copy, which is on disk when this returns.
///
/// # Errors
///
/// As the system answers. Nothing of the log was changed.
pub(super) fn keep(storage: &Arc<dyn Storage>, segment: &Opened, torn: &Torn) -> Result<String> {
    let len = torn.bytes.end.saturating_sub(torn.bytes.start);
    let mut window = segment.window(storage, torn.bytes.end);
    let mut hasher = crc32fast::Hasher::new();
    for_each_chunk(&mut window, torn.bytes.start, |bytes, _| {
        hasher.update(bytes);
        Ok(())
    })?;
    let crc = hasher.finalize();
    let stem = format!(
        "{}-{}-{crc:08x}",
        segment.name.to_file_name(),
        torn.bytes.start
    );
    make_dir(storage, DIR, len)?;
    keep_as(storage, &mut window, torn, (DIR, &stem))
}

/// Keeps a whole file in `dir`, a directory inside the quarantine, under the file's own name;
/// answers the name of the copy, which is on disk when this returns.
///
/// # Errors
///
/// As the system answers. Nothing but the copy was changed.
pub(super) fn keep_file(storage: &Arc<dyn Storage>, dir: &str, name: &str) -> Result<String> {
    let file: Arc<dyn StorageFile> = Arc::from(scan::open_file(&**storage, name, OpenMode::Read)?);
    let len = file
        .len()
        .map_err(|error| Error::io("stat", storage.path(name), None, 0, error))?;
    let mut window = Window::new(storage, name.to_owned(), file, len);
    let whole = Torn {
        bytes: 0..len,
        undecidable: None,
    };
    let stem = name.rsplit_once('/').map_or(name, |(_, stem)| stem);
    keep_as(storage, &mut window, &whole, (dir, stem))
}

/// Makes a directory for copies, on disk when this returns.
///
/// # Errors
///
/// As the system answers.
pub(super) fn make_dir(storage: &Arc<dyn Storage>, dir: &str, needed: u64) -> Result<()> {
    let fail = |op, source| Error::io(op, storage.path(dir), None, needed, source);
    storage
        .create_dir(dir)
        .map_err(|error| fail("create directory", error))?;
    let parents = ["", dir.rsplit_once('/').map_or("", |(parent, _)| parent)];
    let parents = parents.iter().take(if dir == DIR { 1 } else { 2 });
    for parent in parents {
        storage
            .sync_dir(parent)
            .map_err(|error| fail("sync directory", error))?;
    }
    Ok(())
}

fn keep_as(
    storage: &Arc<dyn Storage>,
    window: &mut Window,
    torn: &Torn,
    (dir, stem): (&str, &str),
) -> Result<String> {
    let len = torn.bytes.end.saturating_sub(torn.bytes.start);
    let fail = |op, source| Error::io(op, storage.path(dir), None, len, source);
    let listed = storage.list(dir).map_err(|error| fail("list", error))?;
    let (name, known) = find_name(storage, window, torn, (dir, stem, &listed))?;
    if !known {
        // No copy has such a name, not even one of a `.seg.new`.
        let fresh = format!("{name}.part");
        copy(storage, window, torn, &fresh)?;
        storage
            .rename(&fresh, &name)
            .map_err(|error| fail("rename", error))?;
    }
    // Also where the copy was there: its rename may have been the last thing before a crash.
    storage
        .sync_dir(dir)
        .map_err(|error| fail("sync directory", error))?;
    Ok(name)
}

/// The name for the copy, and whether it stands there already.
fn find_name(
    storage: &Arc<dyn Storage>,
    window: &mut Window,
    torn: &Torn,
    (dir, stem, listed): (&str, &str, &[DirEntry]),
) -> Result<(String, bool)> {
    let mut number = 1_u64;
    loop {
        let name = if number == 1 {
            stem.to_owned()
        } else {
            format!("{stem}-{number}")
        };
        let path = format!("{dir}/{name}");
        let Some(entry) = listed.iter().find(|entry| entry.name == name) else {
            return Ok((path, false));
        };
        let len = torn.bytes.end.saturating_sub(torn.bytes.start);
        if !entry.is_dir && entry.len == len && is_copy(storage, window, torn, &path)? {
            return Ok((path, true));
        }
        number = number.saturating_add(1);
    }
}

fn is_copy(
    storage: &Arc<dyn Storage>,
    window: &mut Window,
    torn: &Torn,
    path: &str,
) -> Result<bool> {
    let file = Arc::from(scan::open_file(&**storage, path, OpenMode::Read)?);
    let mut there = Window::new(storage, path.to_owned(), file, u64::MAX);
    let mut same = true;
    for_each_chunk(window, torn.bytes.start, |bytes, at| {
        let at = at.saturating_sub(torn.bytes.start);
        same = same && there.at(at, bytes.len())?.get(..bytes.len()) == Some(bytes);
        Ok(())
    })?;
    Ok(same)
}

fn copy(storage: &Arc<dyn Storage>, window: &mut Window, torn: &Torn, name: &str) -> Result<()> {
    let len = torn.bytes.end.saturating_sub(torn.bytes.start);
    let fail = |op, source| Error::io(op, storage.path(name), None, len, source);
    let file = scan::open_file(&**storage, name, OpenMode::Create)?;
    for_each_chunk(window, torn.bytes.start, |bytes, at| {
        let at = at.saturating_sub(torn.bytes.start);
        write_full(&*file, bytes, at).map_err(|error| fail("write", error))
    })?;
    file.sync().map_err(|error| fail("sync", error))
}

/// Hands out what the window shows from `position` on, piece by piece, each with its position.
pub(super) fn for_each_chunk(
    window: &mut Window,
    mut position: u64,
    mut each: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    loop {
        let bytes = window.at(position, 1)?;
        let bytes = bytes.get(..CHUNK_MAX).unwrap_or(bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        each(bytes, position)?;
        position = position.saturating_add(to_u64(bytes.len()));
    }
}
