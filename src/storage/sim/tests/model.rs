//! The simulator against a naive model of the rules, against the real disk, and in use.

use std::collections::BTreeMap;

use super::*;
use crate::storage::disk::Disk;
use crate::storage::{read_small, replace_small};

/// What one file looked like at the last sync and after each operation since.
struct Naive {
    /// Oldest first; the first is the synced one.
    looks: Vec<Vec<u8>>,
}

impl Naive {
    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut look = self.looks.last().unwrap().clone();
        change(&mut look);
        self.looks.push(look);
    }

    fn sector(look: &[u8], index: usize) -> [u8; 512] {
        let mut sector = [0; 512];
        let bytes = look.chunks(512).nth(index).unwrap_or_default();
        sector[..bytes.len()].copy_from_slice(bytes);
        sector
    }

    /// Whether a power loss may leave these bytes, by the words of the rule.
    fn check(&self, bytes: &[u8]) {
        let longest = self.looks.iter().map(Vec::len).max().unwrap();
        let shortest = self.looks.iter().map(Vec::len).min().unwrap();
        assert!((shortest..=longest).contains(&bytes.len()));
        let synced = self.looks[0].len();
        for index in 0..bytes.len().div_ceil(512) {
            let found = Self::sector(bytes, index);
            let start = index.saturating_mul(512);
            let whole = bytes.len().saturating_sub(start).min(512);
            let written = self
                .looks
                .iter()
                .any(|look| Self::sector(look, index)[..whole] == found[..whole]);
            let fresh = start >= synced.min(shortest);
            assert!(written || fresh, "sector {index} holds what nobody wrote");
        }
    }
}

#[test]
fn no_crash_leaves_what_the_rules_forbid() {
    let mut checked = 0_u32;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new();
        let file = file(&disk, "f");
        let mut naive = Naive {
            looks: vec![Vec::new()],
        };
        for step in 0..30 {
            let position = to_usize(rng.below(3000));
            match rng.below(10) {
                0..=5 => {
                    let bytes = vec![u8::try_from(step + 1).unwrap(); to_usize(rng.below(1500))];
                    write(&*file, &bytes, to_u64(position));
                    naive.change(|look| {
                        if !bytes.is_empty() {
                            look.resize(look.len().max(position + bytes.len()), 0);
                            look[position..position + bytes.len()].copy_from_slice(&bytes);
                        }
                    });
                }
                6..=7 => {
                    file.set_len(to_u64(position)).unwrap();
                    naive.change(|look| look.resize(position, 0));
                }
                _ => {
                    file.sync().unwrap();
                    naive.looks.drain(..naive.looks.len() - 1);
                }
            }
            assert_eq!(disk.read_file("f").as_ref(), naive.looks.last());
            for mode in CrashMode::ALL {
                let after = disk.crash(mode, rng.draw());
                let bytes = after.read_file("f").unwrap();
                naive.check(&bytes);
                let exact = if mode == CrashMode::DropAll {
                    naive.looks.first()
                } else if matches!(mode, CrashMode::KeepAll | CrashMode::Kill) {
                    naive.looks.last()
                } else {
                    None
                };
                assert!(exact.is_none_or(|exact| *exact == bytes), "{mode:?}");
                if mode == CrashMode::Prefix {
                    assert!(naive.looks.contains(&bytes));
                }
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 60 * 30 * 12);
}

/// Files with their bytes, and directories.
fn picture(storage: &dyn Storage, dir: &str, out: &mut BTreeMap<String, Option<Vec<u8>>>) {
    for entry in storage.list(dir).unwrap() {
        let path = if dir.is_empty() {
            entry.name
        } else {
            format!("{dir}/{}", entry.name)
        };
        if entry.is_dir {
            picture(storage, &path, out);
            out.insert(path, None);
        } else {
            let bytes = read_small(storage, &path, 1 << 20).unwrap().unwrap();
            assert_eq!(to_u64(bytes.len()), entry.len);
            out.insert(path, Some(bytes));
        }
    }
}

/// One random operation; answers what came of it.
fn act(storage: &dyn Storage, rng: &mut Rng) -> String {
    const NAMES: [&str; 8] = ["a", "b", "d", "d/a", "d/b", "e", "e/d", "e/d/a"];
    let mut name = || NAMES[to_usize(rng.below(8))];
    let (first, second) = (name(), name());
    let position = rng.below(2000);
    let bytes = vec![7; to_usize(rng.below(1000))];
    let kind = rng.below(9);
    let result = match kind {
        0 => storage.create_dir(first).map(|()| 0),
        1 => storage.open(first, OpenMode::Create).and_then(|file| {
            let written = file.write_at(&bytes, position)?;
            file.sync()?;
            Ok(to_u64(written))
        }),
        2 => storage.open(first, OpenMode::Write).and_then(|file| {
            file.set_len(position)?;
            let written = file.write_at(&bytes, 100)?;
            Ok(to_u64(written))
        }),
        3 => storage.open(first, OpenMode::Read).and_then(|file| {
            let mut buf = vec![0; 700];
            assert!(file.write_at(b"x", 0).is_err());
            file.read_at(&mut buf, position / 2).map(to_u64)
        }),
        4 | 5 => storage.rename(first, second).map(|()| 0),
        6 => storage.remove(first).map(|()| 0),
        7 => storage.remove_dir(first).map(|()| 0),
        _ => storage.sync_dir(first).map(|()| 0),
    };
    match result {
        Ok(n) => format!("{kind} {first} {second}: {n}"),
        Err(_) => format!("{kind} {first} {second}: refused"),
    }
}

#[test]
fn the_simulated_disk_answers_as_the_real_one() {
    let mut done = 0;
    for seed in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let (real, sim) = (Disk::open(dir.path()), SimDisk::new());
        let (mut for_real, mut for_sim) = (Rng::new(seed), Rng::new(seed));
        for step in 0..60 {
            let expected = act(&real, &mut for_real);
            assert_eq!(act(&sim, &mut for_sim), expected, "seed {seed} step {step}");
            done += u32::from(!expected.ends_with("refused"));
        }
        let (mut expected, mut found) = (BTreeMap::new(), BTreeMap::new());
        picture(&real, "", &mut expected);
        picture(&sim, "", &mut found);
        assert_eq!(found, expected, "seed {seed}");
    }
    assert!(done > 500, "only {done} operations were accepted");
}

