//! `dead list` and `dead show`: events that were set aside, why, and what they hold.

use serde_json::{Map, Value, json};

use super::args::{DeadCommand, DeadListArgs, FilterArgs};
use super::output::{Answer, Exit, Failure, table};
use super::record::{EventJson, at, payload_text, row_json};
use super::survey::held;
use super::text::{count, counted, cut, escape, time};
use super::{Access, Render, Tool, decide, get};
use crate::consumer::Consumer;
use crate::consumer::decide::Filter;
use crate::consumer::list::WaitingEvent;
use crate::event::{Body, Event, Record};
use crate::fold::letter::{DeadLetter, Death};
use crate::machine::StateMachine;
use crate::num::to_u64;
use crate::offset::Offset;
use crate::store::Store;

/// Letters listed for a person when no limit is given.
const LISTED: u64 = 100;
/// Rows of a table that are laid out together: column widths are those of one page.
const PAGE: usize = 100;
/// Held events shown.
const HELD_SHOWN: usize = 20;
/// Longest reason in a table, in characters.
const REASON_SHOWN: usize = 60;

/// Runs a `dead` command.
pub(super) fn run<M, R>(tool: &mut Tool<R>, machine: M, command: DeadCommand) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    match command {
        DeadCommand::List(args) => list(tool, machine, &args),
        DeadCommand::Show { offset } => show(tool, machine, offset),
        DeadCommand::Redrive(args) => decide::run(tool, machine, decide::Verb::Redrive, &args),
        DeadCommand::Discard(args) => decide::run(tool, machine, decide::Verb::Discard, &args),
        DeadCommand::Skip(args) => decide::run(tool, machine, decide::Verb::Skip, &args),
    }
}

/// The filter that arguments mean.
pub(super) fn filter(args: &FilterArgs) -> Answer<Filter> {
    let mut filter = Filter::all();
    if let Some(key) = get::key_of(&args.key)? {
        filter = filter.key(key);
    }
    if let Some(class) = args.class {
        filter = filter.class(class.into());
    }
    if let Some(from) = args.from {
        filter = filter.from(from);
    }
    if let Some(below) = args.below {
        filter = filter.below(below);
    }
    if let Some(reason) = &args.reason {
        filter = filter.reason_contains(reason);
    }
    Ok(filter)
}

fn list<M, R>(tool: &mut Tool<R>, machine: M, args: &DeadListArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let filter = filter(&args.filter)?;
    let store = tool.store(Access::Read)?;
    let consumer = tool.consumer(&store, machine, Access::Read)?;
    let json = tool.out.json();
    let limit = args.limit.unwrap_or(if json { u64::MAX } else { LISTED });
    let (mut found, mut page) = (0_u64, Vec::new());
    for letter in consumer.dead_letters() {
        let letter = letter?;
        if tool.out.is_closed() {
            break;
        }
        if !(letter.is_open() || args.resolved) || !filter.matches(&letter) {
            continue;
        }
        found = found.saturating_add(1);
        if found > limit {
            continue;
        }
        let holds = held(&consumer, &letter)?.map_or(0, |(held, _)| held);
        if json {
            tool.out.value(&letter_json(&letter, holds))?;
            continue;
        }
        page.push(letter_row(&letter, holds));
        if page.len() >= PAGE {
            tool.out.line(letter_table(std::mem::take(&mut page)))?;
        }
    }
    if json {
        return Ok(Exit::Done);
    }
    if !page.is_empty() {
        tool.out.line(letter_table(page))?;
    }
    let more = found.saturating_sub(limit);
    if found == 0 {
        tool.out.line("no dead letter matches")?;
    } else if more > 0 {
        tool.out
            .line(format_args!("and {} more (see --limit)", count(more)))?;
    }
    Ok(Exit::Done)
}

fn letter_json(letter: &DeadLetter, holds: u64) -> Map<String, Value> {
    let fields = [
        ("offset", json!(letter.offset)),
        ("id", json!(letter.id)),
        ("key", json!(letter.key)),
        ("version", json!(letter.version)),
        ("class", json!(letter.class())),
        ("reason", json!(letter.reason())),
        ("attempts", json!(letter.attempts())),
        (
            "resolved",
            json!(letter.resolution().map(|resolution| resolution.how)),
        ),
        ("holds", json!(holds)),
    ];
    fields
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn letter_row(letter: &DeadLetter, holds: u64) -> Vec<String> {
    let class = match letter.resolution() {
        None => letter.class().to_string(),
        Some(resolution) => format!("{} ({})", letter.class(), resolution.how),
    };
    vec![
        letter.offset.to_string(),
        class,
        cut(&letter.key, 24),
        letter.version.to_string(),
        count(holds),
        cut(letter.reason(), REASON_SHOWN),
    ]
}

fn letter_table(rows: Vec<Vec<String>>) -> String {
    table(
        &["letter", "class", "key", "version", "holds", "why"],
        &[0, 3, 4],
        rows,
    )
}

/// One letter and everything around it.
struct Story {
    letter: DeadLetter,
    record: Option<Record>,
    holds: u64,
    settled: bool,
    held: Vec<WaitingEvent>,
}

fn show<M, R>(tool: &mut Tool<R>, machine: M, offset: Offset) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let store = tool.store(Access::Read)?;
    let consumer = tool.consumer(&store, machine, Access::Read)?;
    let Some(letter) = consumer.dead_letter(offset)? else {
        return Err(
            Failure::new(format!("there is no dead letter at offset {offset}"))
                .help("`dead list` names them"),
        );
    };
    let row = consumer.get(&letter.key)?;
    let holds = held(&consumer, &letter)?.map_or(0, |(held, _)| held);
    let story = Story {
        record: at(&store, offset)?,
        holds,
        settled: row
            .as_ref()
            .is_some_and(|row| row.version >= letter.version),
        held: if holds == 0 {
            Vec::new()
        } else {
            held_events(&consumer, &letter.key)?
        },
        letter,
    };
    let row_json = row.as_ref().map(|row| row_json(row, &tool.render));
    if tool.out.json() {
        let json = story_json(&store, &story, row_json.as_ref())?;
        tool.out.line(json)?;
    } else {
        let state = row.as_ref().map_or_else(
            || "no row".to_owned(),
            |row| super::record::side_text(row.version, row.state.as_ref(), &tool.render),
        );
        for line in story_text(&store, &story, &state)? {
            tool.out.line(line)?;
        }
    }
    Ok(Exit::Done)
}

