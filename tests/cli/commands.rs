//! Each command: what it says, how it ends, and what it leaves alone.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::tool::{NONE, Tool, changed, everything, order};

/// A store with every outcome in it: applied, duplicate, waiting held, poison, conflict.
///
/// `done` is fulfilled with one duplicate; `poisoned` has a refund where its payment should be,
/// which holds its fulfilment; `gone` waits for a reservation that never comes, so its payment is
/// dead and holds its fulfilment.
pub(crate) fn filled() -> Tool {
    let tool = Tool::new();
    let lines = [
        order("1", "done", 1, "reserve"),
        order("2", "done", 2, "pay"),
        order("2", "done", 2, "pay"),
        order("3", "done", 3, "fulfill"),
        order("4", "poisoned", 1, "reserve"),
        order("5", "poisoned", 2, "refund"),
        order("6", "poisoned", 3, "fulfill"),
        order("7", "gone", 2, "pay"),
        order("8", "gone", 3, "fulfill"),
    ];
    tool.write("in.jsonl", lines.join("\n"));
    tool.run(&["run", "in.jsonl"]).ended(0);
    tool
}

const READ_ONLY: [&[&str]; 11] = [
    &["status"],
    &["get", "done"],
    &["log"],
    &["dead", "list"],
    &["dead", "list", "--resolved"],
    &["dead", "show", "5"],
    &["replay"],
    &["rebuild", "--preview"],
    &["reconcile", "--source", "truth.jsonl"],
    &["verify"],
    &["verify", "--deep"],
];

#[test]
fn commands_that_read_leave_every_byte_name_and_time_alone() {
    let tool = filled();
    tool.write(
        "truth.jsonl",
        r#"{"key":"done","version":3,"status":"FULFILLED"}"#,
    );
    let before = everything(&tool.store());
    for args in READ_ONLY {
        for json in [&["--json"][..], &[]] {
            tool.run(&[args, json].concat()).ended(0);
            assert_eq!(
                changed(&before, &everything(&tool.store())),
                NONE,
                "{args:?}"
            );
        }
    }
    // Refused by their arguments, the others leave it alone as well.
    tool.run(&["dead", "redrive", "--all"]).ended(2);
    tool.run(&["ingest", "missing.jsonl"]).ended(2);
}

#[test]
fn without_a_store_only_run_and_ingest_make_one() {
    let tool = Tool::new();
    tool.write("truth.jsonl", "");
    let writing: [&[&str]; 6] = [
        &["run"],
        &["dead", "redrive", "5"],
        &["dead", "discard", "5"],
        &["dead", "skip", "5"],
        &["rebuild"],
        &["reconcile", "--source", "truth.jsonl", "--apply"],
    ];
    for args in READ_ONLY.iter().chain(&writing) {
        let ran = tool.run(args).ended(2);
        assert!(
            ran.err.contains("there is no store in foldlog-data"),
            "{}",
            ran.err
        );
        assert_eq!(ran.out, "");
        assert!(!tool.store().exists(), "{args:?}");
    }
    tool.write("in.jsonl", order("1", "k", 1, "reserve"));
    tool.run(&["ingest", "in.jsonl", "--store", "other/store"])
        .ended(0);
    tool.run(&["status", "--store", "other/store"]).ended(0);
    let mut by_environment = tool.command(&["status", "--json"]);
    by_environment.env("FOLDLOG_STORE", "other/store");
    assert_eq!(by_environment.output().unwrap().status.code(), Some(0));
    assert_eq!(tool.run(&["status", "--store", ""]).code, 2);
}

#[test]
fn get_tells_the_row_and_what_blocks_the_key() {
    let tool = filled();
    assert_eq!(
        tool.run(&["get", "done", "--json"]).ended(0).json(),
        json!({
            "key": "done", "row": { "version": 3, "state": "FULFILLED", "moved_at": 3 },
            "blocked": null,
        })
    );
    let blocked = json!({ "next": 2, "letter": 5, "waiting": 1, "held": 1, "since": 6 });
    assert_eq!(
        tool.run(&["get", "poisoned", "--json"]).ended(0).json()["blocked"],
        blocked
    );
    let said = tool.run(&["get", "poisoned"]).ended(0).out;
    assert_eq!(
        said,
        "poisoned: version 1, INVENTORY_RESERVED (moved by record 4)\n  \
         1 event waits behind dead letter 5, since record 6\n"
    );
    let none = tool.run(&["get", "nobody", "--json"]).ended(1).json();
    assert_eq!(
        none,
        json!({ "key": "nobody", "row": null, "blocked": null })
    );
    assert_eq!(
        tool.run(&["get", "gone"]).ended(1).out.lines().next(),
        Some("gone: no row")
    );
    assert!(tool.run(&["get", ""]).ended(2).err.contains("never empty"));
}

