//! Names: what each crash mode makes of creations, renames and removals.

use super::*;

/// Every file with its letters.
fn tree(disk: &SimDisk) -> String {
    let files = disk.files();
    let texts: Vec<String> = files
        .iter()
        .map(|name| format!("{name}={}", letters(disk, name)))
        .collect();
    texts.join(" ")
}

/// A durable file full of one letter.
fn put(disk: &SimDisk, name: &str, letter: &str) {
    disk.write_file(name, &sectors(letter)).unwrap();
}

#[test]
fn names_are_lost_until_their_directory_is_synced() {
    let disk = SimDisk::new();
    let file = disk.open("f", OpenMode::Create).unwrap();
    write(&*file, &sectors("A"), 0);
    file.sync().unwrap();
    assert_eq!(tree(&disk), "f=A");
    // The file's sync is none of its name.
    assert_eq!(tree(&disk.crash(CrashMode::DropAll, 0)), "");
    assert_eq!(tree(&disk.crash(CrashMode::NamesLost, 0)), "");
    assert_eq!(
        outcomes(&disk, CrashMode::NamesReordered, tree),
        ["", "f=A"]
    );
    disk.sync_dir("").unwrap();
    for mode in CrashMode::ALL {
        assert_eq!(outcomes(&disk, mode, tree), ["f=A"]);
    }
}

#[test]
fn a_durable_name_may_have_lost_its_bytes() {
    let disk = SimDisk::new();
    let file = file(&disk, "f");
    write(&*file, &sectors("A"), 0);
    assert_eq!(tree(&disk.crash(CrashMode::DropAll, 0)), "f=");
    assert_eq!(tree(&disk.crash(CrashMode::NamesOnly, 0)), "f=");
}

#[test]
fn a_rename_that_is_lost_leaves_the_old_name() {
    let disk = SimDisk::new();
    put(&disk, "new", "B");
    put(&disk, "old", "A");
    disk.rename("new", "old").unwrap();
    assert_eq!(tree(&disk), "old=B");
    assert_eq!(tree(&disk.crash(CrashMode::DropAll, 0)), "new=B old=A");
    assert_eq!(
        outcomes(&disk, CrashMode::Random, tree),
        ["new=B old=A", "old=B"]
    );
    disk.sync_dir("").unwrap();
    assert_eq!(outcomes(&disk, CrashMode::Random, tree), ["old=B"]);
}

#[test]
fn a_removal_that_is_lost_brings_the_file_back() {
    let disk = SimDisk::new();
    put(&disk, "f", "A");
    disk.remove("f").unwrap();
    assert_eq!(tree(&disk), "");
    assert_eq!(tree(&disk.crash(CrashMode::DropAll, 0)), "f=A");
    assert_eq!(tree(&disk.crash(CrashMode::NamesLost, 0)), "f=A");
    assert_eq!(tree(&disk.crash(CrashMode::KeepAll, 0)), "");
    disk.sync_dir("").unwrap();
    assert_eq!(tree(&disk.crash(CrashMode::DropAll, 0)), "");
}

#[test]
fn names_are_reordered_but_one_name_keeps_its_order() {
    let disk = SimDisk::new();
    put(&disk, "a", "A");
    put(&disk, "b", "B");
    disk.remove("a").unwrap();
    disk.rename("b", "c").unwrap();
    disk.remove("c").unwrap();
    let expected = ["", "a=A", "a=A b=B", "a=A c=B", "b=B", "c=B"];
    assert_eq!(outcomes(&disk, CrashMode::NamesReordered, tree), expected);
    assert_eq!(outcomes(&disk, CrashMode::Random, tree), expected);
    let prefixes: Vec<String> = (0..4)
        .map(|seed| tree(&disk.crash(CrashMode::Prefix, seed)))
        .collect();
    assert_eq!(prefixes, ["a=A b=B", "b=B", "c=B", ""]);
}

#[test]
fn a_name_that_is_used_again_never_loses_the_file_renamed_away() {
    let disk = SimDisk::new();
    put(&disk, "x", "A");
    disk.rename("x", "y").unwrap();
    let file = disk.open("x", OpenMode::Create).unwrap();
    write(&*file, &sectors("B"), 0);
    file.sync().unwrap();
    assert_eq!(
        outcomes(&disk, CrashMode::Random, tree),
        ["x=A", "x=B y=A", "y=A"]
    );
}

#[test]
fn a_rename_across_directories_needs_both_syncs_and_never_loses_the_file() {
    let disk = SimDisk::new();
    put(&disk, "a/f", "A");
    disk.create_dir("b").unwrap();
    disk.rename("a/f", "b/f").unwrap();
    assert_eq!(outcomes(&disk, CrashMode::Random, tree), ["a/f=A", "b/f=A"]);
    let new_first = disk.fork();
    new_first.sync_dir("b").unwrap();
    assert_eq!(
        outcomes(&new_first, CrashMode::Random, tree),
        ["a/f=A b/f=A", "b/f=A"]
    );
    new_first.sync_dir("a").unwrap();
    assert_eq!(outcomes(&new_first, CrashMode::Random, tree), ["b/f=A"]);
    disk.sync_dir("a").unwrap();
    assert_eq!(outcomes(&disk, CrashMode::Random, tree), ["b/f=A"]);
}

#[test]
fn a_name_that_was_replaced_durably_does_not_come_back() {
    let disk = SimDisk::new();
    put(&disk, "a/f", "A");
    disk.create_dir("b").unwrap();
    let replaced = disk.open("b/f", OpenMode::Create).unwrap();
    write(&*replaced, &sectors("B"), 0);
    replaced.sync().unwrap();
    disk.rename("a/f", "b/f").unwrap();
    // Brings the new name to disk as well, or the file would be lost.
    disk.sync_dir("a").unwrap();
    for mode in CrashMode::ALL {
        assert_eq!(outcomes(&disk, mode, tree), ["b/f=A"]);
    }
}

