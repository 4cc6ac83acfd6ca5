//! `log`: the records of the log, one by one.

use super::args::LogArgs;
use super::output::{Answer, Exit};
use super::record::{RecordJson, record_text};
use super::{Access, Render, Tool, get};
use crate::event::{Action, Body, Record};
use crate::machine::StateMachine;

/// Records read per step.
const PAGE: usize = 1024;

/// Runs `log`.
pub(super) fn run<M, R>(tool: &mut Tool<R>, _machine: &M, args: &LogArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let key = get::key_of(&args.key)?;
    let store = tool.store(Access::Read)?;
    let mut left = args.max.unwrap_or(u64::MAX);
    let mut from = args.from;
    while left > 0 && !tool.out.is_closed() {
        let batch = store.next_batch(from, PAGE)?;
        if batch.records.is_empty() {
            break;
        }
        from = batch.next;
        for record in batch
            .records
            .iter()
            .filter(|record| matches(record, key.as_deref(), args))
        {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(1);
            if tool.out.json() {
                tool.out
                    .value(&RecordJson::new::<M, R>(record, &tool.render))?;
            } else {
                tool.out.line(record_text(record))?;
            }
        }
    }
    Ok(Exit::Done)
}

fn matches(record: &Record, wanted: Option<&str>, args: &LogArgs) -> bool {
    let (key, kind) = match &record.body {
        Body::Event(event) => (Some(event.key.as_str()), Some(event.kind.as_str())),
        Body::Decision(decision) => match &decision.action {
            Action::Fix { key, .. } => (Some(key.as_str()), None),
            Action::Configure { .. }
            | Action::Redeliver { .. }
            | Action::Redrive { .. }
            | Action::Discard { .. }
            | Action::Skip { .. }
            | Action::Crashed { .. } => (None, None),
        },
    };
    wanted.is_none_or(|wanted| key == Some(wanted))
        && args
            .kind
            .as_deref()
            .is_none_or(|wanted| kind == Some(wanted))
}
