//! `rebuild`: the whole log folded into new state beside the live one.

use serde_json::{Value, json};

use super::args::RebuildArgs;
use super::output::{Answer, Exit, Out, table};
use super::record::side_json;
use super::text::{count, counted, cut};
use super::{Access, Render, Tool};
use crate::compare::Difference;
use crate::machine::StateMachine;

/// Runs `rebuild`.
pub(super) fn run<M, R>(tool: &mut Tool<R>, machine: M, args: &RebuildArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let access = if args.preview {
        Access::Read
    } else {
        Access::Write
    };
    let store = tool.store(access)?;
    let consumer = tool.consumer(&store, machine, access)?;
    tool.out.bar_busy("folding anew");
    if args.preview {
        let difference = consumer.rebuild_preview();
        tool.out.bar_done();
        let difference = difference?;
        let exit = Exit::findings(!difference.is_empty());
        if tool.out.json() {
            let json = difference_json::<M, R>(&difference, &tool.render);
            tool.out.value(&json)?;
        } else {
            print::<M, R>(&mut tool.out, &difference, &tool.render)?;
        }
        return Ok(exit);
    }
    let rebuilt = consumer.rebuild();
    tool.out.bar_done();
    let rebuilt = rebuilt?;
    consumer.flush()?;
    drop(consumer);
    store.close()?;
    let exit = Exit::findings(rebuilt.before != rebuilt.after);
    let (before, after) = (rebuilt.before.to_string(), rebuilt.after.to_string());
    if tool.out.json() {
        tool.out.value(&json!({
            "records": rebuilt.records, "applied": rebuilt.counters.applied,
            "rows": rebuilt.counters.rows, "digest_before": before, "digest_after": after,
        }))?;
        return Ok(exit);
    }
    tool.out.line(format_args!(
        "rebuilt from {}: {} applied, {}",
        counted(rebuilt.records, "record", "records"),
        counted(rebuilt.counters.applied, "event", "events"),
        counted(rebuilt.counters.rows, "row", "rows"),
    ))?;
    if rebuilt.before == rebuilt.after {
        tool.out
            .line(format_args!("same digest as before: {after}"))?;
    } else {
        tool.out.line(format_args!("digest before {before}"))?;
        tool.out.line(format_args!("digest now    {after}"))?;
        tool.out
            .line("the state was not the fold of the log; now it is")?;
    }
    Ok(exit)
}

/// What differs, as JSON.
pub(super) fn difference_json<M, R>(difference: &Difference, render: &R) -> Value
where
    M: StateMachine,
    R: Render<M::State>,
{
    let side = |side: &Option<(i64, Option<Vec<u8>>)>| {
        side.as_ref().map(|(version, state)| {
            side_json::<M::State, R>(*version, state.as_deref(), true, render)
        })
    };
    let rows: Vec<Value> = difference
        .rows
        .iter()
        .map(
            |row| json!({ "key": row.key, "before": side(&row.before), "after": side(&row.after) }),
        )
        .collect();
    json!({
        "rows_added": difference.rows_added, "rows_removed": difference.rows_removed,
        "rows_changed": difference.rows_changed, "waiting_changed": difference.waiting_changed,
        "letters_cured": difference.letters_cured, "letters_new": difference.letters_new,
        "letters_changed": difference.letters_changed, "rows": rows, "letters": difference.letters,
    })
}

/// What differs, for a person.
pub(super) fn print<M, R>(out: &mut Out, difference: &Difference, render: &R) -> Answer<()>
where
    M: StateMachine,
    R: Render<M::State>,
{
    if difference.is_empty() {
        return out.line("no difference: the state is the fold of the log");
    }
    let all = [
        ("rows added", difference.rows_added),
        ("rows removed", difference.rows_removed),
        ("rows changed", difference.rows_changed),
        (
            "keys whose waiting events differ",
            difference.waiting_changed,
        ),
        ("dead letters cured", difference.letters_cured),
        ("dead letters new", difference.letters_new),
        ("dead letters changed", difference.letters_changed),
    ];
    let counts = all
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .map(|(name, n)| vec![name.to_owned(), count(n)])
        .collect();
    out.line(table(&["what a rebuild changes", "count"], &[1], counts))?;
    let side = |side: &Option<(i64, Option<Vec<u8>>)>| match side {
        None => "no row".to_owned(),
        Some((version, state)) => {
            let json = side_json::<M::State, R>(*version, state.as_deref(), true, render);
            let state = json
                .get("state")
                .map_or_else(|| "(not readable)".to_owned(), Value::to_string);
            format!("{version} {}", cut(&state, 24))
        }
    };
    let rows: Vec<Vec<String>> = difference
        .rows
        .iter()
        .map(|row| vec![cut(&row.key, 24), side(&row.before), side(&row.after)])
        .collect();
    if !rows.is_empty() {
        out.line("")?;
        out.line(table(&["key", "now", "rebuilt"], &[], rows))?;
    }
    if !difference.letters.is_empty() {
        let letters: Vec<String> = difference.letters.iter().map(ToString::to_string).collect();
        out.line("")?;
        out.line(format_args!("letters that differ: {}", letters.join(" ")))?;
    }
    Ok(())
}
