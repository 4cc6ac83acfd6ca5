//! `status`: what is in the store and what became of it.

use serde_json::{Value, json};

use super::output::{Answer, Exit};
use super::picture::Picture;
use super::{Access, Render, Tool};
use crate::consumer::Consumer;
use crate::log::SegmentInfo;
use crate::machine::StateMachine;
use crate::store::Store;

/// Runs `status`.
pub(super) fn run<M, R>(tool: &mut Tool<R>, machine: M) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let store = tool.store(Access::Read)?;
    let consumer = tool.consumer(&store, machine, Access::Read)?;
    show(tool, &store, &consumer, Vec::new())?;
    Ok(Exit::Done)
}

/// Writes the picture of a consumer, with `more` in front of it in the JSON.
pub(super) fn show<M, R>(
    tool: &mut Tool<R>,
    store: &Store,
    consumer: &Consumer<M>,
    more: Vec<(&str, Value)>,
) -> Answer<()>
where
    M: StateMachine,
    R: Render<M::State>,
{
    let picture = Picture::take(tool, store, consumer)?;
    if !tool.out.json() {
        return picture.print(&mut tool.out);
    }
    let segment = |s: &SegmentInfo| {
        json!({
            "file": s.file, "base": s.base, "end": s.end, "sealed": s.sealed,
        })
    };
    let segments: Vec<Value> = store.segments().iter().map(segment).collect();
    let mut json = picture.json();
    let fields = [
        ("segments", json!(segments)),
        ("recovery", super::report::recovery_json(store.recovery())),
        ("opening", json!(consumer.opening())),
    ];
    json.extend(
        more.into_iter()
            .chain(fields)
            .map(|(name, value)| (name.to_owned(), value)),
    );
    tool.out.value(&json)
}