/// How `small` fares when it is replaced and the machine crashes at any call, in any mode.
fn crash_while_replacing(replace: impl Fn(&SimDisk) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for at in 1..=8 {
        for mode in CrashMode::ALL {
            for seed in 0..20 {
                let disk = SimDisk::new();
                disk.write_file("d/small", b"old").unwrap();
                disk.crash_at(at);
                let done = replace(&disk);
                let bytes = disk.crash(mode, seed).read_file("d/small");
                let text = bytes.map_or("none".into(), |bytes| {
                    String::from_utf8_lossy(&bytes).into_owned()
                });
                found.insert(format!("{text}{}", if done { " done" } else { "" }));
            }
        }
    }
    found
}

#[test]
fn a_small_file_is_replaced_in_one_step() {
    let found =
        crash_while_replacing(|disk| replace_small(disk, "d", "small", b"new", true).is_ok());
    assert_eq!(found, ["new", "new done", "old"].map(String::from).into());
    let found =
        crash_while_replacing(|disk| replace_small(disk, "d", "small", b"new", false).is_ok());
    assert_eq!(
        found,
        ["new done", "old", "old done"].map(String::from).into()
    );
}

#[test]
fn a_replacement_without_a_sync_is_caught() {
    let found = crash_while_replacing(|disk| {
        let replaced = disk.open("d/small.new", OpenMode::Create).and_then(|file| {
            file.write_at(b"new", 0)?;
            disk.rename("d/small.new", "d/small")?;
            disk.sync_dir("d")
        });
        replaced.is_ok()
    });
    assert!(
        found.contains(" done"),
        "the name without the bytes: {found:?}"
    );
    assert!(
        found.contains("\0\0\0 done"),
        "the length without the bytes"
    );
}