#[test]
fn directories_are_durable_when_created_and_move_as_a_whole() {
    let disk = SimDisk::new();
    disk.create_dir("a/b").unwrap();
    let after = disk.crash(CrashMode::DropAll, 0);
    assert!(after.list("a/b").unwrap().is_empty());
    put(&disk, "a/b/f", "A");
    disk.rename("a/b", "c").unwrap();
    assert_eq!(tree(&disk), "c/f=A");
    assert_eq!(
        outcomes(&disk, CrashMode::Random, tree),
        ["a/b/f=A", "c/f=A"]
    );
    assert!(disk.rename("c", "a").is_err());
    assert!(disk.rename("a", "a/x").is_err());
    disk.sync_dir("a").unwrap();
    disk.sync_dir("").unwrap();
    disk.remove_dir("c").unwrap();
    assert_eq!(tree(&disk), "");
    assert_eq!(disk.list("c").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(outcomes(&disk, CrashMode::Random, tree), ["", "c/f=A"]);
}

#[test]
fn killed_calls_of_many_steps_stop_between_them() {
    let disk = SimDisk::new();
    for name in ["d/a", "d/b", "d/e/c"] {
        put(&disk, name, "A");
    }
    let dying = disk.fork();
    dying.crash_at(1);
    assert!(dying.remove_dir("d").is_err());
    let found = outcomes(&dying, CrashMode::Kill, tree);
    assert_eq!(
        found,
        ["", "d/a=A d/b=A d/e/c=A", "d/b=A d/e/c=A", "d/e/c=A"]
    );
    let dying = disk.fork();
    dying.crash_at(1);
    assert!(dying.create_dir("x/y").is_err());
    let stages = outcomes(&dying, CrashMode::Kill, |disk| {
        let stage = |disk: &SimDisk| {
            [disk.list("x").is_ok(), disk.list("x/y").is_ok()]
                .map(u8::from)
                .iter()
                .sum::<u8>()
        };
        format!(
            "{}{}",
            stage(disk),
            stage(&disk.crash(CrashMode::DropAll, 0))
        )
    });
    // Directories seen, and of them durable.
    assert_eq!(stages, ["00", "10", "11", "21", "22"]);
}

#[test]
fn a_handle_outlives_the_names_of_its_file() {
    let disk = SimDisk::new();
    let file = file(&disk, "f");
    write(&*file, b"A", 0);
    disk.rename("f", "g").unwrap();
    disk.remove("g").unwrap();
    disk.sync_dir("").unwrap();
    for round in 0..500 {
        drop(
            disk.open(&format!("other{round}"), OpenMode::Create)
                .unwrap(),
        );
        disk.remove(&format!("other{round}")).unwrap();
        disk.sync_dir("").unwrap();
    }
    assert!(disk.state().tree.files.len() < 200, "files are swept");
    let mut buf = [0; 1];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 1);
    assert_eq!(&buf, b"A");
    file.sync().unwrap();
}

#[test]
fn raw_access_is_durable_and_leaves_the_rest_pending() {
    let disk = SimDisk::new();
    let pending = disk.open("pending", OpenMode::Create).unwrap();
    write(&*pending, b"x", 0);
    put(&disk, "d/f", "A");
    let handle = disk.open("d/f", OpenMode::Read).unwrap();
    put(&disk, "d/f", "BB");
    assert_eq!(handle.len().unwrap(), 1024);
    assert_eq!(tree(&disk.crash(CrashMode::DropAll, 0)), "d/f=BB");
    disk.remove_file("d/f").unwrap();
    assert_eq!(tree(&disk.crash(CrashMode::DropAll, 0)), "");
    assert_eq!(tree(&disk), "pending=x(1)");
    assert!(disk.remove_file("d/f").is_err());
    assert!(disk.write_file("d", b"").is_err());
    assert!(disk.write_file("pending/x", b"").is_err());
    disk.settle();
    assert_eq!(tree(&disk.crash(CrashMode::DropAll, 0)), "pending=x(1)");
}

#[test]
fn image_hash_tells_contents_apart_and_only_them() {
    let disk = SimDisk::new();
    put(&disk, "f", "AB");
    let hash = disk.image_hash();
    let other = SimDisk::with_seed(9);
    let file = file(&other, "f");
    write(&*file, &sectors("BB"), 0);
    write(&*file, &sectors("A0"), 0);
    file.set_len(512).unwrap();
    write(&*file, &sectors("B"), 512);
    assert_eq!(other.image_hash(), hash);
    let mut seen = BTreeSet::from([hash]);
    let mut flipped = sectors("AB");
    flipped[700] ^= 1;
    for (name, bytes) in [
        ("f", flipped),
        ("f", sectors("A")),
        ("f", vec![]),
        ("f", vec![0; 512]),
        ("f", vec![0; 513]),
        ("g", sectors("AB")),
    ] {
        let disk = SimDisk::new();
        disk.write_file(name, &bytes).unwrap();
        assert!(seen.insert(disk.image_hash()), "{name}");
    }
    disk.create_dir("d").unwrap();
    assert!(seen.insert(disk.image_hash()));
    // A hole and written zeros read the same.
    let (hole, zeros) = (SimDisk::new(), SimDisk::new());
    super::file(&hole, "f").set_len(2000).unwrap();
    write(&*super::file(&zeros, "f"), &[0; 2000], 0);
    assert_eq!(hole.image_hash(), zeros.image_hash());
}
