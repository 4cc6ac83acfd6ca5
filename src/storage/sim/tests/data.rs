//! Bytes and lengths: what each crash mode makes of them.

use super::*;

/// A file of such sectors, all durable.
fn synced(letters: &str) -> (SimDisk, Box<dyn StorageFile>) {
    let disk = SimDisk::new();
    let file = file(&disk, "f");
    write(&*file, &sectors(letters), 0);
    file.sync().unwrap();
    (disk, file)
}

fn after(disk: &SimDisk, mode: CrashMode) -> String {
    letters(&disk.crash(mode, 0), "f")
}

#[test]
fn synced_bytes_survive_every_mode() {
    let (disk, _file) = synced("AB");
    for mode in CrashMode::ALL {
        assert_eq!(outcomes(&disk, mode, |disk| letters(disk, "f")), ["AB"]);
    }
    assert_eq!(disk.pending(), 0);
}

#[test]
fn unsynced_bytes_show_and_are_dropped_or_kept() {
    let (disk, file) = synced("AAA");
    write(&*file, &sectors("B"), 512);
    write(&*file, &sectors("CD"), 1024);
    assert_eq!(letters(&disk, "f"), "ABCD");
    assert_eq!(disk.pending(), 2);
    assert_eq!(after(&disk, CrashMode::DropAll), "AAA");
    assert_eq!(after(&disk, CrashMode::KeepAll), "ABCD");
    assert_eq!(after(&disk, CrashMode::Kill), "ABCD");
    assert_eq!(after(&disk, CrashMode::NamesOnly), "AAA");
    assert_eq!(after(&disk, CrashMode::NamesLost), "ABCD");
    assert_eq!(after(&disk, CrashMode::NamesReordered), "ABCD");
    // The length survives without the data: the sectors that were there keep theirs.
    assert_eq!(after(&disk, CrashMode::SizeZeros), "AAA0");
    assert_eq!(
        outcomes(&disk, CrashMode::SizeGarbage, |disk| letters(disk, "f")),
        ["AAA?", "AAAA"],
        "random, or a sector that the disk used before"
    );
}

#[test]
fn prefix_seeds_are_all_the_prefixes_in_order() {
    let (disk, file) = synced("A");
    write(&*file, &sectors("BB"), 0);
    file.set_len(512).unwrap();
    write(&*file, &sectors("C"), 1024);
    file.set_len(2048).unwrap();
    let found: Vec<String> = (0..6)
        .map(|seed| letters(&disk.crash(CrashMode::Prefix, seed), "f"))
        .collect();
    assert_eq!(found, ["A", "BB", "B", "B0C", "B0C0", "A"]);
}

#[test]
fn torn_prefix_tears_only_its_last_write() {
    let (disk, file) = synced("AA");
    write(&*file, &sectors("BB"), 0);
    write(&*file, &sectors("CC"), 0);
    assert_eq!(
        outcomes(&disk, CrashMode::TornPrefix, |disk| letters(disk, "f")),
        ["AA", "AB", "BA", "BB", "BC", "CB", "CC"]
    );
}

#[test]
fn torn_sectors_is_any_subset_of_sectors_at_full_length() {
    let (disk, file) = synced("A");
    write(&*file, &sectors("BB"), 0);
    assert_eq!(
        outcomes(&disk, CrashMode::TornSectors, |disk| letters(disk, "f")),
        ["A0", "AB", "B0", "BB"]
    );
}

#[test]
fn a_sector_ends_with_any_content_since_its_last_sync() {
    let (disk, file) = synced("A");
    for letter in ["B", "C", "D"] {
        write(&*file, &sectors(letter), 0);
    }
    let f = |disk: &SimDisk| letters(disk, "f");
    assert_eq!(
        outcomes(&disk, CrashMode::Random, f),
        ["A", "B", "C", "D"],
        "and never garbage: it was synced"
    );
    file.sync().unwrap();
    assert_eq!(outcomes(&disk, CrashMode::Random, f), ["D"]);
}

