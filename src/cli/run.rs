//! `run`: store, fold, settle, and show what came of it: the main job.
//!
//! The consumer is opened before anything is stored, so that a `--max-attempts` that is new is in
//! force for all of it.

use serde_json::json;

use super::args::RunArgs;
use super::output::Answer;
use super::{Access, Render, Tool, ingest, status};
use crate::machine::StateMachine;

/// Runs `run`.
pub(super) fn run<M, R>(tool: &mut Tool<R>, machine: M, args: &RunArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let inputs = ingest::open(&args.inputs, &args.how)?;
    // Without input there is nothing to make a store for.
    let access = if inputs.is_empty() {
        Access::Write
    } else {
        Access::Create
    };
    let store = tool.store(access)?;
    let consumer = tool.consumer(&store, machine, access)?;
    let reports = ingest::all(tool, &store, &inputs, &args.how)?;
    tool.out.bar_busy("folding");
    let settled = consumer.settle();
    tool.out.bar_done();
    let progress = settled?;
    consumer.flush()?;
    if tool.out.json() {
        let more = vec![
            ("ingested", json!(reports)),
            ("rounds", json!(progress.rounds)),
        ];
        status::show(tool, &store, &consumer, more)?;
    } else {
        if !reports.is_empty() {
            ingest::print(&mut tool.out, &reports)?;
            tool.out.line("")?;
        }
        status::show(tool, &store, &consumer, Vec::new())?;
    }
    drop(consumer);
    store.close()?;
    Ok(ingest::exit(&reports))
}
