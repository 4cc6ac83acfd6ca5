//! `verify`: is the log whole, and is the state its fold?
//!
//! - Exit 0 says that everything asked for was checked and is sound; 1 that something is not; 2
//!   that it could not be checked. The last line says the same
//!   (`verify_tells_clean_damaged_and_unreadable_apart` in `tests/cli`).
//! - An empty log is "nothing to verify", which is not "verified".

use serde_json::{Map, Value, json};

use super::args::VerifyArgs;
use super::output::{Answer, Exit, Failure};
use super::rebuild::{difference_json, print};
use super::text::{count, counted, escape};
use super::{Access, Render, Tool};
use crate::error::Error;
use crate::machine::StateMachine;
use crate::verify::{LogVerified, Verified};

/// What was found.
#[derive(Default)]
struct Found {
    log: Option<LogVerified>,
    state: Option<Verified>,
    findings: Vec<String>,
}

/// Runs `verify`.
pub(super) fn run<M, R>(tool: &mut Tool<R>, machine: M, args: &VerifyArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let mut found = Found::default();
    if let Err(stopped) = look(tool, machine, args, &mut found) {
        match stopped {
            Stopped::Finding(error) => found.findings.push(escape(&error.to_string())),
            Stopped::Failure(failure) => return Err(failure),
        }
    }
    let sound = found.findings.is_empty() && tool.exit == Exit::Done;
    if tool.out.json() {
        let json = json::<M, R>(&found, sound, &tool.render);
        tool.out.value(&json)?;
    } else {
        print_found::<M, R>(tool, &found, sound)?;
    }
    Ok(Exit::findings(!sound))
}

/// Why looking came to an end before its end.
enum Stopped {
    /// What was found leaves nothing more to look at.
    Finding(Error),
    /// It could not be looked at.
    Failure(Failure),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        let finding = matches!(
            error,
            Error::Corrupt { .. }
                | Error::MissingSegment { .. }
                | Error::LogShorterThanAnchor { .. }
                | Error::TornTail { .. }
                | Error::RepairUnfinished { .. }
                | Error::StateAheadOfLog { .. }
                | Error::WrongLog { .. }
                | Error::Diverged { .. }
        );
        if finding {
            Self::Finding(error)
        } else {
            Self::Failure(error.into())
        }
    }
}

fn look<M, R>(
    tool: &mut Tool<R>,
    machine: M,
    args: &VerifyArgs,
    found: &mut Found,
) -> Result<(), Stopped>
where
    M: StateMachine,
    R: Render<M::State>,
{
    let store = tool.open(Access::Read)?;
    tool.out.bar_busy("reading the log");
    let log = store.verify();
    tool.out.bar_done();
    found.log = Some(log?);
    if !args.deep {
        return Ok(());
    }
    let consumer = tool.open_consumer(&store, machine, Access::Read)?;
    tool.out.bar_busy("folding the log anew");
    let state = consumer.verify();
    tool.out.bar_done();
    let state = state?;
    if !state.is_sound() {
        found
            .findings
            .push("the state is not the fold of the log".to_owned());
    }
    found.state = Some(state);
    Ok(())
}

fn json<M, R>(found: &Found, sound: bool, render: &R) -> Map<String, Value>
where
    M: StateMachine,
    R: Render<M::State>,
{
    let mut json = Map::new();
    let log = found.log.unwrap_or_default();
    let mut put = |name: &str, value: Value| drop(json.insert(name.to_owned(), value));
    put("sound", json!(sound));
    put("records", json!(log.records));
    put("events", json!(log.events));
    put("decisions", json!(log.decisions));
    put("findings", json!(found.findings));
    if let Some(state) = &found.state {
        put("checkpoint", json!(state.checkpoint));
        put("digest_kept", json!(state.kept.to_string()));
        put("digest_stored", json!(state.stored.to_string()));
        put("digest_folded", json!(state.folded.to_string()));
        put(
            "difference",
            difference_json::<M, R>(&state.difference, render),
        );
    }
    json
}

fn print_found<M, R>(tool: &mut Tool<R>, found: &Found, sound: bool) -> Answer<()>
where
    M: StateMachine,
    R: Render<M::State>,
{
    let out = &mut tool.out;
    for finding in &found.findings {
        out.line(format_args!("finding: {finding}"))?;
    }
    if let Some(state) = found.state.as_ref().filter(|state| !state.is_sound()) {
        out.line(format_args!("  digest kept    {}", state.kept))?;
        out.line(format_args!("  digest stored  {}", state.stored))?;
        out.line(format_args!("  digest folded  {}", state.folded))?;
        print::<M, R>(out, &state.difference, &tool.render)?;
    }
    let log = found.log.unwrap_or_default();
    let checked = format!(
        "{} ({} events, {} decisions)",
        counted(log.records, "record", "records"),
        count(log.events),
        count(log.decisions)
    );
    if !sound {
        return out.line("NOT SOUND: see the findings");
    }
    if log.records == 0 {
        return out.line("nothing to verify: the log is empty");
    }
    if let Some(state) = &found.state {
        let (at, digest) = (state.checkpoint, state.folded);
        out.line(format_args!(
            "the state at {at} is the fold of the log, digest {digest}"
        ))?;
    }
    out.line(format_args!("verified: {checked}, every checksum holds"))
}
