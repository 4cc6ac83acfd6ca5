//! Records of the log and rows, for a program and for a person.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Render;
use super::members::compact;
use super::output::Answer;
use super::text::{cut, time, time_short};
use crate::codec;
use crate::event::{Action, Body, Decision, Event, FixRow, Record};
use crate::limits::STATE_BYTES_MAX;
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::source::Row;
use crate::store::Store;

/// Longest key, id or type shown in a line for a person, in characters.
const NAME_SHOWN: usize = 40;

/// An event as JSON.
#[derive(Debug, Serialize)]
pub(super) struct EventJson<'a> {
    id: &'a str,
    key: &'a str,
    version: i64,
    #[serde(rename = "type")]
    kind: &'a str,
    /// The payload, where it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// The payload, where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
}

impl<'a> EventJson<'a> {
    pub(super) fn new(event: &'a Event) -> Self {
        let payload = payload(&event.payload);
        let other = payload.is_none() && !event.payload.is_empty();
        Self {
            id: &event.id,
            key: &event.key,
            version: event.version,
            kind: &event.kind,
            payload,
            payload_hex: other.then(|| hex(&event.payload)),
        }
    }
}

/// A payload as the JSON it is, on one line.
fn payload(bytes: &[u8]) -> Option<Box<RawValue>> {
    let json: &RawValue = serde_json::from_slice(bytes).ok()?;
    let mut line = Vec::with_capacity(bytes.len());
    compact(json.get().as_bytes(), &mut line);
    RawValue::from_string(String::from_utf8(line).ok()?).ok()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a `String` cannot fail.
        let _infallible = write!(out, "{byte:02x}");
        out
    })
}

/// A record as JSON.
#[derive(Debug, Serialize)]
pub(super) struct RecordJson<'a> {
    offset: Offset,
    recorded_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<EventJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<Value>,
}

