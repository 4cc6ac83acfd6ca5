//! The vectors in `tests/vectors`, computed by the example and compared with what they expect.

use std::error::Error;

use serde_json::{Value, json};

#[path = "../examples/vectors/compute.rs"]
mod compute;

type TestResult = Result<(), Box<dyn Error>>;

#[test]
fn handle_and_reconcile_vectors_agree() -> TestResult {
    let text = include_str!("vectors/handle_and_reconcile.jsonl");
    for line in text.lines() {
        let computed: Value = serde_json::from_str(&compute::handle_line(line)?)?;
        let given: Value = serde_json::from_str(line)?;
        let ops = given["ops"].as_array().ok_or("no ops")?;
        let outcomes: Vec<Value> = ops
            .iter()
            .map(|op| match op["op"].as_str() {
                Some("handle") => op["outcome"].clone(),
                // Left out when there are none.
                _ => op.get("fixes").cloned().unwrap_or_else(|| json!([])),
            })
            .collect();
        let expected = json!({
            "name": given["name"],
            "outcomes": outcomes,
            "orders": given["orders"],
            "applied": given["applied"],
            "dlq": given["dlq"],
        });
        assert_eq!(computed, expected);
    }
    assert_eq!(text.lines().count(), 400);
    Ok(())
}

#[test]
fn partition_vectors_agree() -> TestResult {
    let text = include_str!("vectors/partition.jsonl");
    for line in text.lines() {
        let given: Value = serde_json::from_str(line)?;
        let computed: Value = serde_json::from_str(&compute::partition_line(line)?)?;
        assert_eq!(computed, given["partition"], "{line}");
    }
    assert_eq!(text.lines().count(), 300);
    Ok(())
}

#[test]
fn the_expected_members_are_never_read() -> TestResult {
    let text = include_str!("vectors/handle_and_reconcile.jsonl");
    for line in text.lines().take(40) {
        let mut blinded: Value = serde_json::from_str(line)?;
        let scenario = blinded.as_object_mut().ok_or("not an object")?;
        for member in ["orders", "applied", "dlq"] {
            scenario.remove(member);
        }
        for op in scenario["ops"].as_array_mut().ok_or("no ops")? {
            let op = op.as_object_mut().ok_or("not an object")?;
            op.remove("outcome");
            op.remove("fixes");
        }
        let blinded = compute::handle_line(&blinded.to_string())?;
        assert_eq!(blinded, compute::handle_line(line)?);
    }
    Ok(())
}