#[test]
fn part_of_a_sector_is_written_with_the_rest_of_it() {
    let (disk, file) = synced("A");
    write(&*file, b"xyz", 510);
    let found = outcomes(&disk, CrashMode::TornSectors, |disk| {
        String::from_utf8(disk.read_file("f").unwrap()[508..].to_vec()).unwrap()
    });
    assert_eq!(found, ["AAAA\0", "AAAAz", "AAxy\0", "AAxyz"]);
}

#[test]
fn length_and_data_survive_independently() {
    let (disk, file) = synced("A");
    write(&*file, &sectors("BC"), 512);
    let found = outcomes(&disk, CrashMode::Random, |disk| letters(disk, "f"));
    for expected in [
        "A", "AB", "A0", "A?", "ABC", "AB0", "A0C", "A00", "A??", "AB?",
    ] {
        assert!(found.iter().any(|f| f == expected), "{expected}: {found:?}");
    }
    // Nothing but the written letter, zeros, garbage, or a sector the disk used before (A).
    for outcome in &found {
        let [first, rest @ ..] = outcome.as_bytes() else {
            panic!("empty")
        };
        assert_eq!(*first, b'A');
        assert!(
            rest.first().is_none_or(|c| b"B0?A".contains(c)),
            "{outcome}"
        );
        assert!(rest.get(1).is_none_or(|c| b"C0?A".contains(c)), "{outcome}");
    }
}

#[test]
fn garbage_appears_only_in_sectors_never_synced() {
    // Preallocated and synced, then written: zeros or the bytes, nothing else.
    let disk = SimDisk::new();
    let file = file(&disk, "f");
    write(&*file, &[0; 2048], 0);
    let f = |disk: &SimDisk| letters(disk, "f");
    assert!(
        outcomes(&disk, CrashMode::Random, f)
            .iter()
            .any(|f| f.contains('?')),
        "before the sync also zeros may come back as garbage"
    );
    file.sync().unwrap();
    write(&*file, &sectors("BC"), 512);
    for mode in [CrashMode::Random, CrashMode::TornSectors] {
        assert_eq!(outcomes(&disk, mode, f), ["0000", "00C0", "0B00", "0BC0"]);
    }
    assert_eq!(outcomes(&disk, CrashMode::SizeGarbage, f), ["0000"]);
    // A file that was synced at 100 bytes has its first sector on disk, the second not.
    let file = super::file(&disk, "g");
    write(&*file, &[b'A'; 100], 0);
    file.sync().unwrap();
    write(&*file, &[b'B'; 924], 100);
    let found = outcomes(&disk, CrashMode::SizeGarbage, |disk| {
        let bytes = disk.read_file("g").unwrap();
        assert_eq!(bytes[..100], [b'A'; 100]);
        assert_eq!(bytes[100..512], [0; 412]);
        letters(disk, "g")
    });
    assert!(found.contains(&"??".to_owned()), "{found:?}");
}

#[test]
fn a_cut_and_an_extension_give_zeros() {
    let (disk, file) = synced("AB");
    file.set_len(100).unwrap();
    file.set_len(1024).unwrap();
    let bytes = disk.read_file("f").unwrap();
    assert_eq!(bytes[..100], [b'A'; 100]);
    assert_eq!(bytes[100..], [0; 924]);
    // A crash may undo it, or leave the old bytes in what was freed; the synced bytes before the
    // cut stay.
    for outcome in outcomes(&disk, CrashMode::Random, |disk| {
        let bytes = disk.read_file("f").unwrap();
        assert_eq!(bytes[..100], [b'A'; 100]);
        bytes.len().to_string()
    }) {
        assert!(
            ["100", "512", "1024"].contains(&outcome.as_str()),
            "{outcome}"
        );
    }
    file.sync().unwrap();
    let after = disk.crash(CrashMode::Random, 7).read_file("f").unwrap();
    assert_eq!(after, bytes);
}