impl<'a> RecordJson<'a> {
    pub(super) fn new<M, R>(record: &'a Record, render: &R) -> Self
    where
        M: StateMachine,
        R: Render<M::State>,
    {
        let (event, decision) = match &record.body {
            Body::Event(event) => (Some(EventJson::new(event)), None),
            Body::Decision(decision) => (None, Some(decision_json::<M, R>(decision, render))),
        };
        Self {
            offset: record.offset,
            recorded_at: time(record.recorded_at_ms),
            event,
            decision,
        }
    }
}

fn decision_json<M, R>(decision: &Decision, render: &R) -> Value
where
    M: StateMachine,
    R: Render<M::State>,
{
    let action = match &decision.action {
        Action::Configure { max_attempts } => {
            json!({ "configure": { "max_attempts": max_attempts } })
        }
        Action::Redeliver { below } => json!({ "redeliver": { "below": below } }),
        Action::Redrive { offset } => json!({ "redrive": { "offset": offset } }),
        Action::Discard { offset } => json!({ "discard": { "offset": offset } }),
        Action::Skip { offset } => json!({ "skip": { "offset": offset } }),
        Action::Fix {
            key,
            from,
            to,
            revision,
        } => {
            let known = *revision == M::REVISION;
            let side = |row: &Option<FixRow>| {
                row.as_ref()
                    .map(|row| side_json(row.version, row.state.as_deref(), known, render))
            };
            let (from, to) = (side(from), side(to));
            json!({ "fix": { "key": key, "from": from, "to": to, "revision": revision } })
        }
        Action::Crashed {
            at,
            event,
            attempts,
        } => {
            json!({ "crashed": { "at": at, "event": event, "attempts": attempts } })
        }
    };
    json!({ "consumer": decision.consumer, "note": decision.note, "action": action })
}

/// A row in its stored form as JSON; a state of another revision or that does not decode by its
/// bytes.
pub(super) fn side_json<S, R>(version: i64, state: Option<&[u8]>, known: bool, render: &R) -> Value
where
    S: serde::de::DeserializeOwned,
    R: Render<S>,
{
    let Some(bytes) = state else {
        return json!({ "version": version, "state": null });
    };
    match codec::decode::<S>(bytes, STATE_BYTES_MAX) {
        Ok(state) if known => json!({ "version": version, "state": render.json(&state) }),
        Ok(_) | Err(_) => json!({ "version": version, "state_hex": hex(bytes) }),
    }
}

/// A row as JSON.
pub(super) fn row_json<S, R: Render<S>>(row: &Row<S>, render: &R) -> Value {
    let state = row.state.as_ref().map(|state| render.json(state));
    json!({ "version": row.version, "state": state, "moved_at": row.moved_at })
}

/// One side of a fix for a person: `2 PAID`.
pub(super) fn side_text<S, R: Render<S>>(version: i64, state: Option<&S>, render: &R) -> String {
    let state = state.map_or_else(
        || "(none)".to_owned(),
        |state| cut(&render.text(state), NAME_SHOWN),
    );
    format!("{version} {state}")
}

/// A record on one line for a person.
pub(super) fn record_text(record: &Record) -> String {
    let short = |text: &str| cut(text, NAME_SHOWN);
    let what = match &record.body {
        Body::Event(event) => {
            format!(
                "{} {} {} ({})",
                short(&event.key),
                event.version,
                short(&event.kind),
                short(&event.id)
            )
        }
        Body::Decision(decision) => {
            let note = decision
                .note
                .as_ref()
                .map(|note| format!(": {}", short(note)));
            let action = action_text(&decision.action);
            format!(
                "[{}] {action}{}",
                decision.consumer,
                note.unwrap_or_default()
            )
        }
    };
    let (offset, time) = (record.offset, time_short(record.recorded_at_ms));
    format!("{offset:>8}  {time}  {what}")
}

fn action_text(action: &Action) -> String {
    match action {
        Action::Configure { max_attempts } => format!("max attempts {max_attempts}"),
        Action::Redeliver { below } => format!("redelivery round below {below}"),
        Action::Redrive { offset } => format!("redrive {offset}"),
        Action::Discard { offset } => format!("discard {offset}"),
        Action::Skip { offset } => format!("skip {offset}"),
        Action::Fix { key, from, to, .. } => {
            let version = |row: &Option<FixRow>| {
                row.as_ref()
                    .map_or_else(|| "no row".to_owned(), |row| row.version.to_string())
            };
            format!(
                "fix {} from {} to {}",
                cut(key, NAME_SHOWN),
                version(from),
                version(to)
            )
        }
        Action::Crashed {
            at,
            event,
            attempts,
        } => {
            format!("event {event} took the process down {attempts} times at {at}")
        }
    }
}

/// The payload of an event for a person, cut to `chars`.
pub(super) fn payload_text(event: &Event, chars: usize) -> String {
    match std::str::from_utf8(&event.payload) {
        Ok(text) => cut(text, chars),
        Err(_) => cut(&hex(&event.payload), chars),
    }
}

/// The record at `offset`, where there is one.
pub(super) fn at(store: &Store, offset: Offset) -> Answer<Option<Record>> {
    if offset >= store.durable_end() {
        return Ok(None);
    }
    Ok(store.next_batch(offset, 1)?.records.into_iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(payload: &[u8]) -> String {
        let event = Event::new("e", "k", i64::MAX, "t").with_payload(payload);
        serde_json::to_string(&EventJson::new(&event)).unwrap()
    }

    #[test]
    fn a_payload_is_shown_as_the_json_it_is_and_else_as_bytes() {
        let head = r#"{"id":"e","key":"k","version":9223372036854775807,"type":"t""#;
        assert_eq!(json(b""), format!("{head}}}"));
        assert_eq!(
            json(b"{\"n\":\n 1e999}"),
            format!(r#"{head},"payload":{{"n":1e999}}}}"#)
        );
        assert_eq!(
            json(b"10\xff"),
            format!(r#"{head},"payload_hex":"3130ff"}}"#)
        );
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(
            json(deep.as_bytes()),
            format!(r#"{head},"payload":{deep}}}"#)
        );
    }
}
