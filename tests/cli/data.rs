//! The published figures of the real data, by `status --json`, and the sample of the README.

use serde_json::{Value, json};

use crate::tool::{Tool, real_data};

const SHAPES: [(&str, &str); 4] = [("1", "1000"), ("2", "97"), ("4", "100000"), ("8", "333")];

/// Runs a file of orders, then reconciles twice; the figures after each step.
fn orders(file: &str, truth: &str, (partitions, batch): (&str, &str)) -> (Value, Value, u64) {
    let tool = Tool::new();
    let shape = ["--partitions", partitions, "--batch", batch, "--json"];
    let run = |args: &[&str]| tool.run(&[args, shape.as_slice()].concat());
    let ran = run(&["run", file]).ended(0).json();
    let settled = tool.figures();
    for (name, figure) in settled.as_object().unwrap() {
        assert_eq!(&ran[name], figure, "`run` and `status` agree on {name}");
    }
    let preview = run(&["reconcile", "--source", truth]).ended(1).json();
    assert_eq!(tool.figures(), settled, "a dry run changes nothing");
    let fixes = run(&["reconcile", "--source", truth, "--apply"])
        .ended(0)
        .json();
    assert_eq!(preview["count"], fixes["count"]);
    let again = run(&["reconcile", "--source", truth, "--apply"])
        .ended(0)
        .json();
    assert_eq!(again["count"], 0, "a second run finds nothing");
    run(&["verify", "--deep"]).ended(0);
    (settled, tool.figures(), fixes["count"].as_u64().unwrap())
}

fn pick(figures: &Value, names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| ((*name).to_owned(), figures[*name].clone()))
        .collect()
}

const PICKED: [&str; 9] = [
    "events",
    "applied",
    "duplicate",
    "merged",
    "retry",
    "waiting",
    "held",
    "dead",
    "rows",
];

#[test]
fn status_gives_the_published_figures_of_the_orders() {
    let (Some(file), Some(truth)) = (real_data("orders.jsonl"), real_data("orders_truth.jsonl"))
    else {
        return;
    };
    let mut digests = Vec::new();
    for shape in SHAPES {
        let (settled, after, fixes) = orders(&file, &truth, shape);
        let expected = json!({
            "events": 23_711, "applied": 22_477, "duplicate": 0, "merged": 0, "retry": 77,
            "waiting": 0, "held": 0, "dead": 1_234, "rows": 8_135,
        });
        assert_eq!(pick(&settled, &PICKED), expected);
        assert_eq!(
            settled["rows_by_state"],
            json!({ "FULFILLED": 6_353, "PAID": 1_636, "INVENTORY_RESERVED": 146 })
        );
        assert_eq!(
            settled["dead_by_class"],
            json!({ "poison": 1_234, "conflict": 0, "crashed": 0 })
        );
        assert_eq!(
            (fixes, &after["fixes"], &after["held"]),
            (1, &json!(1), &json!(0))
        );
        assert_eq!(
            after["rows_by_state"],
            json!({ "FULFILLED": 6_354, "PAID": 1_635, "INVENTORY_RESERVED": 146 })
        );
        digests.push((settled["digest"].clone(), after["digest"].clone()));
    }
    digests.dedup();
    assert_eq!(
        digests.len(),
        1,
        "no digest depends on partitions or batches: {digests:?}"
    );
}

#[test]
fn status_gives_the_published_figures_of_the_lossy_orders() {
    let (Some(file), Some(truth)) = (
        real_data("orders_lossy.jsonl"),
        real_data("orders_truth.jsonl"),
    ) else {
        return;
    };
    let mut digests = Vec::new();
    for shape in SHAPES {
        let (settled, after, fixes) = orders(&file, &truth, shape);
        let expected = json!({
            "events": 24_470, "applied": 21_683, "duplicate": 778, "merged": 352, "retry": 7_428,
            "waiting": 115, "held": 115, "dead": 1_277 + 265, "rows": 7_994,
        });
        assert_eq!(pick(&settled, &PICKED), expected);
        assert_eq!(
            settled["rows_by_state"],
            json!({ "FULFILLED": 6_003, "PAID": 1_683, "INVENTORY_RESERVED": 308 })
        );
        assert_eq!(
            settled["dead_by_class"],
            json!({ "poison": 1_277, "conflict": 265, "crashed": 0 })
        );
        assert_eq!(
            (fixes, &after["fixes"], &after["held"]),
            (365, &json!(365), &json!(2))
        );
        assert_eq!(
            after["rows_by_state"],
            json!({ "FULFILLED": 6_350, "PAID": 1_599, "INVENTORY_RESERVED": 167 })
        );
        digests.push((settled["digest"].clone(), after["digest"].clone()));
    }
    digests.dedup();
    assert_eq!(
        digests.len(),
        1,
        "no digest depends on partitions or batches: {digests:?}"
    );
}

