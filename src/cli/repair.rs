//! `repair`: the way out of a store that is refused.
//!
//! - Without `--accept-loss-from` nothing is written: it says what would be lost, and the command
//!   that accepts it (`repair_tells_what_would_be_lost_and_then_loses_exactly_that` in
//!   `tests/cli`).
//! - Exit 0 says that there is nothing to repair; 1 that there is, or was; 2 that it could not be
//!   done.

use super::args::RepairArgs;
use super::output::{Answer, Exit, Failure};
use super::text::{bytes, count, counted, escape};
use super::{Render, Tool};
use crate::log::recovery::LostBytes;
use crate::machine::StateMachine;
use crate::repair::{Repair, RepairOptions};
use crate::store::Store;

/// Runs `repair`.
pub(super) fn run<M, R>(tool: &mut Tool<R>, args: &RepairArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    if tool.common.store.as_os_str().is_empty() {
        return Err(Failure::new("the store's directory has an empty name"));
    }
    let mut how = RepairOptions::default();
    if let Some(offset) = args.accept_loss_from {
        how = how.accept_loss_from(offset);
    }
    tool.out.bar_busy("reading the log");
    let repair = Store::repair(&tool.common.store, how);
    tool.out.bar_done();
    let repair = repair?;
    if tool.out.json() {
        tool.out.value(&repair)?;
    } else {
        print(tool, &repair)?;
    }
    Ok(Exit::findings(repair.is_needed()))
}

fn print<R>(tool: &mut Tool<R>, repair: &Repair) -> Answer<()> {
    let command = tool.command();
    let out = &mut tool.out;
    if !repair.is_needed() {
        let end = repair.loss_from;
        return out.line(format_args!(
            "nothing to repair: every frame up to the end of the log, offset {end}, is whole"
        ));
    }
    for finding in &repair.findings {
        out.line(format_args!("finding: {}", escape(finding)))?;
    }
    let (tense, from) = if repair.done {
        ("lost", repair.loss_from)
    } else {
        ("to be lost", repair.loss_from)
    };
    if repair.unfinished {
        out.line(format_args!("{tense}: the records from offset {from} on"))?;
    } else if repair.known_end > from {
        let known = repair.known_end.since(from);
        out.line(format_args!(
            "{tense}: the records from offset {from} on, at least {} ({from}..{})",
            counted(known, "record", "records"),
            repair.known_end
        ))?;
    } else if repair.bytes() > 0 {
        out.line(format_args!(
            "{tense}: whatever stood at offset {from} and behind; nothing tells how much that was"
        ))?;
    } else {
        out.line(format_args!(
            "{tense}: no record; the log ends at offset {from}"
        ))?;
    }
    for lost in repair.cut.iter().chain(&repair.dropped) {
        out.line(format_args!("  {}", described(lost)))?;
    }
    for state in &repair.consumers {
        let at = state.checkpoint.map_or_else(String::new, |checkpoint| {
            format!(", folded up to {checkpoint},")
        });
        let what = if state.other_log {
            "is of another log: set aside, and folded anew"
        } else {
            "counts no more: set aside and folded anew"
        };
        out.line(format_args!(
            "state of consumer {}{at} {what} at its next open",
            escape(&state.consumer)
        ))?;
    }
    if repair.done {
        for kept in &repair.kept {
            out.line(format_args!("kept: {}", escape(kept)))?;
        }
        return out.line(format_args!(
            "repaired: the log ends at offset {from}, and epoch {} begins there",
            repair.epoch
        ));
    }
    out.line(format_args!(
        "copies will be kept in {}",
        escape(&repair.quarantine)
    ))?;
    out.line("nothing was changed. A backup may have what would be lost; to go on without it:")?;
    out.line(format_args!(
        "  {command} repair --accept-loss-from {}",
        from.get()
    ))
}

fn described(lost: &LostBytes) -> String {
    let (file, size) = (escape(&lost.file), bytes(lost.bytes));
    if lost.position == 0 {
        format!("{file}, the whole file ({size})")
    } else {
        format!("{file}, {size} from byte {} on", count(lost.position))
    }
}
