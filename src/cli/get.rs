//! `get`: the row of one key, and what blocks it.

use serde_json::json;

use super::args::{KeyArgs, KeyFilter};
use super::output::{Answer, Exit, Failure};
use super::record::row_json;
use super::text::{counted, escape, unescape};
use super::{Access, Render, Tool};
use crate::machine::StateMachine;

/// The key an argument means.
fn key(text: &str, escaped: bool) -> Answer<String> {
    if !escaped {
        return Ok(text.to_owned());
    }
    unescape(text).ok_or_else(|| Failure::new(format!("{} is no escaped key", escape(text))))
}

/// The key a filter means, if it means one.
pub(super) fn key_of(filter: &KeyFilter) -> Answer<Option<String>> {
    let text = filter.key.as_ref();
    text.map(|text| key(text, filter.escaped)).transpose()
}

/// Runs `get`.
pub(super) fn run<M, R>(tool: &mut Tool<R>, machine: M, args: &KeyArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let key = key(&args.key, args.escaped)?;
    if key.is_empty() {
        return Err(Failure::new("a key is never empty"));
    }
    let store = tool.store(Access::Read)?;
    let consumer = tool.consumer(&store, machine, Access::Read)?;
    let (row, blocked) = (consumer.get(&key)?, consumer.blocked(&key)?);
    let exit = Exit::findings(row.is_none());
    if tool.out.json() {
        let row = row.as_ref().map(|row| row_json(row, &tool.render));
        let blocked = blocked.map(|b| {
            json!({
                "next": b.next, "letter": b.letter, "waiting": b.waiting, "held": b.held,
                "since": b.since,
            })
        });
        tool.out
            .value(&json!({ "key": key, "row": row, "blocked": blocked }))?;
        return Ok(exit);
    }
    match &row {
        None => tool.out.line(format_args!("{}: no row", escape(&key)))?,
        Some(row) => {
            let state = row.state.as_ref().map_or_else(
                || "no state (its first version was skipped)".to_owned(),
                |state| escape(&tool.render.text(state)),
            );
            let (key, version, at) = (escape(&key), row.version, row.moved_at);
            tool.out.line(format_args!(
                "{key}: version {version}, {state} (moved by record {at})"
            ))?;
        }
    }
    if let Some(blocked) = blocked {
        let events = counted(blocked.waiting, "event waits", "events wait");
        let why = match blocked.letter {
            Some(letter) => format!("behind dead letter {letter}"),
            None => format!("for version {}, which did not come", blocked.next),
        };
        tool.out.line(format_args!(
            "  {events} {why}, since record {}",
            blocked.since
        ))?;
    }
    Ok(exit)
}
