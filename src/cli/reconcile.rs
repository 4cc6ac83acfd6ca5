//! `reconcile`: rows against the outside truth in a file.
//!
//! A line of the source is `key` (or `order_id`), `version` and `status` (or `state`); other
//! members mean nothing. The truth is taken whole or not at all: any bad line, and a key with two
//! answers, stops before anything is compared.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::error::Error as StdError;

use serde_json::{Value, json};

use super::args::ReconcileArgs;
use super::input::Input;
use super::lines::{Lines, key, members};
use super::members::{Refusal, integer};
use super::output::{Answer, Exit, Failure, Out, table};
use super::record::side_text;
use super::text::{count, counted, cut};
use super::{Access, Render, Tool};
use crate::machine::StateMachine;
use crate::num::to_u64;
use crate::source::{Fix, Source};

/// Differences shown to a person; all are in the JSON.
const SHOWN: usize = 50;

/// Runs `reconcile`.
pub(super) fn run<M, R>(tool: &mut Tool<R>, machine: M, args: &ReconcileArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let input = Input::open(&args.source, Some("source"))?;
    let said = read::<M::State, R>(&input, &tool.render)?;
    let keys: Vec<String> = said.keys().cloned().collect();
    let access = if args.apply {
        Access::Write
    } else {
        Access::Read
    };
    let store = tool.store(access)?;
    let consumer = tool.consumer(&store, machine, access)?;
    tool.out.bar_busy("comparing");
    let truth = Truth {
        said,
        render: &tool.render,
    };
    let fixes = if args.apply {
        consumer.reconcile(&truth, &keys, args.note.as_deref())
    } else {
        consumer.reconcile_preview(&truth, &keys)
    };
    tool.out.bar_done();
    let fixes = fixes?;
    if args.apply {
        consumer.flush()?;
        drop(consumer);
        store.close()?;
    }
    if tool.out.json() {
        let fixes: Vec<Value> = fixes
            .iter()
            .map(|fix| fix_json(fix, &tool.render))
            .collect();
        tool.out
            .value(&json!({ "applied": args.apply, "count": fixes.len(), "fixes": fixes }))?;
    } else {
        print(
            &mut tool.out,
            &tool.render,
            &fixes,
            (keys.len(), args.apply),
        )?;
    }
    Ok(Exit::findings(!args.apply && !fixes.is_empty()))
}

/// What the file says of each key. States stay as they were written, because a state need not be
/// one that can be copied.
struct Truth<'a, R> {
    said: BTreeMap<String, (i64, Value)>,
    render: &'a R,
}

impl<S, R: Render<S>> Source<S> for Truth<'_, R> {
    fn status(&self, key: &str) -> Result<Option<(i64, S)>, Box<dyn StdError + Send + Sync>> {
        let Some((version, state)) = self.said.get(key) else {
            return Ok(None);
        };
        Ok(Some((*version, self.render.read(state.clone())?)))
    }
}

fn read<S, R: Render<S>>(input: &Input, render: &R) -> Answer<BTreeMap<String, (i64, Value)>> {
    let mut said = BTreeMap::new();
    let mut lines = Lines::new(input.stream(0)?, 0);
    while lines
        .advance()
        .map_err(|error| input.failed("read", &error))?
    {
        let bad = |why: Refusal| Failure::new(format!("{}:{}: {why}", input.name, lines.number()));
        if lines.too_long() {
            return Err(bad("the line is too long".to_owned()));
        }
        let Some((key, version, state)) = line(lines.line(), lines.start(), render).map_err(bad)?
        else {
            continue;
        };
        match said.entry(key) {
            Entry::Vacant(place) => {
                place.insert((version, state));
            }
            Entry::Occupied(place) if *place.get() == (version, state) => {}
            Entry::Occupied(place) => {
                return Err(bad(format!(
                    "another answer for {} before",
                    cut(place.key(), 40)
                )));
            }
        }
    }
    Ok(said)
}