fn held_events<M: StateMachine>(consumer: &Consumer<M>, key: &str) -> Answer<Vec<WaitingEvent>> {
    let mut found = Vec::new();
    for waiting in consumer.waiting() {
        let waiting = waiting?;
        if waiting.held && waiting.key == key {
            found.push(waiting);
            if found.len() >= HELD_SHOWN {
                break;
            }
        }
    }
    Ok(found)
}

fn event_of(record: Option<&Record>) -> Option<&Event> {
    match record.map(|record| &record.body) {
        Some(Body::Event(event)) => Some(event),
        Some(Body::Decision(_)) | None => None,
    }
}

/// When a record was stored, and the note of the decision it is.
fn about(store: &Store, offset: Offset) -> Answer<(Option<String>, Option<String>)> {
    let Some(record) = at(store, offset)? else {
        return Ok((None, None));
    };
    let note = match record.body {
        Body::Decision(decision) => decision.note,
        Body::Event(_) => None,
    };
    Ok((Some(time(record.recorded_at_ms)), note))
}

/// The event keeps its payload's own text, so this is JSON text rather than a value.
fn story_json(store: &Store, story: &Story, row: Option<&Value>) -> Answer<String> {
    let mut json = letter_json(&story.letter, story.holds);
    let mut history = Vec::new();
    for death in &story.letter.history {
        history.push(death_json(store, death)?);
    }
    let held: Vec<Value> = story
        .held
        .iter()
        .map(|w| json!({ "offset": w.offset, "id": w.id, "version": w.version }))
        .collect();
    let recorded_at = story
        .record
        .as_ref()
        .map(|record| time(record.recorded_at_ms));
    let fields = [
        ("recorded_at", json!(recorded_at)),
        ("row", json!(row)),
        ("settled", json!(story.settled)),
        ("history", Value::from(history)),
        ("held_events", Value::from(held)),
    ];
    json.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    let event = event_of(story.record.as_ref()).map(EventJson::new);
    let bad = |error: serde_json::Error| {
        Failure::new(format!("the letter does not go into JSON: {error}"))
    };
    let event = serde_json::to_string(&event).map_err(bad)?;
    let rest = serde_json::to_string(&json).map_err(bad)?;
    let rest = rest.strip_prefix('{').unwrap_or(&rest);
    Ok(format!("{{\"event\":{event},{rest}"))
}

fn death_json(store: &Store, death: &Death) -> Answer<Value> {
    let resolved = match death.resolved {
        None => Value::Null,
        Some(resolution) => {
            let (at_time, note) = about(store, resolution.at)?;
            json!({ "how": resolution.how, "at": resolution.at, "at_time": at_time, "note": note })
        }
    };
    let (at_time, _) = about(store, death.at)?;
    Ok(json!({
        "class": death.class, "reason": death.reason, "attempts": death.attempts,
        "at": death.at, "at_time": at_time, "resolved": resolved,
    }))
}

fn story_text(store: &Store, story: &Story, row: &str) -> Answer<Vec<String>> {
    let letter = &story.letter;
    let mut lines = vec![format!(
        "dead letter {}: {} of {}, version {}",
        letter.offset,
        escape(&letter.id),
        escape(&letter.key),
        letter.version
    )];
    if let (Some(record), Some(event)) = (&story.record, event_of(story.record.as_ref())) {
        lines.push(format!(
            "  event    {}, stored {}",
            escape(&event.kind),
            time(record.recorded_at_ms)
        ));
        lines.push(format!("  payload  {}", payload_text(event, 200)));
    }
    let settled = if story.settled {
        " (has passed it: settled)"
    } else {
        ""
    };
    lines.push(format!("  row      {row}{settled}"));
    for death in &letter.history {
        let (at_time, _) = about(store, death.at)?;
        lines.push(format!(
            "  died     {} by record {}, {}, after {}: {}",
            at_time.unwrap_or_default(),
            death.at,
            death.class,
            counted(death.attempts.into(), "attempt", "attempts"),
            escape(&death.reason)
        ));
        if let Some(resolution) = death.resolved {
            let (at_time, note) = about(store, resolution.at)?;
            let note = note
                .map(|note| format!(": {}", escape(&note)))
                .unwrap_or_default();
            let at_time = at_time.unwrap_or_default();
            lines.push(format!(
                "  {} {at_time} by record {}{note}",
                resolution.how, resolution.at
            ));
        }
    }
    if story.holds > 0 {
        lines.push(format!(
            "  holds    {}",
            counted(story.holds, "event", "events")
        ));
        for waiting in &story.held {
            let (offset, version, id) = (waiting.offset, waiting.version, cut(&waiting.id, 40));
            lines.push(format!("           {offset}: version {version} ({id})"));
        }
        if story.holds > to_u64(story.held.len()) {
            lines.push("           …".to_owned());
        }
    }
    Ok(lines)
}
