//! `repair`, on real files.

use std::path::PathBuf;

use crate::tool::{NONE, Tool, changed, everything, order};

/// 100 events in frames of ten, closed well, folded.
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

fn segment(tool: &Tool) -> PathBuf {
    tool.store().join("log/00000000000000000000.seg")
}

#[test]
fn repair_tells_what_would_be_lost_and_then_loses_exactly_that() {
    let tool = store();
    let well = tool.run(&["repair"]).ended(0);
    assert!(well.out.starts_with("nothing to repair"), "{}", well.out);

    // Order 30's events are records 60 and 61, in the frame of records 60 to 69.
    let mut bytes = std::fs::read(segment(&tool)).unwrap();
    let at = bytes.windows(10).position(|at| at == b"order-30-p");
    bytes[at.unwrap()] ^= 0x40;
    std::fs::write(segment(&tool), &bytes).unwrap();
    let refused = tool.run(&["run"]).ended(2);
    assert!(refused.err.contains("`repair` tells"), "{}", refused.err);

    let before = everything(&tool.store());
    let told = tool.run(&["repair"]).ended(1);
    let json = tool.run(&["repair", "--json"]).ended(1).json();
    let wrong = tool.run(&["repair", "--accept-loss-from", "50"]).ended(2);
    assert!(wrong.err.contains("it is from 60 on"), "{}", wrong.err);
    assert_eq!(changed(&before, &everything(&tool.store())), NONE);
    for said in [
        "is corrupt at byte",
        "to be lost: the records from offset 60 on, at least 40 records (60..100)",
        "state of consumer orders, folded up to 100,",
        "copies will be kept in quarantine/repair-1-60",
        "foldlog repair --accept-loss-from 60",
        "nothing was changed",
    ] {
        assert!(told.out.contains(said), "{said:?} in {}", told.out);
    }
    assert_eq!(json["loss_from"], 60);
    assert_eq!(json["known_end"], 100);
    assert_eq!(json["consumers"][0]["consumer"], "orders");
    assert_eq!(json["done"], false);

    let done = tool.run(&["repair", "--accept-loss-from", "60"]).ended(1);
    assert!(
        done.out
            .contains("repaired: the log ends at offset 60, and epoch 1 begins there"),
        "{}",
        done.out
    );
    let copy = tool
        .store()
        .join("quarantine/repair-1-60/00000000000000000000.seg");
    assert_eq!(std::fs::read(copy).unwrap(), bytes, "kept as it was");
    tool.run(&["repair"]).ended(0);
    tool.run(&["repair", "--accept-loss-from", "60"]).ended(0);

    // What was lost comes again from the file, and state is made anew.
    let again = tool.run(&["run", "in.jsonl", "--batch", "10"]).ended(1);
    assert!(again.err.contains("a loss was accepted"), "{}", again.err);
    assert!(tool.store().join("quarantine/state-orders-1").exists());
    tool.run(&["verify", "--deep"]).ended(0);
    let status = tool.run(&["status", "--json"]).ended(0).json();
    assert_eq!(status["durable_end"], 100);
    assert_eq!(status["rows_by_state"]["PAID"], 50);
}

#[test]
fn repair_sets_state_of_another_log_aside() {
    let (one, other) = (store(), store());
    let state = one.store().join("state");
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::rename(other.store().join("state"), &state).unwrap();
    let refused = one.run(&["run"]).ended(2);
    assert!(refused.err.contains("another log"), "{}", refused.err);
    let told = one.run(&["repair"]).ended(1);
    assert!(
        told.out.contains("no record; the log ends at offset 100"),
        "{}",
        told.out
    );
    one.run(&["repair", "--accept-loss-from", "100"]).ended(1);
    let aside = one.store().join("quarantine/repair-0-100/state-orders");
    assert!(aside.join("CURRENT").exists());
    one.run(&["run"]).ended(0);
    one.run(&["verify", "--deep"]).ended(0);
}

#[test]
fn repair_that_cannot_be_done_says_so() {
    let none = Tool::new();
    let ran = none.run(&["repair"]).ended(2);
    assert!(ran.err.contains("there is no store"), "{}", ran.err);
    assert!(!none.store().exists());
    none.run(&["repair", "--accept-loss-from", "0"]).ended(2);
    assert!(!none.store().exists());
}
