//! Stores that are damaged, of another version, or not stores: found, told, and left alone.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::commands::filled;
use crate::tool::{NONE, Ran, Tool, changed, copy, everything, order};

/// A store of several frames, closed well.
fn store() -> Tool {
    let tool = Tool::new();
    let lines: Vec<String> = (0..50)
        .flat_map(|n| {
            let key = format!("order-{n}");
            [
                order(&format!("{key}-r"), &key, 1, "reserve"),
                order(&format!("{key}-p"), &key, 2, "pay"),
            ]
        })
        .collect();
    tool.write("in.jsonl", lines.join("\n") + "\n");
    tool.run(&["run", "in.jsonl", "--batch", "10"]).ended(0);
    tool
}

fn segments(tool: &Tool) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(tool.store().join("log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "seg"))
        .collect();
    found.sort();
    found
}

/// Where the last byte that is not zero is.
fn last_byte(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).unwrap()
}

fn damage(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}

/// Runs `verify` in both forms on a damaged store: the same code, the last line agrees with it, and
/// nothing is changed.
#[track_caller]
fn verify(tool: &Tool, code: i32, said: &str) -> Ran {
    let before = everything(&tool.store());
    let json = tool.run(&["verify", "--deep", "--json"]).ended(code);
    let ran = tool.run(&["verify", "--deep"]).ended(code);
    assert_eq!(changed(&before, &everything(&tool.store())), NONE);
    match code {
        0 => assert_eq!(json.json()["sound"], true),
        1 => {
            assert_eq!(json.json()["sound"], false);
            assert_eq!(ran.out.lines().last(), Some("NOT SOUND: see the findings"));
        }
        _ => assert_eq!((json.out.as_str(), ran.out.as_str()), ("", "")),
    }
    let all = format!("{}{}", ran.out, ran.err);
    assert!(all.contains(said), "{said:?} in {all}");
    ran
}

#[test]
fn verify_tells_clean_damaged_and_unreadable_apart() {
    let tool = store();
    let ran = verify(&tool, 0, "verified: 10");
    assert!(
        ran.out.lines().last().unwrap().starts_with("verified"),
        "{}",
        ran.out
    );

    let empty = Tool::new();
    empty.write("in.jsonl", "");
    empty.run(&["ingest", "in.jsonl"]).ended(0);
    verify(&empty, 0, "nothing to verify");

    let middle = store();
    let segment = &segments(&middle)[0];
    damage(segment, last_byte(&std::fs::read(segment).unwrap()) / 2);
    verify(&middle, 1, "is corrupt at byte");

    // Closed well, the last frame is proven: its rot is damage, not a torn write.
    let last = store();
    let segment = &segments(&last)[0];
    let bytes = std::fs::read(segment).unwrap();
    let text = bytes
        .windows(10)
        .rposition(|at| at == b"order-49-p")
        .unwrap();
    damage(segment, text);
    verify(&last, 1, "is corrupt at byte");

    let missing = store();
    std::fs::remove_file(&segments(&missing)[0]).unwrap();
    let ran = missing.run(&["verify"]);
    assert_ne!(
        ran.code, 0,
        "a log that is gone is not sound: {}{}",
        ran.out, ran.err
    );

    let unreadable = store();
    let segment = segments(&unreadable)[0].clone();
    std::fs::remove_file(&segment).unwrap();
    std::fs::create_dir(&segment).unwrap();
    let ran = unreadable.run(&["verify"]);
    assert_ne!(ran.code, 0, "{}{}", ran.out, ran.err);

    let foreign = Tool::new();
    std::fs::create_dir_all(foreign.store()).unwrap();
    std::fs::write(foreign.store().join("notes.txt"), "mine").unwrap();
    verify(&foreign, 2, "there is no store");
}

