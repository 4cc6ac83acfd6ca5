//! The operator's command line, as a library: the tool of *your* state machine in three lines.
//!
//! ```no_run
//! use foldlog::cli;
//! # struct Bank;
//! # impl foldlog::StateMachine for Bank {
//! #     type State = i64;
//! #     const REVISION: u32 = 1;
//! #     fn apply(&self, _: Option<&i64>, _: &foldlog::Event) -> Result<i64, foldlog::Poison> {
//! #         Ok(0)
//! #     }
//! # }
//!
//! fn main() -> std::process::ExitCode {
//!     cli::run(Bank, "bank", cli::Plain)
//! }
//! ```
//!
//! The binary `foldlog` is this tool for the two machines that come with the crate ([`main`]).
//!
//! # Commands
//!
//! `run FILE…` and `ingest` make a store where there is none; all others say that there is none.
//! `run` without a file folds and settles what is there.
//! `status`, `get`, `log`, `dead list`, `dead show`, `replay`, `verify`, `rebuild --preview` and
//! `reconcile` without `--apply` open it read-only: they change no byte of it and work beside the
//! process that writes. `dead redrive|discard|skip`, `rebuild` and `reconcile --apply` need to be
//! that process. `repair` needs that there is none; without `--accept-loss-from` it changes no
//! byte.
//!
//! Exit status: **0** done. **1** done, with findings: refused lines (`--keep-going`), damage that
//! opening found or healed, a difference (`reconcile`, `rebuild`, `replay`, `verify`), no such row
//! or letter, a redriven event that died again, a store to repair or repaired with loss. **2**
//! could not. Dead letters and waiting events by themselves are outcomes, not findings.
//!
//! # JSON
//!
//! With `--json` each command writes one object, on one line; `log` and `dead list` write one
//! object a line, so that a program can read a list of any length. Names stay; new ones may be
//! added. Numbers are written as integers; `version` may be any number of 64 bits, so read it with
//! a parser that keeps those. Offsets, counts and positions stay below 2^53 in any log there can
//! be today.
//!
//! | command | members |
//! |---|---|
//! | `status` | `store`, `consumer`, `checkpoint`, `durable_end`, `lag`, `digest`, `max_attempts`, `events`, `applied`, `duplicate`, `merged`, `retry`, `waiting` (held included), `held`, `dead` (open letters), `discarded`, `skipped`, `rows`, `fixes`, `stale_fixes`, `unreadable_fixes`, `decisions`, `rows_by_state` (`{state: n}`, the largest first; `(none)` for a skipped first version), `rows_other`, `dead_by_class`, `dead_by_reason` (`[{class, reason, count, offsets}]`), `dead_other`, `letters_that_hold`, `holds_most` (`[{letter, key, held, since}]`), `segments` (`[{file, base, end, sealed}]`), `recovery`, `opening` |
//! | `run` | those of `status`, and `ingested` (a list of what `ingest` says of each input), `rounds` (redelivery rounds run) |
//! | `ingest` | `inputs`: `[{input, upstream, resumed_at, position, lines, events, first_offset, end_offset, refused, refused_file, refused_lines}]` (`[{line, why}]`, the first 1,000), `durable_end`. `position` is the byte after the last line read, `end_offset` is exclusive; `null` where there is none |
//! | `get` | `key`, `row` (`{version, state, moved_at}` or `null`), `blocked` (`{next, letter, waiting, held, since}` or `null`) |
//! | `log` | `offset`, `recorded_at`, and either `event` (`{id, key, version, type, payload}`) or `decision` (`{consumer, note, action}`). A payload that is JSON is written as it is; another as `payload_hex` |
//! | `dead list` | `offset`, `id`, `key`, `version`, `class`, `reason`, `attempts`, `resolved` (`redriven`, `discarded`, `skipped` or `null`), `holds` |
//! | `dead show` | those of `dead list`, and `event`, `recorded_at`, `row`, `settled` (the row has passed its version), `history` (`[{class, reason, attempts, at, at_time, resolved: {how, at, at_time, note}}]`), `held_events` (the first of them) |
//! | `dead redrive`, … | `decided` (`[{offset, decision, outcome}]`), `refused` (`[{offset, why}]`), and `applied`, `dead`, `waiting`, `held` afterwards |
//! | `replay` | `from`, `offset` (the checkpoint), `events`, `duplicate`, `waiting`, `merged`, `letters`, `lost`, `would_apply`, `lost_offsets` |
//! | `rebuild` | `records`, `applied`, `rows`, `digest_before`, `digest_after`; with `--preview` `rows_added`, `rows_removed`, `rows_changed`, `waiting_changed`, `letters_cured`, `letters_new`, `letters_changed`, `rows` (`[{key, before, after}]`), `letters` (offsets) |
//! | `reconcile` | `applied`, `count`, `fixes` (`[{key, from, to}]`, each side `{version, state}` or `null`) |
//! | `verify` | `sound`, `records`, `events`, `decisions`, `findings` (a list of texts), and with `--deep` `checkpoint`, `digest_kept`, `digest_stored`, `digest_folded`, `difference` |
//! | `repair` | `findings` (a list of texts; empty: nothing to repair), `loss_from`, `known_end` (at least the records below it existed), `cut` (`{file, position, bytes}` or `null`), `dropped` (`[{file, position, bytes}]`), `consumers` (`[{consumer, checkpoint, other_log}]`), `epoch`, `quarantine`, `kept` (copies made), `unfinished`, `done` |
//!
//! # Input
//!
//! JSON lines; see `foldlog run --help`. A line is refused when it is not one JSON object in
//! UTF-8, has a member twice, lacks `id`, `key` (or `order_id`), `version` or `type`, has one of
//! another JSON type, an empty `id` or `key`, a `version` that is not a whole number of 64 bits,
//! anything over [`crate::limits`], or is longer than 24 MiB. `\r\n`, empty lines, a byte order
//! mark at the start and a last line without newline are fine. All other members are the payload,
//! with the text they have.
//!
//! The upstream of a file is `file:` and its canonical path; its position is the byte after the
//! last line read. A repeated `run` goes on there, after a check that it is still the same file:
//! it is not shorter, a line starts at that position, and the last event before it is the last one
//! stored from that upstream, with the same id, key, version, type and payload. Otherwise nothing
//! is stored (exit 2). A bad last line without newline is not passed over: once it is whole, the
//! next `run` takes it. Standard input and pipes have no upstream unless `--upstream` names one;
//! with a name they must be sent from the start again, and what was read is passed over.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::consumer::Consumer;
use crate::consumer::options::ConsumerOptions;
use crate::error::Error;
use crate::event::Event;
use crate::machine::StateMachine;
use crate::num::to_usize;
use crate::orders::Orders;
use crate::sequence::Sequence;
use crate::storage::disk::Disk;
use crate::store::Store;