#[test]
fn a_lost_cut_leaves_the_old_bytes_whole() {
    let (disk, file) = synced("AB");
    file.set_len(0).unwrap();
    let f = |disk: &SimDisk| letters(disk, "f");
    assert_eq!(outcomes(&disk, CrashMode::Random, f), ["", "AB"]);
    assert_eq!(outcomes(&disk, CrashMode::DropAll, f), ["AB"]);
    assert_eq!(outcomes(&disk, CrashMode::SizeZeros, f), [""]);
    file.sync().unwrap();
    file.set_len(1024).unwrap();
    file.sync().unwrap();
    assert_eq!(outcomes(&disk, CrashMode::Random, f), ["00"]);
}

#[test]
fn create_empties_the_same_file() {
    let (disk, old) = synced("A");
    let new = disk.open("f", OpenMode::Create).unwrap();
    assert_eq!(old.len().unwrap(), 0);
    write(&*new, b"x", 0);
    assert_eq!(old.len().unwrap(), 1);
    assert_eq!(after(&disk, CrashMode::DropAll), "A");
    assert_eq!(after(&disk, CrashMode::NamesOnly), "A");
    assert_eq!(after(&disk, CrashMode::KeepAll), "x(1)");
}

#[test]
fn failed_sync_loses_what_reads_still_show() {
    let (disk, file) = synced("AA");
    write(&*file, &sectors("BBB"), 0);
    disk.fail(CallKind::Sync, 1, Fault::Io, Repeat::Once);
    assert!(file.sync().is_err());
    // The next sync has nothing to do and says that all is well.
    file.sync().unwrap();
    assert_eq!(letters(&disk, "f"), "BBB");
    assert_eq!(disk.pending(), 0);
    for mode in [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::NamesLost] {
        assert_eq!(after(&disk, mode), "AA");
    }
    // The failed sync may have reached some of it all the same.
    let f = |disk: &SimDisk| letters(disk, "f");
    let found = outcomes(&disk, CrashMode::Random, f);
    for expected in ["AA", "AB", "BA", "BB", "ABB", "BB0", "AA?"] {
        assert!(found.iter().any(|f| f == expected), "{expected}: {found:?}");
    }
    // A killed process finds it readable, and it is as lost as before.
    let killed = disk.crash(CrashMode::Kill, 0);
    assert_eq!(letters(&killed, "f"), "BBB");
    assert_eq!(after(&killed, CrashMode::KeepAll), "AA");
    // Written again, equal bytes too, and synced it is safe.
    let again = killed.open("f", OpenMode::Write).unwrap();
    write(&*again, &sectors("BBB"), 0);
    assert_eq!(killed.pending(), 1);
    again.sync().unwrap();
    for mode in CrashMode::ALL {
        assert_eq!(outcomes(&killed, mode, f), ["BBB"]);
    }
    // Under memory pressure reads show the disk.
    disk.evict();
    assert_eq!(letters(&disk, "f"), "AA0");
}

#[test]
fn rewriting_a_part_after_a_failed_sync_saves_only_that_part() {
    let (disk, file) = synced("AAA");
    write(&*file, &sectors("BBB"), 0);
    disk.fail(CallKind::Sync, 1, Fault::NoSpace, Repeat::Once);
    assert!(file.sync().is_err());
    write(&*file, &sectors("B"), 512);
    file.sync().unwrap();
    assert_eq!(after(&disk, CrashMode::KeepAll), "ABA");
}

#[test]
fn an_interrupted_sync_forgets_nothing() {
    let (disk, file) = synced("A");
    write(&*file, &sectors("B"), 0);
    disk.fail(CallKind::Sync, 1, Fault::Interrupted, Repeat::Once);
    assert!(file.sync().is_err());
    assert_eq!(after(&disk, CrashMode::DropAll), "A");
    file.sync().unwrap();
    assert_eq!(after(&disk, CrashMode::DropAll), "B");
}

