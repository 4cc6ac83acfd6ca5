//! Lines of input: which are taken, which are refused, and where reading goes on.

use serde_json::json;

use crate::tool::{Tool, order};

fn good(id: &str) -> String {
    order(id, &format!("order-{id}"), 1, "reserve")
}

/// Every kind of line that is refused, and a part of what is said about it.
fn bad_lines() -> Vec<(Vec<u8>, &'static str)> {
    let mut all = lines_of_wrong_form();
    all.extend(lines_of_wrong_members());
    let long_key = "k".repeat(64 * 1024 + 1);
    all.push((
        order("x", &long_key, 1, "t").into_bytes(),
        "key is too large",
    ));
    let payload = "p".repeat(16 * 1024 * 1024);
    let line = json!({ "id": "x", "key": "k", "version": 1, "type": "t", "p": payload });
    all.push((line.to_string().into_bytes(), "payload is too large"));
    all.push((vec![b'z'; 25 * 1024 * 1024], "longer than 25165824 bytes"));
    all
}

fn text(line: &str, why: &'static str) -> (Vec<u8>, &'static str) {
    (line.as_bytes().to_vec(), why)
}

fn lines_of_wrong_form() -> Vec<(Vec<u8>, &'static str)> {
    vec![
        text(
            r#"{"id":"x","key":"k","version":1,"type":"t""#,
            "EOF while parsing",
        ),
        text(
            r#"{"id":"x","key":"k","version":1,"type":"t"} {}"#,
            "trailing characters",
        ),
        text("not json", "not JSON: expected"),
        text(r#"["id","key"]"#, "expected a JSON object"),
        text("17", "expected a JSON object"),
        text("null", "expected a JSON object"),
        text(
            r#"{"id":"x","id":"y","key":"k","version":1,"type":"t"}"#,
            "comes twice",
        ),
        text(
            r#"{"id":"x","key":"k","version":1,"type":"t","a":1,"a":1}"#,
            "comes twice",
        ),
    ]
}

fn lines_of_wrong_members() -> Vec<(Vec<u8>, &'static str)> {
    vec![
        text(r#"{"key":"k","version":1,"type":"t"}"#, "no member \"id\""),
        text(r#"{"id":"x","version":1,"type":"t"}"#, "no member \"key\""),
        text(
            r#"{"id":"x","key":"k","type":"t"}"#,
            "no member \"version\"",
        ),
        text(r#"{"id":"x","key":"k","version":1}"#, "no member \"type\""),
        text(
            r#"{"id":7,"key":"k","version":1,"type":"t"}"#,
            "\"id\" must be a string",
        ),
        text(
            r#"{"id":"x","key":["k"],"version":1,"type":"t"}"#,
            "\"key\" must be a string",
        ),
        text(
            r#"{"id":"x","key":"k","version":"1","type":"t"}"#,
            "whole number",
        ),
        text(
            r#"{"id":"x","key":"k","version":1.0,"type":"t"}"#,
            "whole number",
        ),
        text(
            r#"{"id":"x","key":"k","version":9223372036854775808,"type":"t"}"#,
            "whole number",
        ),
        text(
            r#"{"id":"x","key":"k","version":null,"type":"t"}"#,
            "whole number",
        ),
        text(
            r#"{"id":"x","key":"k","version":1,"type":null}"#,
            "\"type\" must be a string",
        ),
        text(
            r#"{"id":"","key":"k","version":1,"type":"t"}"#,
            "\"id\" is empty",
        ),
        text(
            r#"{"id":"x","key":"","version":1,"type":"t"}"#,
            "\"key\" is empty",
        ),
        text(
            r#"{"id":"x","order_id":"","version":1,"type":"t"}"#,
            "\"order_id\" is empty",
        ),
        text(
            "{\"id\":\"x\0\",\"key\":\"k\",\"version\":1,\"type\":\"t\"}",
            "NUL byte at column 9",
        ),
        text(
            "\u{feff}{\"id\":\"x\",\"key\":\"k\",\"version\":1,\"type\":\"t\"}",
            "byte order mark",
        ),
        text(
            r#"{"id":"\ud800","key":"k","version":1,"type":"t"}"#,
            "not a readable string",
        ),
        (
            b"{\"id\":\"\xff\",\"key\":\"k\",\"version\":1,\"type\":\"t\"}".to_vec(),
            "not UTF-8",
        ),
    ]
}

#[test]
fn each_bad_line_stops_the_ingest_with_its_number_and_what_was_stored() {
    for (bad, why) in bad_lines() {
        let tool = Tool::new();
        let file = [
            good("1").as_bytes(),
            b"\n",
            good("2").as_bytes(),
            b"\n",
            &bad,
            b"\n",
            good("4").as_bytes(),
            b"\n",
        ]
        .concat();
        tool.write("in.jsonl", file);
        let ran = tool.run(&["ingest", "in.jsonl"]).ended(2);
        assert!(
            ran.err.contains("in.jsonl:3: ") && ran.err.contains(why),
            "{why}: {}",
            ran.err
        );
        assert!(
            ran.err
                .contains("2 events stored before that (offsets 0..2)"),
            "{}",
            ran.err
        );
        assert!(
            ran.err.contains("run the same command again"),
            "{}",
            ran.err
        );
        assert_eq!(ran.out, "");
        assert_eq!(tool.ids(), ["1", "2"], "{why}");

        // Mended in place, the same command goes on with that very line.
        let mended = [good("1"), good("2"), good("3"), good("4")].join("\n");
        tool.write("in.jsonl", mended);
        tool.run(&["ingest", "in.jsonl"]).ended(0);
        assert_eq!(tool.ids(), ["1", "2", "3", "4"], "{why}");
    }
}

#[test]
fn keep_going_stores_the_rest_and_keeps_every_bad_line_as_it_was() {
    let tool = Tool::new();
    let (mut file, mut refused) = (Vec::new(), Vec::new());
    let bad = bad_lines();
    for (n, (line, _)) in bad.iter().enumerate() {
        file.extend([good(&n.to_string()).as_bytes(), b"\n", line, b"\n"].concat());
        refused.extend([line.as_slice(), b"\n"].concat());
    }
    tool.write("in.jsonl", file);
    let ran = tool
        .run(&["ingest", "in.jsonl", "--keep-going", "--json"])
        .ended(1);
    let report = &ran.json()["inputs"][0];
    assert_eq!(
        (&report["events"], &report["refused"]),
        (&json!(bad.len()), &json!(bad.len()))
    );
    for (n, (_, why)) in bad.iter().enumerate() {
        let line = 2 * n + 2;
        assert_eq!(report["refused_lines"][n]["line"], line);
        let said = ran
            .err
            .lines()
            .find(|said| said.starts_with(&format!("in.jsonl:{line}: ")));
        assert!(
            said.is_some_and(|said| said.contains(why)),
            "line {line}, {why}: {}",
            ran.err
        );
    }
    assert_eq!(report["refused_file"], "in.jsonl.refused.jsonl");
    assert!(std::fs::read(tool.path("in.jsonl.refused.jsonl")).unwrap() == refused);
    let ids: Vec<String> = (0..bad.len()).map(|n| n.to_string()).collect();
    assert_eq!(tool.ids(), ids);

    // Nothing is left to read, so nothing is refused again.
    tool.run(&["ingest", "in.jsonl", "--keep-going"]).ended(0);
    // The file of refused lines is mended and stored alone.
    tool.write("in.jsonl.refused.jsonl", good("mended"));
    tool.run(&["ingest", "in.jsonl.refused.jsonl"]).ended(0);
    assert_eq!(tool.ids().len(), bad.len() + 1);
}

#[test]
fn a_file_of_refused_lines_is_never_overwritten() {
    let tool = Tool::new();
    tool.write("in.jsonl", "bad\n");
    tool.write("in.jsonl.refused.jsonl", "precious");
    let ran = tool.run(&["ingest", "in.jsonl", "--keep-going"]).ended(1);
    assert!(ran.out.contains("in.jsonl.refused-2.jsonl"), "{}", ran.out);
    assert_eq!(
        std::fs::read(tool.path("in.jsonl.refused.jsonl")).unwrap(),
        b"precious"
    );
    tool.write(
        "other.jsonl",
        [good("1"), "bad".to_owned()].join("\n") + "\n",
    );
    let args = [
        "ingest",
        "other.jsonl",
        "--keep-going",
        "--refused",
        "in.jsonl.refused.jsonl",
    ];
    let ran = tool.run(&args).ended(2);
    assert!(
        ran.err.contains("cannot create in.jsonl.refused.jsonl"),
        "{}",
        ran.err
    );
    // The line that could not be kept was not passed over.
    tool.run(&["ingest", "other.jsonl", "--keep-going", "--refused", "kept"])
        .ended(1);
    assert_eq!(std::fs::read(tool.path("kept")).unwrap(), b"bad\n");
    assert_eq!(tool.ids(), ["1"]);
}

#[test]
fn line_ends_empty_lines_and_a_byte_order_mark_are_no_obstacle() {
    let tool = Tool::new();
    let lines = format!(
        "\u{feff}{}\r\n\r\n\n  \t\n{}\r\n {} ",
        good("1"),
        good("2"),
        good("3")
    );
    tool.write("in.jsonl", lines);
    let ran = tool.run(&["ingest", "in.jsonl"]).ended(0);
    assert!(
        ran.err.contains("byte order mark"),
        "it is said: {}",
        ran.err
    );
    assert_eq!(tool.ids(), ["1", "2", "3"]);
    tool.write("empty.jsonl", "");
    assert!(
        tool.run(&["ingest", "empty.jsonl"])
            .ended(0)
            .out
            .contains("nothing new")
    );
    tool.write("bom.jsonl", "\u{feff}");
    tool.run(&["ingest", "bom.jsonl"]).ended(0);
    assert_eq!(tool.ids().len(), 3);
}

#[test]
fn a_payload_keeps_what_it_was_sent_as() {
    let tool = Tool::new();
    let members = r#""n" : 12345678901234567890123.50, "u":"\u0041\ud800", "deep":[[{}]]"#;
    let line = format!(r#"{{"id":"1","key":"k","version":1,"type":"t", {members}}}"#);
    tool.write("in.jsonl", line);
    tool.run(&["ingest", "in.jsonl"]).ended(0);
    let log = tool.run(&["log", "--json"]).ended(0).out;
    let payload = r#""payload":{"n":12345678901234567890123.50,"u":"\u0041\ud800","deep":[[{}]]}"#;
    assert!(log.contains(payload), "{log}");
}

#[test]
fn a_repeated_ingest_goes_on_where_the_file_grew() {
    let tool = Tool::new();
    tool.write("in.jsonl", good("1") + "\n" + &good("2"));
    tool.run(&["run", "in.jsonl"]).ended(0);
    let again = tool.run(&["run", "in.jsonl"]).ended(0);
    assert!(again.out.contains("nothing new"), "{}", again.out);
    // By another path it is still the same file.
    std::fs::create_dir(tool.path("sub")).unwrap();
    let again = tool.run(&["run", "sub/../in.jsonl"]).ended(0);
    assert!(again.out.contains("nothing new"), "{}", again.out);
    // The last line had no newline; now it has one, and more behind it.
    tool.append("in.jsonl", format!("\n{}\nbad\n", good("3")));
    let ran = tool.run(&["run", "in.jsonl"]).ended(2);
    assert!(
        ran.err.contains("in.jsonl:4: "),
        "lines are counted from the start: {}",
        ran.err
    );
    assert_eq!(tool.ids(), ["1", "2", "3"]);
}

#[test]
fn a_bad_last_line_without_newline_is_read_again_when_it_is_whole() {
    let tool = Tool::new();
    let (whole, half) = (good("2"), &good("2")[..20]);
    tool.write("in.jsonl", format!("{}\n{half}", good("1")));
    for refused in ["in.jsonl.refused.jsonl", "in.jsonl.refused-2.jsonl"] {
        let ran = tool.run(&["ingest", "in.jsonl", "--keep-going"]).ended(1);
        assert!(
            ran.err.contains("in.jsonl:2: ") && ran.out.contains(refused),
            "{}",
            ran.err
        );
    }
    tool.append("in.jsonl", format!("{}\n{}\n", &whole[20..], good("3")));
    tool.run(&["ingest", "in.jsonl", "--keep-going"]).ended(0);
    assert_eq!(tool.ids(), ["1", "2", "3"]);
}

#[test]
fn another_file_under_the_same_name_is_refused_and_nothing_stored() {
    let lines: Vec<String> = (1..=5).map(|n| good(&n.to_string())).collect();
    let file = lines.join("\n") + "\n";
    let others = [
        ("shorter", file[..file.len() - 10].to_owned(), "shorter"),
        ("empty", String::new(), "shorter"),
        (
            "other last event",
            file.replace("\"5\"", "\"6\"") + &good("7"),
            "last event",
        ),
        (
            "other payload",
            file.replace("\"id\":\"5\"", "\"x\":1,\"id\":\"5\""),
            "no line starts",
        ),
        (
            "a line more in front",
            good("0") + "\n" + &file,
            "last event",
        ),
        (
            "lines of another length",
            good("1000") + "\n" + &file,
            "no line starts",
        ),
    ];
    for (what, other, why) in others {
        let tool = Tool::new();
        tool.write("in.jsonl", &file);
        tool.write("good.jsonl", good("good"));
        tool.run(&["ingest", "in.jsonl"]).ended(0);
        tool.write("in.jsonl", &other);
        // The good file is not stored either: all files are looked at first.
        let ran = tool.run(&["ingest", "good.jsonl", "in.jsonl"]).ended(2);
        assert!(
            ran.err.contains("not the same file") && ran.err.contains(why),
            "{what}: {}",
            ran.err
        );
        assert_eq!(tool.ids(), ["1", "2", "3", "4", "5"], "{what}");
        // Under a name of its own it is another file.
        tool.run(&["ingest", "in.jsonl", "--upstream", "other", "--keep-going"]);
    }
}

#[test]
fn a_last_line_that_was_written_on_is_not_fused_with_what_was_read() {
    let tool = Tool::new();
    tool.write("in.jsonl", good("1") + "\n" + &good("2"));
    tool.run(&["ingest", "in.jsonl"]).ended(0);
    tool.append("in.jsonl", good("3") + "\n");
    let ran = tool.run(&["ingest", "in.jsonl"]).ended(2);
    assert!(ran.err.contains("no line starts"), "{}", ran.err);
    assert_eq!(tool.ids(), ["1", "2"]);
}

#[test]
fn a_repeat_is_recognised_over_refused_lines_and_after_much_else_was_stored() {
    let tool = Tool::new();
    tool.write("in.jsonl", format!("{}\nbad\n\nworse\n", good("1")));
    tool.run(&["ingest", "in.jsonl", "--keep-going"]).ended(1);
    let much: Vec<String> = (0..9000).map(|n| good(&format!("much-{n}"))).collect();
    tool.write("much.jsonl", much.join("\n"));
    tool.run(&["ingest", "much.jsonl"]).ended(0);
    tool.append("in.jsonl", good("2"));
    tool.run(&["ingest", "in.jsonl", "--keep-going"]).ended(0);
    assert_eq!(tool.ids().len(), 9002);
    // Nothing but refused lines: there is no event to compare, and nothing to lose.
    tool.write("only-bad.jsonl", "bad\n");
    tool.run(&["ingest", "only-bad.jsonl", "--keep-going"])
        .ended(1);
    tool.append("only-bad.jsonl", good("3"));
    tool.run(&["ingest", "only-bad.jsonl"]).ended(0);
    assert_eq!(tool.ids().len(), 9003);
}

#[test]
fn standard_input_is_stored_again_unless_it_has_a_name() {
    let tool = Tool::new();
    let two = good("1") + "\n" + &good("2");
    let ran = tool.run_with(&["ingest", "-"], two.as_bytes()).ended(0);
    assert!(ran.err.contains("has no name"), "{}", ran.err);
    tool.run_with(&["ingest", "-"], two.as_bytes()).ended(0);
    assert_eq!(tool.ids(), ["1", "2", "1", "2"]);

    let named = ["ingest", "-", "--upstream", "feed"];
    let tool = Tool::new();
    let ran = tool.run_with(&named, two.as_bytes()).ended(0);
    assert_eq!(ran.err, "");
    assert!(
        tool.run_with(&named, two.as_bytes())
            .ended(0)
            .out
            .contains("nothing new")
    );
    let three = two.clone() + "\n" + &good("3") + "\r\n";
    tool.run_with(&named, three.as_bytes()).ended(0);
    let ran = tool
        .run_with(&named, (three.clone() + "bad").as_bytes())
        .ended(2);
    assert!(ran.err.contains("standard input:4: "), "{}", ran.err);
    assert_eq!(tool.ids(), ["1", "2", "3"]);
    for other in [
        "",
        &good("1"),
        &(good("9") + "\n" + &good("2") + "\n" + &good("4") + "\r\n"),
    ] {
        let ran = tool.run_with(&named, other.as_bytes()).ended(2);
        assert!(ran.err.contains("not the same file"), "{}", ran.err);
    }
    let swallowed = two.clone() + &" ".repeat(100) + "\n";
    assert!(
        tool.run_with(&named, swallowed.as_bytes())
            .ended(2)
            .err
            .contains("not the same")
    );
    assert_eq!(tool.ids(), ["1", "2", "3"]);
}

#[test]
fn inputs_that_cannot_be_read_are_noticed_before_anything_is_stored() {
    let tool = Tool::new();
    tool.write("in.jsonl", good("1"));
    std::fs::create_dir(tool.path("dir")).unwrap();
    for (args, why) in [
        (vec!["ingest", "in.jsonl", "missing.jsonl"], "missing.jsonl"),
        (vec!["ingest", "in.jsonl", "dir"], "is a directory"),
        (vec!["ingest", "in.jsonl", "./in.jsonl"], "named twice"),
        (vec!["ingest", "-", "-"], "named twice"),
        (
            vec!["ingest", "in.jsonl", "-", "--upstream", "x"],
            "several",
        ),
        (vec!["ingest"], "Usage"),
    ] {
        let ran = tool.run(&args).ended(2);
        assert!(ran.err.contains(why), "{why}: {}", ran.err);
        assert!(!tool.store().exists(), "{args:?} made a store");
    }
}

/// A file of `n` zero bytes has one endless line without newline.
#[test]
fn an_endless_line_takes_bounded_memory() {
    let tool = Tool::new();
    let file = std::fs::File::create(tool.path("zeros")).unwrap();
    file.set_len(1 << 30).unwrap();
    let mut command = std::process::Command::new("sh");
    // 400 MB of address space: room for the tool, none for the file.
    let script = format!(
        "ulimit -v 400000; exec {} ingest zeros",
        env!("CARGO_BIN_EXE_foldlog")
    );
    command.args(["-c", &script]).current_dir(tool.dir());
    let ran = crate::tool::Ran::from(command.output().unwrap()).ended(2);
    assert!(
        ran.err.contains("zeros:1: the line is longer than"),
        "{}",
        ran.err
    );
}