mod args;
mod dead;
mod decide;
mod get;
mod ingest;
mod input;
mod interrupt;
mod lines;
mod log;
mod members;
mod output;
mod picture;
mod rebuild;
mod reconcile;
mod record;
mod refused;
mod repair;
mod replay;
mod report;
mod resume;
mod run;
mod status;
mod survey;
mod text;
mod verify;

use args::{Cli, Command, Common, Foldlog, Machine};
use output::{Answer, Exit, Failure, Out};

/// How a machine's state is shown, and read from a source to reconcile with.
pub trait Render<S> {
    /// The state as JSON.
    fn json(&self, state: &S) -> Value;

    /// The state that a source writes as this JSON.
    ///
    /// # Errors
    ///
    /// What is wrong with it, for the person who wrote it.
    fn read(&self, json: Value) -> Result<S, String>;

    /// The state in a few words, also the name of its group in `rows_by_state`. By default the
    /// JSON, without quotes where it is a string.
    fn text(&self, state: &S) -> String {
        let json = self.json(state);
        json.as_str()
            .map_or_else(|| json.to_string(), str::to_owned)
    }
}

/// Shows and reads a state as serde does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl<S: Serialize + DeserializeOwned> Render<S> for Plain {
    fn json(&self, state: &S) -> Value {
        let json = serde_json::to_value(state);
        json.unwrap_or_else(|error| Value::String(format!("(not to be shown as JSON: {error})")))
    }

    fn read(&self, json: Value) -> Result<S, String> {
        serde_json::from_value(json).map_err(|error| error.to_string())
    }
}