#[test]
fn a_torn_last_write_is_a_finding_for_readers_and_is_trimmed_by_a_writer() {
    // What a crash in the middle of a write leaves: the next frame is written over the note that
    // the last close put behind the last frame, and here only some of its bytes came down.
    let tool = store();
    let before = tool.figures();
    let segment = &segments(&tool)[0];
    let mut bytes = std::fs::read(segment).unwrap();
    let note_end = last_byte(&bytes) + 1;
    bytes[note_end - 8..note_end + 40].copy_from_slice(&[0xa5; 48]);
    std::fs::write(segment, &bytes).unwrap();
    let ran = verify(&tool, 1, "torn");
    assert!(ran.err.contains("left as it is"), "{}", ran.err);
    // All that was stored can still be read, beside the finding.
    let status = tool.run(&["status", "--json"]).ended(1).json();
    assert_eq!(status["digest"], before["digest"]);
    assert!(status["recovery"]["trimmed"]["bytes"].as_u64().unwrap() > 0);
    let ran = tool.run(&["run", "in.jsonl"]).ended(1);
    assert!(ran.err.contains("kept in quarantine/"), "{}", ran.err);
    assert_eq!(tool.figures(), before);
    tool.run(&["verify", "--deep"]).ended(0);
}

#[test]
fn another_format_is_named_and_nothing_is_changed() {
    for version in [0_u32, 2, u32::MAX] {
        let tool = store();
        let segment = segments(&tool)[0].clone();
        let mut bytes = std::fs::read(&segment).unwrap();
        // The version and the header's own checksum stand where every format has them.
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(&segment, &bytes).unwrap();
        verify(&tool, 2, "is not supported");
        let before = everything(&tool.store());
        for args in [
            &["status"][..],
            &["run", "in.jsonl"],
            &["dead", "discard", "5"],
            &["rebuild"],
        ] {
            let ran = tool.run(args).ended(2);
            assert!(
                ran.err.contains("is not supported"),
                "{args:?}: {}",
                ran.err
            );
        }
        // Taking the lock leaves a note for people who has it, and nothing else.
        let mut changed = changed(&before, &everything(&tool.store()));
        changed.retain(|name| !name.ends_with("WRITER"));
        assert_eq!(changed, NONE, "version {version}");
    }
}

#[test]
fn state_that_is_not_the_fold_of_the_log_is_found_and_mended() {
    // Folded from a log that says something else under the same offsets.
    let (tool, other) = (filled(), filled());
    std::fs::remove_dir_all(tool.store().join("state")).unwrap();
    copy(&other.store().join("state"), &tool.store().join("state"));
    verify(&tool, 1, "belongs to another log");
    let before = everything(&tool.store());
    tool.run(&["run", "in.jsonl"]).ended(2);
    assert_eq!(
        everything(&tool.store()).len(),
        before.len(),
        "files untouched"
    );

    // Gone, it is made again; a writer says so only where something was wrong with it.
    std::fs::remove_dir_all(tool.store().join("state")).unwrap();
    verify(&tool, 0, "verified");
    tool.run(&["run", "in.jsonl"]).ended(0);
    assert_eq!(tool.figures(), other.figures());

    // Damaged, it is set aside and made again: a finding.
    let database = databases(&tool.store().join("state"));
    assert!(!database.is_empty(), "no database file was found to damage");
    for file in database {
        let len = std::fs::metadata(&file).unwrap().len();
        std::fs::write(&file, vec![0xff; usize::try_from(len).unwrap()]).unwrap();
    }
    verify(&tool, 0, "verified");
    let ran = tool.run(&["run", "in.jsonl", "--json"]).ended(1);
    assert!(
        ran.err.contains("folded anew") && ran.err.contains("quarantine/"),
        "{}",
        ran.err
    );
    assert_eq!(tool.figures(), other.figures());
    assert_ne!(ran.json()["opening"]["set_aside"], json!(null));
}

fn databases(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        if path.is_dir() {
            found.extend(databases(&path));
        } else if path.file_name().is_some_and(|name| name == "db") {
            found.push(path);
        }
    }
    found
}