#[test]
fn dead_letters_are_listed_filtered_and_shown_with_their_story() {
    let tool = filled();
    let all = tool.run(&["dead", "list", "--json"]).ended(0).json_lines();
    let brief: Vec<Value> = all
        .iter()
        .map(|l| {
            json!([
                l["offset"],
                l["class"],
                l["key"],
                l["attempts"],
                l["holds"],
                l["resolved"]
            ])
        })
        .collect();
    let expected = [
        json!([5, "poison", "poisoned", 1, 1, null]),
        json!([7, "conflict", "gone", 3, 1, null]),
    ];
    assert_eq!(brief, expected);
    let offsets = |args: &[&str]| -> Vec<Value> {
        let args = [&["dead", "list", "--json"], args].concat();
        tool.run(&args)
            .ended(0)
            .json_lines()
            .iter()
            .map(|l| l["offset"].clone())
            .collect()
    };
    assert_eq!(offsets(&["--class", "poison"]), [5]);
    assert_eq!(offsets(&["--key", "gone"]), [7]);
    assert_eq!(offsets(&["--reason", "refund"]), [5]);
    assert_eq!(offsets(&["--from", "6"]), [7]);
    assert_eq!(offsets(&["--below", "7"]), [5]);
    assert_eq!(offsets(&["--limit", "1"]), [5]);
    assert!(offsets(&["--class", "crashed"]).is_empty());
    let listed = tool.run(&["dead", "list", "--limit", "1"]).ended(0).out;
    assert!(
        listed.contains("unknown kind") && listed.contains("and 1 more"),
        "{listed}"
    );

    let story = tool.run(&["dead", "show", "7", "--json"]).ended(0).json();
    assert_eq!(story["event"]["id"], "7");
    assert_eq!(
        (&story["row"], &story["settled"]),
        (&Value::Null, &json!(false))
    );
    assert_eq!(story["held_events"][0]["id"], "8");
    assert_eq!(story["history"].as_array().unwrap().len(), 1);
    let said = tool.run(&["dead", "show", "7"]).ended(0).out;
    assert!(
        said.contains("holds    1 event") && said.contains("8: version 3"),
        "{said}"
    );
    assert!(
        tool.run(&["dead", "show", "1"])
            .ended(2)
            .err
            .contains("no dead letter at offset 1")
    );
    assert_eq!(tool.run(&["dead", "show", "-1"]).code, 2);
}

#[test]
fn decisions_are_kept_with_their_note_and_end_with_what_came_of_them() {
    let tool = filled();
    let again = tool
        .run(&["dead", "redrive", "5", "--note", "try", "--json"])
        .ended(1)
        .json();
    assert_eq!(
        again["decided"][0]["outcome"], "dead",
        "died again: a finding"
    );
    let some = tool
        .run(&["dead", "redrive", "5", "6", "--json"])
        .ended(1)
        .json();
    assert_eq!(some["refused"][0]["offset"], 6);
    tool.run(&["dead", "redrive", "6"]).ended(2);
    let skipped = tool
        .run(&["dead", "skip", "5", "--note", "by hand: x"])
        .ended(0);
    assert!(skipped.out.contains("1 letter skipped"), "{}", skipped.out);
    let row = tool.run(&["get", "poisoned", "--json"]).ended(0).json();
    assert_eq!(row["row"]["state"], "FULFILLED", "what it held was applied");
    let refused = tool.run(&["dead", "discard", "5"]).ended(2);
    assert!(refused.err.contains("already resolved"), "{}", refused.err);
    let story = tool.run(&["dead", "show", "5"]).ended(0).out;
    assert!(
        story.contains("by hand: x") && story.contains("settled"),
        "{story}"
    );

    the_last_letters_are_decided_about(&tool);
    for args in [
        &["dead", "redrive"][..],
        &["dead", "redrive", "5", "--all"],
        &["dead", "redrive", "--limit", "0", "--all"],
    ] {
        tool.run(args).ended(2);
    }
}