#[test]
fn a_killed_write_leaves_a_prefix_and_nothing_becomes_durable() {
    let (disk, file) = synced("AAA");
    disk.crash_at(disk.calls() + 1);
    assert!(file.write_at(&sectors("BBB"), 0).is_err());
    let mut kept = BTreeSet::new();
    for seed in 0..600 {
        let killed = disk.crash(CrashMode::Kill, seed);
        let bytes = killed.read_file("f").unwrap();
        let prefix = bytes.iter().take_while(|byte| **byte == b'B').count();
        assert!(bytes[prefix..].iter().all(|byte| *byte == b'A'));
        assert_eq!(letters(&killed.crash(CrashMode::DropAll, 0), "f"), "AAA");
        kept.insert(prefix);
    }
    assert!(kept.len() > 100, "prefixes of any length");
    assert_eq!(after(&disk, CrashMode::KeepAll), "AAA");
}

#[test]
fn files_beyond_four_gibibytes_are_sparse() {
    const FAR: u64 = 5 * 1024 * 1024 * 1024;
    let disk = SimDisk::new();
    let file = file(&disk, "f");
    file.set_len(FAR).unwrap();
    write(&*file, b"end", FAR);
    assert_eq!(file.len().unwrap(), FAR + 3);
    drop(disk.crash(CrashMode::SizeGarbage, 1));
    file.sync().unwrap();
    let after = disk.crash(CrashMode::DropAll, 0);
    let file = after.open("f", OpenMode::Read).unwrap();
    let mut buf = [1; 8];
    assert_eq!(file.read_at(&mut buf, FAR - 2).unwrap(), 5);
    assert_eq!(&buf[..5], b"\0\0end");
    assert!(file.write_at(b"x", 0).is_err());
    let file = after.open("f", OpenMode::Write).unwrap();
    assert!(file.write_at(b"x", u64::MAX).is_err());
    assert!(file.set_len(u64::MAX).is_err());
}

#[test]
fn rewriting_for_ever_without_a_sync_costs_bounded_memory() {
    let (disk, file) = synced("A");
    for round in 0..10_000_u32 {
        file.set_len(0).unwrap();
        write(&*file, &round.to_le_bytes(), 0);
    }
    assert!(disk.pending() <= 64);
    for round in 0..10_000_u32 {
        let fresh = disk.open("new", OpenMode::Create).unwrap();
        write(&*fresh, &round.to_le_bytes(), 0);
        disk.rename("new", "mark").unwrap();
    }
    let state = disk.state();
    assert!(state.tree.files.len() < 5000, "{}", state.tree.files.len());
    assert!(state.tree.ops.len() <= 1024);
}

#[test]
fn what_a_cut_freed_may_come_back_as_garbage_when_it_is_used_again() {
    let (disk, file) = synced("AB");
    file.set_len(512).unwrap();
    write(&*file, &sectors("C"), 512);
    let f = |disk: &SimDisk| letters(disk, "f");
    assert_eq!(outcomes(&disk, CrashMode::SizeZeros, f), ["A0"]);
    let found = outcomes(&disk, CrashMode::SizeGarbage, f);
    assert!(found.contains(&"A?".to_owned()), "{found:?}");
    let mut found = outcomes(&disk, CrashMode::Random, f);
    // Rarely the garbage is a sector that the disk used before.
    found.retain(|outcome| outcome != "AA");
    assert_eq!(found, ["A", "A0", "A?", "AB", "AC"]);
}

#[test]
fn bytes_behind_a_lost_length_are_zeros_when_the_file_grows() {
    let disk = SimDisk::new();
    let file = file(&disk, "f");
    write(&*file, &[b'A'; 100], 0);
    file.sync().unwrap();
    write(&*file, &[b'B'; 300], 100);
    let mut short = 0;
    for seed in 0..200 {
        let after = disk.crash(CrashMode::Random, seed);
        let file = after.open("f", OpenMode::Write).unwrap();
        if file.len().unwrap() == 100 {
            file.set_len(400).unwrap();
            assert_eq!(after.read_file("f").unwrap()[100..], [0; 300]);
            short += 1;
        }
    }
    assert!(short > 10);
}
