//! The simulator against expectations made by hand, a naive model, and the real disk.

use std::collections::BTreeSet;

use super::*;

mod calls;
mod data;
mod model;
mod names;

/// A file of that name, open for writing, its name durable.
fn file(disk: &SimDisk, name: &str) -> Box<dyn StorageFile> {
    let file = disk.open(name, OpenMode::Create).unwrap();
    let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
    disk.sync_dir(dir).unwrap();
    file
}

fn write(file: &dyn StorageFile, bytes: &[u8], position: u64) {
    assert_eq!(file.write_at(bytes, position).unwrap(), bytes.len());
}

/// `n` sectors, each full of one of the letters.
fn sectors(letters: &str) -> Vec<u8> {
    letters.bytes().flat_map(|letter| [letter; 512]).collect()
}

/// What the sectors of a file are full of: their letter, `0` for zeros, `?` for anything else, and
/// the length if it is not whole sectors.
fn letters(disk: &SimDisk, name: &str) -> String {
    let Some(bytes) = disk.read_file(name) else {
        return "none".to_owned();
    };
    let text: String = bytes
        .chunks(512)
        .map(|sector| match sector[0] {
            first if sector.iter().any(|byte| *byte != first) => '?',
            0 => '0',
            first => char::from(first),
        })
        .collect();
    if bytes.len() % 512 == 0 {
        text
    } else {
        format!("{text}({})", bytes.len())
    }
}

/// Everything that a mode makes of the disk, over many seeds.
fn outcomes(disk: &SimDisk, mode: CrashMode, look: impl Fn(&SimDisk) -> String) -> Vec<String> {
    let found: BTreeSet<String> = (0..600).map(|seed| look(&disk.crash(mode, seed))).collect();
    found.into_iter().collect()
}
