//! Copies of bytes that recovery is about to cut off.
//!
//! A copy is `quarantine/<segment>-<position>-<crc>[-<k>]`, the CRC-32 being of its bytes: the same
//! bytes of the same place are one file, however often recovery is interrupted. Where other bytes
//! already have that name, k counts on from 2. A copy is written under another name, synced, and
//! renamed.
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
use crate::storage::{DirEntry, OpenMode, Storage, write_full};

const DIR: &str = "quarantine";

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
    let fail = |op, source| Error::io(op, storage.path(DIR), None, len, source);
    storage
        .create_dir(DIR)
        .map_err(|error| fail("create directory", error))?;
    storage
        .sync_dir("")
        .map_err(|error| fail("sync directory", error))?;
    let listed = storage.list(DIR).map_err(|error| fail("list", error))?;
    let (name, known) = find_name(storage, &mut window, torn, (&stem, &listed))?;
    if !known {
        let fresh = format!("{name}.new");
        copy(storage, &mut window, torn, &fresh)?;
        storage
            .rename(&fresh, &name)
            .map_err(|error| fail("rename", error))?;
    }
    // Also where the copy was there: its rename may have been the last thing before a crash.
    storage
        .sync_dir(DIR)
        .map_err(|error| fail("sync directory", error))?;
    Ok(name)
}

/// The name for the copy, and whether it stands there already.
fn find_name(
    storage: &Arc<dyn Storage>,
    window: &mut Window,
    torn: &Torn,
    (stem, listed): (&str, &[DirEntry]),
) -> Result<(String, bool)> {
    let mut number = 1_u64;
    loop {
        let name = if number == 1 {
            stem.to_owned()
        } else {
            format!("{stem}-{number}")
        };
        let path = format!("{DIR}/{name}");
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