/// Runs the command in the process's arguments for `machine`, whose consumer has the name
/// `consumer`, and answers the exit status for `main` to return.
pub fn run<M, R>(machine: M, consumer: &str, render: R) -> ExitCode
where
    M: StateMachine,
    R: Render<M::State>,
{
    match Cli::try_parse() {
        Ok(cli) => Tool::new(cli.common, consumer, render).finish(machine, cli.command),
        Err(error) => usage(&error),
    }
}

/// Reads one line of input as `run` and `ingest` do: an object with `id`, `key` (or `order_id`),
/// `version` and `type`; all other members become the payload. `None` for an empty line.
///
/// # Errors
///
/// Why the line is refused, for people.
pub fn event_of_line(line: &[u8]) -> Result<Option<Event>, String> {
    lines::event(line, 0)
}

/// Runs the command of the binary `foldlog`: machine and consumer by `--machine`.
#[must_use]
pub fn main() -> ExitCode {
    let Foldlog { cli, machine } = match Foldlog::try_parse() {
        Ok(foldlog) => foldlog,
        Err(error) => return usage(&error),
    };
    let mut out = Out::standard(cli.common.json);
    // The log is repaired, whatever folds it.
    let any = matches!(cli.command, Command::Repair(_)).then_some(Machine::Orders);
    let machine = machine.or(any);
    let machine = match machine.map_or_else(|| machine_of(&cli.common, &mut out), Ok) {
        Ok(machine) => machine,
        Err(failure) => {
            out.failure(&failure);
            return ExitCode::from(Exit::Failed.code());
        }
    };
    match machine {
        Machine::Orders => Tool::new(cli.common, machine.name(), Plain).finish(Orders, cli.command),
        Machine::Sequence => {
            Tool::new(cli.common, machine.name(), Plain).finish(Sequence, cli.command)
        }
    }
}

fn usage(error: &clap::Error) -> ExitCode {
    // A help text that nobody reads to its end is no failure.
    drop(error.print());
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Failed.code()))
}

/// The machine that the store has state of: an operator who does not know must not see a log of
/// permits folded as orders.
fn machine_of(common: &Common, out: &mut Out) -> Answer<Machine> {
    let disk = Disk::open(common.store.clone());
    let consumers = crate::state::generation::consumers(&disk)?;
    let is = |machine: Machine| consumers.iter().any(|name| name == machine.name());
    match (is(Machine::Orders), is(Machine::Sequence)) {
        (true, true) => Err(Failure::new("the store has state of two machines")
            .help("say which with --machine orders or --machine sequence")),
        (false, true) => {
            out.note("machine: sequence, the one that this store has state of");
            Ok(Machine::Sequence)
        }
        (_, false) => Ok(Machine::Orders),
    }
}

/// How a command opens the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Writes, and makes a store where there is none.
    Create,
    /// Writes.
    Write,
    /// Changes nothing.
    Read,
}

/// What every command works with.
struct Tool<R> {
    common: Common,
    consumer: String,
    render: R,
    out: Out,
    /// The heaviest end so far.
    exit: Exit,
}

impl<R> Tool<R> {
    fn new(common: Common, consumer: &str, render: R) -> Self {
        let out = Out::standard(common.json);
        Self {
            common,
            consumer: consumer.to_owned(),
            render,
            out,
            exit: Exit::Done,
        }
    }

