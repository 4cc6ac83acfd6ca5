//! `replay`: past events delivered again over the live state, to check and to show.

use serde_json::json;

use super::args::ReplayArgs;
use super::output::{Answer, Exit, table};
use super::text::{count, counted};
use super::{Access, Render, Tool};
use crate::machine::StateMachine;

/// Runs `replay`.
pub(super) fn run<M, R>(tool: &mut Tool<R>, machine: M, args: &ReplayArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let store = tool.store(Access::Read)?;
    let consumer = tool.consumer(&store, machine, Access::Read)?;
    tool.out.bar_busy("replaying");
    let replay = consumer.replay(args.from);
    tool.out.bar_done();
    let replay = replay?;
    let exit = Exit::findings(replay.lost > 0);
    if tool.out.json() {
        tool.out.value(&json!({
            "from": replay.from, "offset": replay.offset, "events": replay.events,
            "duplicate": replay.duplicate, "waiting": replay.waiting, "merged": replay.merged,
            "letters": replay.letters, "lost": replay.lost, "would_apply": replay.would_apply,
            "lost_offsets": replay.lost_offsets,
        }))?;
        return Ok(exit);
    }
    let events = counted(replay.events, "event", "events");
    tool.out.line(format_args!(
        "{events} of records {}..{} delivered again",
        replay.from, replay.offset
    ))?;
    let all = [
        ("duplicate", replay.duplicate, "their rows have them"),
        ("waiting", replay.waiting, "they wait"),
        (
            "merged",
            replay.merged,
            "repeats of an event that waits or died",
        ),
        ("letters", replay.letters, "they have a dead letter"),
        ("lost", replay.lost, "the state does not know them"),
    ];
    let rows = all
        .into_iter()
        .map(|(name, n, what)| vec![name.to_owned(), count(n), what.to_owned()])
        .collect();
    tool.out.line(table(&["as", "events", ""], &[1], rows))?;
    if replay.lost > 0 {
        let first: Vec<String> = replay
            .lost_offsets
            .iter()
            .map(ToString::to_string)
            .collect();
        tool.out.line(format_args!(
            "{} would be applied; the first lost: {}",
            count(replay.would_apply),
            first.join(" ")
        ))?;
        tool.out
            .line("the state is not the fold of the log: `rebuild` makes it so")?;
    } else {
        tool.out
            .line("nothing changed, and nothing would: the state knows every one of them")?;
    }
    Ok(exit)
}