#[test]
fn permits_are_blocked_by_letters_until_they_are_redriven() {
    let (Some(file), Some(late)) = (real_data("permits.jsonl"), real_data("permits_late.jsonl"))
    else {
        return;
    };
    let tool = Tool::new();
    let run = tool
        .run(&["run", &file, "--machine", "sequence", "--json"])
        .ended(0)
        .json();
    let expected = json!({
        "events": 8_557, "applied": 8_311, "waiting": 226, "dead": 20, "rows": 1_414,
    });
    let picked = ["events", "applied", "waiting", "dead", "rows"];
    assert_eq!(pick(&run, &picked), expected);
    assert_eq!(run["holds_most"][0]["held"], 16);
    let most: Vec<&str> = (0..3)
        .map(|n| run["holds_most"][n]["key"].as_str().unwrap())
        .collect();
    assert!(
        most.iter()
            .all(|key| ["case-4808", "case-4978", "case-6335"].contains(key))
    );

    // From here on the tool knows the machine by itself: the store has state of no other.
    let run = tool.run(&["run", &late, "--json"]).ended(0).json();
    let expected = json!({
        "events": 8_577, "applied": 8_331, "waiting": 226, "dead": 20, "rows": 1_434,
    });
    assert_eq!(pick(&run, &picked), expected);
    let letter = run["holds_most"][0]["letter"].to_string();
    let story = tool
        .run(&["dead", "show", &letter, "--json"])
        .ended(0)
        .json();
    assert_eq!(
        (story["holds"].clone(), story["class"].clone()),
        (json!(16), json!("conflict"))
    );
    let one = tool
        .run(&["dead", "redrive", &letter, "--json", "--note", "late"])
        .ended(0)
        .json();
    assert_eq!(one["decided"][0]["outcome"], "applied");
    assert_eq!(one["applied"], 8_331 + 17, "it and all it held");
    let all = tool
        .run(&["dead", "redrive", "--all", "--yes", "--json"])
        .ended(0)
        .json();
    assert_eq!(
        pick(&all, &["applied", "dead", "waiting"]),
        json!({ "applied": 8_577, "dead": 0, "waiting": 0 })
    );
    tool.run(&["verify", "--deep"]).ended(0);
}

#[test]
fn the_sample_of_the_readme_tells_a_story_and_says_what_to_type_next() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/orders.jsonl");
    let truth = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/orders_truth.jsonl");
    let tool = Tool::new();
    let ran = tool.run(&["run", sample]).ended(0);
    for line in ran.out.lines().skip(1) {
        assert!(line.chars().count() <= 80, "80 columns: {line}");
    }
    for part in [
        "applied",
        "duplicate",
        "merged",
        "FULFILLED",
        "dead letters",
        "held behind",
        "next",
        "unknown kind",
    ] {
        assert!(ran.out.contains(part), "{part} in {}", ran.out);
    }
    let next = ran
        .out
        .lines()
        .find_map(|line| line.trim().strip_prefix("foldlog dead show "));
    let letter = next.unwrap().split(' ').next().unwrap();
    let show = tool.run(&["dead", "show", letter]).ended(0);
    assert!(show.out.contains("holds    2 events"), "{}", show.out);
    let differences = tool.run(&["reconcile", "--source", truth]).ended(1);
    assert!(
        differences.out.contains("nothing was changed"),
        "{}",
        differences.out
    );
    tool.run(&[
        "reconcile",
        "--source",
        truth,
        "--apply",
        "--note",
        "by the shop",
    ])
    .ended(0);
    assert!(
        tool.run(&["reconcile", "--source", truth])
            .ended(0)
            .out
            .contains("no difference")
    );
}