    /// Runs the command and says how it ended.
    fn finish<M>(mut self, machine: M, command: Command) -> ExitCode
    where
        M: StateMachine,
        R: Render<M::State>,
    {
        let answer = self.dispatch(machine, command).and_then(|exit| {
            self.out.bar_done();
            self.out.flush().map(|()| exit)
        });
        let exit = match answer {
            Ok(exit) => exit.max(self.exit),
            Err(failure) => {
                // What was written before the failure is still a result.
                drop(self.out.flush());
                self.out.failure(&failure);
                Exit::Failed
            }
        };
        ExitCode::from(exit.code())
    }

    fn dispatch<M>(&mut self, machine: M, command: Command) -> Answer
    where
        M: StateMachine,
        R: Render<M::State>,
    {
        match command {
            Command::Run(args) => run::run(self, machine, &args),
            Command::Ingest(args) => ingest::run(self, &args),
            Command::Status => status::run(self, machine),
            Command::Get(args) => get::run(self, machine, &args),
            Command::Log(args) => log::run(self, &machine, &args),
            Command::Dead(command) => dead::run(self, machine, command),
            Command::Replay(args) => replay::run(self, machine, &args),
            Command::Rebuild(args) => rebuild::run(self, machine, &args),
            Command::Reconcile(args) => reconcile::run(self, machine, &args),
            Command::Verify(args) => verify::run(self, machine, &args),
            Command::Repair(args) => repair::run::<M, R>(self, &args),
        }
    }

    /// Opens the store and tells what opening found.
    fn store(&mut self, access: Access) -> Answer<Store> {
        if self.common.store.as_os_str().is_empty() {
            return Err(Failure::new("the store's directory has an empty name"));
        }
        Ok(self.open(access)?)
    }

    fn open(&mut self, access: Access) -> Result<Store, Error> {
        let options = Store::options().create(access == Access::Create);
        let store = options
            .read_only(access == Access::Read)
            .open(&self.common.store)?;
        let findings = report::recovery(&mut self.out, store.recovery());
        self.exit = self.exit.max(findings);
        Ok(store)
    }

    /// Opens the consumer, which folds the log to its end, and tells what opening found.
    fn consumer<M: StateMachine>(
        &mut self,
        store: &Store,
        machine: M,
        access: Access,
    ) -> Answer<Consumer<M>> {
        Ok(self.open_consumer(store, machine, access)?)
    }

    fn open_consumer<M: StateMachine>(
        &mut self,
        store: &Store,
        machine: M,
        access: Access,
    ) -> Result<Consumer<M>, Error> {
        let mut options = ConsumerOptions::default()
            .partitions(self.common.partitions)
            .batch_max(to_usize(self.common.batch.into()));
        match self.common.max_attempts {
            Some(_) if access == Access::Read => self.out.note(
                "--max-attempts is kept in the log; this command only reads, and passes over it",
            ),
            Some(attempts) => options = options.max_attempts(attempts),
            None => {}
        }
        self.out.bar_busy("folding");
        let consumer = store.consumer_with(&self.consumer, machine, options);
        self.out.bar_done();
        let consumer = consumer?;
        let findings = report::opening(&mut self.out, consumer.opening(), access);
        self.exit = self.exit.max(findings);
        Ok(consumer)
    }

    /// How this tool is called on this store, for advice on what to type next.
    fn command(&self) -> String {
        let program = std::env::args_os()
            .next()
            .unwrap_or_else(|| OsString::from("foldlog"));
        let program = std::path::Path::new(&program).file_name().map_or_else(
            || "foldlog".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        );
        let store = self.common.store.to_string_lossy();
        let by_itself = std::env::var_os("FOLDLOG_STORE").as_deref()
            == Some(self.common.store.as_os_str())
            || store == "foldlog-data";
        if by_itself {
            program
        } else {
            format!("{program} --store {}", quoted(&store))
        }
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_alphanumeric() || "_./-+=:,@".contains(char);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