fn the_last_letters_are_decided_about(tool: &Tool) {
    // A letter that is not its key's next version cannot be skipped.
    assert!(
        tool.run(&["dead", "skip", "7"])
            .ended(2)
            .err
            .contains("not the next")
    );
    // Chosen by a filter they are not decided about without a word.
    let asked = tool.run(&["dead", "discard", "--key", "gone"]).ended(2);
    assert!(
        asked.err.contains("discard 1 dead letter") && asked.err.contains("--yes"),
        "{}",
        asked.err
    );
    let ran = tool
        .run(&["dead", "discard", "--key", "gone", "--yes"])
        .ended(0);
    assert!(
        ran.out.contains("1 event waits unheld: `foldlog run`"),
        "{}",
        ran.out
    );
    let settled = tool.run(&["run", "--json"]).ended(0).json();
    assert_eq!(
        json!([settled["ingested"], settled["waiting"], settled["dead"]]),
        json!([[], 0, 1])
    );
    // What it held has died of its own by now.
    for letters in ["1 letter discarded", "0 letters discarded"] {
        let args = ["dead", "discard", "--key", "gone", "--yes"];
        let ran = tool.run(&args).ended(0);
        assert!(ran.out.contains(letters), "{}", ran.out);
    }
    let resolved = tool
        .run(&["dead", "list", "--resolved", "--json"])
        .ended(0)
        .json_lines();
    let how: Vec<&Value> = resolved.iter().map(|letter| &letter["resolved"]).collect();
    assert_eq!(how, ["skipped", "discarded", "discarded"]);
    let log = tool.run(&["log", "--json"]).ended(0).json_lines();
    let notes: Vec<&str> = log
        .iter()
        .filter_map(|r| r["decision"]["note"].as_str())
        .collect();
    assert_eq!(notes, ["try", "by hand: x"]);
    tool.run(&["rebuild"]).ended(0);
    tool.run(&["verify", "--deep"]).ended(0);
}

#[test]
fn a_key_of_any_characters_goes_through_every_command() {
    let keys = [
        " ",
        "a/b",
        "..",
        "a\\b",
        "@",
        "-",
        "--all",
        "\0",
        "a\nb",
        "\u{1b}[31mred",
        "😀",
        "\u{e9}",
        "e\u{301}",
        "Key",
        "key",
        "\u{202e}x",
    ];
    let long = "k".repeat(64 * 1024);
    let tool = Tool::new();
    let all: Vec<&str> = keys.iter().copied().chain([long.as_str()]).collect();
    let lines: Vec<String> = all
        .iter()
        .enumerate()
        .map(|(n, key)| order(&n.to_string(), key, 1, "refund"))
        .collect();
    tool.write("in.jsonl", lines.join("\n"));
    let run = tool.run(&["run", "in.jsonl", "--json"]).ended(0).json();
    assert_eq!(
        (&run["dead"], &run["events"]),
        (&json!(all.len()), &json!(all.len()))
    );
    let listed = tool.run(&["dead", "list", "--json"]).ended(0).json_lines();
    let listed: Vec<&str> = listed
        .iter()
        .map(|letter| letter["key"].as_str().unwrap())
        .collect();
    assert_eq!(listed, all, "the same bytes come back");
    for args in [
        &["dead", "list"][..],
        &["log"],
        &["dead", "show", "9"],
        &["dead", "show", "7"],
    ] {
        let said = tool.run(args).ended(0).out;
        let unsafe_char = |char: char| char.is_control() && char != '\n' || char == '\u{202e}';
        assert!(!said.contains(unsafe_char), "{args:?}: {said:?}");
    }
    for key in &all {
        // What an argument cannot hold, or a shell would not show, is given as the tool shows it.
        let escaped: String = key
            .chars()
            .map(|char| match char {
                '\\' => "\\\\".to_owned(),
                char if char.is_control() => char.escape_unicode().to_string(),
                char => char.to_string(),
            })
            .collect();
        let mut args = vec!["dead", "discard", "--yes", "--json", "--escaped"];
        let key_arg = format!("--key={escaped}");
        args.push(&key_arg);
        let ran = tool.run(&args).ended(0).json();
        assert_eq!(ran["decided"].as_array().unwrap().len(), 1, "{key:?}");
    }
    assert_eq!(tool.status()["dead"], 0);
    assert!(
        tool.run(&["get", "--escaped", "\\x"])
            .ended(2)
            .err
            .contains("no escaped key")
    );
}