fn line<S, R: Render<S>>(
    line: &[u8],
    start: u64,
    render: &R,
) -> Result<Option<(String, i64, Value)>, Refusal> {
    let Some(mut members) = members(line, start)? else {
        return Ok(None);
    };
    let key = key(&mut members)?;
    let version = integer("version", members.need("version")?)?;
    if version < 0 {
        return Err(format!("\"version\" is {version}, and no row is below 0"));
    }
    let state = match members.take("status") {
        Some(state) => state,
        None => members
            .take("state")
            .ok_or_else(|| "no member \"status\" (or \"state\")".to_owned())?,
    };
    let shown = cut(state.get(), 40);
    let state: Value = serde_json::from_str(state.get())
        .map_err(|error| format!("the state {shown} cannot be read: {error}"))?;
    match render.read(state.clone()) {
        Ok(_) => Ok(Some((key, version, state))),
        Err(why) => Err(format!(
            "the state {shown} is none of this machine's: {why}"
        )),
    }
}

fn fix_json<S, R: Render<S>>(fix: &Fix<S>, render: &R) -> Value {
    let side = |version: i64, state: Option<&S>| {
        let state = state.map(|state| render.json(state));
        json!({ "version": version, "state": state })
    };
    let from = fix
        .from
        .as_ref()
        .map(|(version, state)| side(*version, state.as_ref()));
    json!({ "key": fix.key, "from": from, "to": side(fix.to.0, Some(&fix.to.1)) })
}

fn print<S, R: Render<S>>(
    out: &mut Out,
    render: &R,
    fixes: &[Fix<S>],
    (keys, applied): (usize, bool),
) -> Answer<()> {
    let keys = counted(to_u64(keys), "key", "keys");
    if fixes.is_empty() {
        return out.line(format_args!(
            "no difference: all rows are as the source says ({keys})"
        ));
    }
    let rows = fixes
        .iter()
        .take(SHOWN)
        .map(|fix| {
            let from = fix.from.as_ref().map_or_else(
                || "no row".to_owned(),
                |(version, state)| side_text(*version, state.as_ref(), render),
            );
            vec![
                cut(&fix.key, 24),
                from,
                side_text(fix.to.0, Some(&fix.to.1), render),
            ]
        })
        .collect();
    out.line(table(&["key", "row", "source"], &[], rows))?;
    let more = fixes.len().saturating_sub(SHOWN);
    if more > 0 {
        out.line(format_args!(
            " and {} more (all with --json)",
            count(to_u64(more))
        ))?;
    }
    let n = to_u64(fixes.len());
    if applied {
        out.line(format_args!(
            "{} applied, {keys} compared",
            counted(n, "fix", "fixes")
        ))
    } else {
        let n = counted(n, "row differs", "rows differ");
        out.line(format_args!(
            "{n} of {keys}; nothing was changed (--apply repairs)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Plain;
    use super::*;
    use crate::orders::OrderStatus;

    fn one(text: &str) -> Result<Option<(String, i64, Value)>, Refusal> {
        line::<OrderStatus, Plain>(text.as_bytes(), 1, &Plain)
    }

    #[test]
    fn a_line_of_truth_is_key_version_and_a_state_of_the_machine() {
        let truth = Ok(Some(("o".to_owned(), 2, json!("PAID"))));
        assert_eq!(
            one(r#"{"order_id":"o","version":2,"status":"PAID","by":"x"}"#),
            truth
        );
        assert_eq!(one(r#"{"key":"o","version":2,"state":"PAID"}"#), truth);
        assert_eq!(one(" "), Ok(None));
        for (bad, why) in [
            (
                r#"{"key":"o","version":2,"status":"paid"}"#,
                "none of this machine's",
            ),
            (
                r#"{"key":"o","version":2,"status":7}"#,
                "none of this machine's",
            ),
            (r#"{"key":"o","version":2}"#, "no member \"status\""),
            (r#"{"key":"o","version":-1,"status":"PAID"}"#, "below 0"),
            (r#"{"version":1,"status":"PAID"}"#, "no member \"key\""),
        ] {
            let refusal = one(bad).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
        }
    }
}
