//! `dead redrive`, `dead discard`, `dead skip`: decisions about dead letters, kept in the log.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use serde_json::{Value, json};

use super::args::DecideArgs;
use super::output::{Answer, Exit, Failure, Out};
use super::text::{count, counted, escape};
use super::{Access, Render, Tool, dead};
use crate::consumer::Consumer;
use crate::consumer::decide::{Decided, Filter};
use crate::error::Error;
use crate::fold::Outcome;
use crate::machine::StateMachine;
use crate::num::to_u64;
use crate::offset::Offset;

/// What to do with a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Redrive,
    Discard,
    Skip,
}

impl Verb {
    const fn done(self) -> &'static str {
        match self {
            Self::Redrive => "redriven",
            Self::Discard => "discarded",
            Self::Skip => "skipped",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
            Self::Skip => "skip",
        }
    }

    fn decide<M: StateMachine>(
        self,
        consumer: &Consumer<M>,
        offset: Offset,
        note: Option<&str>,
    ) -> Result<Decided, Error> {
        match self {
            Self::Redrive => consumer.redrive(offset, note),
            Self::Discard => consumer.discard(offset, note),
            Self::Skip => consumer.skip(offset, note),
        }
    }
}

/// Runs one of them.
pub(super) fn run<M, R>(tool: &mut Tool<R>, machine: M, verb: Verb, args: &DecideArgs) -> Answer
where
    M: StateMachine,
    R: Render<M::State>,
{
    let filter = dead::filter(&args.filter)?;
    let store = tool.store(Access::Write)?;
    let consumer = tool.consumer(&store, machine, Access::Write)?;
    let note = args.note.as_deref();
    let made = if args.offsets.is_empty() {
        let chosen = choose(&consumer, &filter, args.limit)?;
        if chosen.is_empty() {
            return report(tool, &consumer, verb, &Made::default());
        }
        confirm(&mut tool.out, verb, to_u64(chosen.len()), args.yes)?;
        let limit = chosen.len();
        match verb {
            Verb::Redrive => Made::all(consumer.redrive_all(&filter, limit, note)?),
            Verb::Discard => Made::all(consumer.discard_all(&filter, limit, note)?),
            // One by one: each that cannot be skipped is told, with the reason.
            Verb::Skip => one_by_one(&consumer, verb, &chosen, note)?,
        }
    } else {
        one_by_one(&consumer, verb, &args.offsets, note)?
    };
    let exit = report(tool, &consumer, verb, &made)?;
    consumer.flush()?;
    drop(consumer);
    store.close()?;
    Ok(exit)
}

fn one_by_one<M: StateMachine>(
    consumer: &Consumer<M>,
    verb: Verb,
    offsets: &[Offset],
    note: Option<&str>,
) -> Answer<Made> {
    let mut made = Made::default();
    for offset in offsets {
        match verb.decide(consumer, *offset, note) {
            Ok(decided) => made.decided.push(decided),
            Err(
                error @ (Error::NotFound { .. }
                | Error::AlreadyResolved { .. }
                | Error::NotNext { .. }),
            ) => made.refused.push((*offset, error.to_string())),
            Err(error) => {
                let done = counted(to_u64(made.decided.len()), "letter was", "letters were");
                return Err(Failure::from(error).and(&format!("{done} {} before", verb.done())));
            }
        }
    }
    Ok(made)
}

/// The open letters that match, in the order of the log.
fn choose<M: StateMachine>(
    consumer: &Consumer<M>,
    filter: &Filter,
    limit: Option<u64>,
) -> Answer<Vec<Offset>> {
    let limit = limit.unwrap_or(u64::MAX);
    let mut chosen = Vec::new();
    for letter in consumer.dead_letters() {
        let letter = letter?;
        if letter.is_open() && filter.matches(&letter) {
            if to_u64(chosen.len()) >= limit {
                break;
            }
            chosen.push(letter.offset);
        }
    }
    Ok(chosen)
}

/// Asks before deciding about letters that a filter chose.
fn confirm(out: &mut Out, verb: Verb, letters: u64, yes: bool) -> Answer<()> {
    if yes {
        return Ok(());
    }
    let what = format!(
        "{} {}",
        verb.word(),
        counted(letters, "dead letter", "dead letters")
    );
    if !io::stdin().is_terminal() {
        return Err(Failure::new(format!("this would {what}; nothing was done"))
            .help("say --yes to decide about letters chosen by a filter"));
    }
    out.note(format_args!("{what}? Type yes to go on."));
    drop(io::stderr().flush());
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::io("read", "the answer", &error))?;
    if answer.trim() == "yes" {
        Ok(())
    } else {
        Err(Failure::new("nothing was done"))
    }
}

#[derive(Default)]
struct Made {
    decided: Vec<Decided>,
    refused: Vec<(Offset, String)>,
}

impl Made {
    fn all(decided: Vec<Decided>) -> Self {
        Self {
            decided,
            refused: Vec::new(),
        }
    }

    fn exit(&self) -> Exit {
        let died = self
            .decided
            .iter()
            .any(|one| one.outcome == Some(Outcome::Dead));
        match (self.decided.is_empty(), self.refused.is_empty()) {
            (true, false) => Exit::Failed,
            (_, nothing_refused) => Exit::findings(died || !nothing_refused),
        }
    }
}

fn report<M, R>(tool: &mut Tool<R>, consumer: &Consumer<M>, verb: Verb, made: &Made) -> Answer
where
    M: StateMachine,
{
    let now = consumer.counters();
    if tool.out.json() {
        let decided = made.decided.iter().map(
            |one| json!({ "offset": one.offset, "decision": one.decision, "outcome": one.outcome }),
        );
        let refused = made
            .refused
            .iter()
            .map(|(offset, why)| json!({ "offset": offset, "why": why }));
        tool.out.value(&json!({
            "decided": decided.collect::<Vec<Value>>(), "refused": refused.collect::<Vec<Value>>(),
            "applied": now.applied, "dead": now.dead, "waiting": now.waiting, "held": now.held,
        }))?;
        return Ok(made.exit());
    }
    for (offset, why) in &made.refused {
        tool.out
            .note(format_args!("{offset} is not {}: {why}", verb.done()));
    }
    let done = counted(to_u64(made.decided.len()), "letter", "letters");
    let of = |outcome| {
        made.decided
            .iter()
            .filter(|one| one.outcome == Some(outcome))
            .count()
    };
    let outcomes: Vec<String> = [
        Outcome::Applied,
        Outcome::Duplicate,
        Outcome::Retry,
        Outcome::Dead,
    ]
    .into_iter()
    .map(|outcome| (outcome, of(outcome)))
    .filter(|(_, n)| *n > 0)
    .map(|(outcome, n)| format!("{} {outcome}", count(to_u64(n))))
    .collect();
    let outcomes = if outcomes.is_empty() {
        String::new()
    } else {
        format!(": {}", outcomes.join(", "))
    };
    tool.out
        .line(format_args!("{done} {}{outcomes}", verb.done()))?;
    tool.out.line(format_args!(
        "now: {} dead, {} waiting ({} held), {} applied",
        count(now.dead),
        count(now.waiting),
        count(now.held),
        count(now.applied)
    ))?;
    if now.waiting > now.held {
        let events = counted(
            now.waiting.saturating_sub(now.held),
            "event waits",
            "events wait",
        );
        let command = escape(&tool.command());
        let line = format!("{events} unheld: `{command} run` runs the next attempts");
        tool.out.line(line)?;
    }
    Ok(made.exit())
}