#[test]
fn log_shows_a_range_and_filters_it() {
    let tool = filled();
    let ids = |args: &[&str]| -> Vec<String> {
        let ran = tool.run(&[&["log", "--json"], args].concat()).ended(0);
        let id = |r: &Value| r["event"]["id"].as_str().map(str::to_owned);
        ran.json_lines().iter().filter_map(id).collect()
    };
    assert_eq!(ids(&["--from", "3", "--max", "2"]), ["3", "4"]);
    assert_eq!(ids(&["--key", "gone"]), ["7", "8"]);
    assert_eq!(ids(&["--type", "fulfill", "--max", "2"]), ["3", "6"]);
    assert!(ids(&["--max", "0"]).is_empty());
    let end = tool.status()["durable_end"].to_string();
    assert!(ids(&["--from", &end]).is_empty());
    let beyond = (end.parse::<u64>().unwrap() + 1).to_string();
    assert!(
        tool.run(&["log", "--from", &beyond])
            .ended(2)
            .err
            .contains("out of range")
    );
    let rounds = tool.run(&["log", "--from", "9"]).ended(0).out;
    assert!(
        rounds.lines().all(|line| line.contains("redelivery round")),
        "{rounds}"
    );
}

#[test]
fn a_closed_pipe_changes_no_exit_status() {
    let tool = filled();
    let lines: Vec<String> = (0..5000)
        .map(|n| order(&format!("m{n}"), &format!("key {n}"), 1, "refund"))
        .collect();
    tool.write("much.jsonl", lines.join("\n"));
    tool.run(&["ingest", "much.jsonl"]).ended(0);
    tool.write(
        "truth.jsonl",
        r#"{"key":"done","version":1,"status":"INVENTORY_RESERVED"}"#,
    );
    let cases: [(&[&str], i32); 8] = [
        (&["log"], 0),
        (&["log", "--json"], 0),
        (&["dead", "list", "--json"], 0),
        (&["status"], 0),
        (&["get", "nobody"], 1),
        (&["reconcile", "--source", "truth.jsonl"], 1),
        (&["verify", "--deep"], 0),
        (&["--help"], 0),
    ];
    for (args, code) in cases {
        for read in [0, 1] {
            let mut child = tool
                .command(args)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdout = child.stdout.take().unwrap();
            let mut some = vec![0; read];
            std::io::Read::read_exact(&mut stdout, &mut some).unwrap();
            drop(stdout);
            let output = child.wait_with_output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{args:?}: {err}");
            assert!(!err.contains("panic"), "{err}");
        }
    }
    // A result that could not be written is no result.
    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        let output = tool
            .command(&["log"])
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
    }
    // Nor does it matter whether anybody hears the notes.
    let mut child = tool
        .command(&["verify"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn max_attempts_holds_for_all_of_the_run_that_gives_it_and_is_remembered() {
    let tool = Tool::new();
    tool.write("in.jsonl", order("1", "k", 2, "pay"));
    let run = tool
        .run(&["run", "in.jsonl", "--max-attempts", "1", "--json"])
        .ended(0)
        .json();
    assert_eq!(
        json!([run["dead"], run["rounds"], run["max_attempts"]]),
        json!([1, 0, 1])
    );
    let letter = tool.run(&["dead", "list", "--json"]).ended(0).json();
    assert_eq!(letter["attempts"], 1);
    tool.append("in.jsonl", "\n".to_owned() + &order("2", "l", 2, "pay"));
    assert_eq!(
        tool.run(&["run", "in.jsonl", "--json"]).ended(0).json()["dead"],
        2
    );
    let status = tool
        .run(&["status", "--max-attempts", "5", "--json"])
        .ended(0);
    assert_eq!(status.json()["max_attempts"], 1);
    assert!(status.err.contains("only reads"), "{}", status.err);
    for bad in ["0", "-1", "x", "4294967296"] {
        tool.run(&["status", "--max-attempts", bad]).ended(2);
    }
    for bad in ["0", "257"] {
        tool.run(&["status", "--partitions", bad]).ended(2);
    }
}

#[test]
fn the_machine_is_the_one_that_the_store_has_state_of() {
    let tool = Tool::new();
    let line = r#"{"id":"1","key":"k","version":1,"type":"anything"}"#;
    tool.write("in.jsonl", line);
    tool.run(&["run", "in.jsonl", "--machine", "sequence"])
        .ended(0);
    let status = tool.run(&["status", "--json"]).ended(0);
    assert_eq!(
        json!([status.json()["consumer"], status.json()["dead"]]),
        json!(["sequence", 0])
    );
    assert!(status.err.contains("machine: sequence"), "{}", status.err);
    tool.run(&["rebuild", "--machine", "orders"]).ended(0);
    let ran = tool.run(&["status"]).ended(2);
    assert!(ran.err.contains("--machine"), "{}", ran.err);
    let status = tool
        .run(&["status", "--machine", "orders", "--json"])
        .ended(0)
        .json();
    assert_eq!(status["dead"], 1);
}

#[test]
fn reconcile_takes_the_truth_whole_or_not_at_all() {
    let tool = filled();
    for (line, why) in [
        (r#"{"key":"a","version":1}"#, "no member \"status\""),
        (
            r#"{"key":"a","version":1,"status":"UNHEARD"}"#,
            "none of this machine's",
        ),
        (
            r#"{"key":"done","version":2,"status":"PAID"}"#,
            "another answer",
        ),
        ("bad", "expected"),
    ] {
        let truth = format!(
            "{}\n\n{line}\n",
            r#"{"key":"done","version":3,"status":"FULFILLED"}"#
        );
        tool.write("truth.jsonl", truth);
        let ran = tool
            .run(&["reconcile", "--source", "truth.jsonl", "--apply"])
            .ended(2);
        assert!(
            ran.err.contains("truth.jsonl:3: ") && ran.err.contains(why),
            "{}",
            ran.err
        );
    }
    let truth = r#"{"order_id":"gone","version":3,"status":"FULFILLED"}"#;
    let from_stdin = ["reconcile", "--source", "-", "--json"];
    let dry = tool.run_with(&from_stdin, truth.as_bytes()).ended(1).json();
    let fix = json!({ "key": "gone", "from": null, "to": { "version": 3, "state": "FULFILLED" } });
    assert_eq!(dry, json!({ "applied": false, "count": 1, "fixes": [fix] }));
    assert_eq!(tool.status()["fixes"], 0);
    let args = [
        "reconcile",
        "--source",
        "-",
        "--apply",
        "--note",
        "shop says",
    ];
    let applied = tool.run_with(&args, truth.as_bytes()).ended(0);
    assert!(
        applied.out.contains("no row") && applied.out.contains("1 fix applied"),
        "{}",
        applied.out
    );
    let log = tool
        .run(&["log", "--key", "gone", "--json"])
        .ended(0)
        .json_lines();
    let fix = &log.last().unwrap()["decision"];
    assert_eq!(
        (&fix["note"], &fix["action"]["fix"]["to"]["state"]),
        (&json!("shop says"), &json!("FULFILLED"))
    );
    tool.run(&["verify", "--deep"]).ended(0);
}

#[test]
fn help_names_an_example_for_each_command_and_usage_errors_end_with_2() {
    let tool = Tool::new();
    for args in [
        &["run"][..],
        &["ingest"],
        &["status"],
        &["get"],
        &["log"],
        &["dead", "list"],
        &["dead", "show"],
        &["dead", "redrive"],
        &["dead", "discard"],
        &["dead", "skip"],
        &["replay"],
        &["rebuild"],
        &["reconcile"],
        &["verify"],
    ] {
        let help = tool.run(&[args, &["--help"]].concat()).ended(0).out;
        assert!(help.contains("Example: "), "{args:?}");
    }
    tool.run(&[]).ended(2);
    tool.run(&["frobnicate"]).ended(2);
    assert!(
        tool.run(&["--version"])
            .ended(0)
            .out
            .starts_with("foldlog ")
    );
}

#[test]
fn replay_and_rebuild_say_that_nothing_differs() {
    let tool = filled();
    for from in ["0", "3", "9"] {
        let replay = tool
            .run(&["replay", "--from", from, "--json"])
            .ended(0)
            .json();
        assert_eq!(replay["lost"], 0);
    }
    let all = tool.run(&["replay", "--json"]).ended(0).json();
    assert_eq!(
        json!([
            all["events"],
            all["duplicate"],
            all["waiting"],
            all["letters"]
        ]),
        json!([9, 5, 2, 2])
    );
    tool.run(&["replay", "--from", "1000"]).ended(2);
    assert!(
        tool.run(&["rebuild", "--preview"])
            .ended(0)
            .out
            .contains("no difference")
    );
    let rebuilt = tool.run(&["rebuild", "--json"]).ended(0).json();
    assert_eq!(rebuilt["digest_before"], rebuilt["digest_after"]);
    assert_eq!(rebuilt["digest_after"], tool.status()["digest"]);
}

/// The service has the lock; what only reads goes on beside it.
#[test]
fn beside_a_writer_what_reads_works_and_what_decides_is_refused() {
    let tool = filled();
    let args = ["ingest", "-", "--batch", "1"];
    let mut command = tool.command(&args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut writer = command.spawn().unwrap();
    let mut stdin = writer.stdin.take().unwrap();
    writeln!(stdin, "{}", order("9", "new", 1, "reserve")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !tool.ids().contains(&"9".to_owned()) {
        assert!(Instant::now() < deadline, "the line was never stored");
    }
    let refused = tool.run(&["dead", "discard", "5"]);
    assert!(
        refused.err.contains("locked by another writer"),
        "{}",
        refused.err
    );
    assert_eq!(refused.code, 2);
    let pid = writer.id().to_string();
    assert!(refused.err.contains(&pid), "it says who: {}", refused.err);
    tool.write(
        "truth.jsonl",
        r#"{"key":"done","version":3,"status":"FULFILLED"}"#,
    );
    for args in READ_ONLY {
        tool.run(args).ended(0);
    }
    drop(stdin);
    assert_eq!(writer.wait().unwrap().code(), Some(0));
}

/// The table in the documentation of the module `cli` names every member that is written.
#[test]
fn every_member_of_the_json_is_documented() {
    let tool = filled();
    tool.write(
        "truth.jsonl",
        r#"{"key":"done","version":3,"status":"FULFILLED"}"#,
    );
    tool.write("bad.jsonl", "bad");
    let documentation = include_str!("../../src/cli.rs");
    let rows: Vec<&str> = documentation
        .lines()
        .filter(|line| line.starts_with("//! | `"))
        .collect();
    let row = |command: &str| -> String {
        let of = |line: &&&str| line.starts_with(&format!("//! | `{command}`"));
        rows.iter()
            .find(of)
            .unwrap_or_else(|| panic!("no row for {command}"))
            .to_string()
    };
    let list = row("dead list");
    let cases: [(&[&str], String); 14] = [
        (&["status"], row("status")),
        (
            &["run", "bad.jsonl", "--keep-going"],
            row("run") + &row("status"),
        ),
        (&["ingest", "bad.jsonl", "--keep-going"], row("ingest")),
        (&["get", "poisoned"], row("get")),
        (&["log", "--max", "1"], row("log")),
        (&["log", "--from", "9", "--max", "1"], row("log")),
        (&["dead", "list", "--limit", "1"], list.clone()),
        (&["dead", "show", "5"], row("dead show") + &list),
        (&["dead", "redrive", "5"], row("dead redrive")),
        (&["replay"], row("replay")),
        (&["rebuild", "--preview"], row("rebuild")),
        (&["rebuild"], row("rebuild")),
        (&["reconcile", "--source", "truth.jsonl"], row("reconcile")),
        (&["verify", "--deep"], row("verify")),
    ];
    for (args, row) in cases {
        let written = tool.run(&[args, &["--json"]].concat()).json();
        for name in written.as_object().unwrap().keys() {
            assert!(
                row.contains(&format!("`{name}`")),
                "{args:?}: `{name}` is not in {row}"
            );
        }
    }
    // And the figures that are promised are there.
    let status = tool.status();
    for name in row("status")
        .split('`')
        .skip(3)
        .step_by(2)
        .filter(|name| !name.contains(['{', '(']))
    {
        assert!(
            status.get(name).is_some(),
            "{name} is documented and not written"
        );
    }
}
