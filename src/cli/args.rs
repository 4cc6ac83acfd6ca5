//! The arguments of every command.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::fold::letter::Class;
use crate::offset::Offset;

const ABOUT: &str = "See, understand and repair a foldlog event store";
const AFTER_HELP: &str = "Results go to standard output, everything else to standard error.\n\
                          Exit status: 0 done, 1 done with findings, 2 could not.";

/// The arguments of a tool for one machine.
#[derive(Debug, Parser)]
#[command(about = ABOUT, after_help = AFTER_HELP, version)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// The arguments of the binary `foldlog`, which knows two machines.
#[derive(Debug, Parser)]
#[command(name = "foldlog", about = ABOUT, long_about = None, after_help = AFTER_HELP, version)]
pub(super) struct Foldlog {
    #[command(flatten)]
    pub(super) cli: Cli,
    /// The rules to fold with; the consumer has the same name. Default: the one that the store has
    /// state of, else `orders`.
    #[arg(long, global = true, value_enum)]
    pub(super) machine: Option<Machine>,
}

/// The machines that come with foldlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Machine {
    /// reserve 1, pay 2, fulfill 3; anything else can never be applied
    Orders,
    /// any kind of event, in the order of its versions
    Sequence,
}

impl Machine {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::Sequence => "sequence",
        }
    }
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(super) struct Common {
    /// The store's directory
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "FOLDLOG_STORE",
        default_value = "foldlog-data"
    )]
    pub(super) store: PathBuf,
    /// Write results as JSON, for programs
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Fold in this many partitions side by side; no result depends on it
    #[arg(long, global = true, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(super) partitions: u32,
    /// Delivery attempts before an event that came too early is a dead letter (3 until set). Kept
    /// in the log from here on; commands that only read do not look at it
    #[arg(long, global = true, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_attempts: Option<u32>,
    /// Lines stored per append, and records folded per turn
    #[arg(long, global = true, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) batch: u32,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Store the events of files, fold them, settle, and show what came of it; without files, fold
    /// and settle what is there
    #[command(after_help = "Example: foldlog run orders.jsonl\n\
                            Run it again and it goes on where it stopped.")]
    Run(RunArgs),
    /// Store the events of files, and nothing else
    #[command(after_help = "Example: zcat events.gz | foldlog ingest - --upstream events")]
    Ingest(IngestArgs),
    /// What is in the store and what became of it
    #[command(after_help = "Example: foldlog status --json")]
    Status,
    /// The row of one key, and what blocks it
    #[command(after_help = "Example: foldlog get order-00017")]
    Get(KeyArgs),
    /// The records of the log
    #[command(after_help = "Example: foldlog log --from 100 --max 20")]
    Log(LogArgs),
    /// Events that were set aside: list, show, redrive, discard, skip
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Deliver past events again over the live state, to check it; changes nothing
    #[command(after_help = "Example: foldlog replay --from 0")]
    Replay(ReplayArgs),
    /// Fold the whole log into new state beside the live one, compare, and switch
    #[command(after_help = "Example: foldlog rebuild --preview")]
    Rebuild(RebuildArgs),
    /// Compare rows with the outside truth, and repair them with --apply
    #[command(after_help = "Example: foldlog reconcile --source truth.jsonl\n\
                            A line of it: {\"key\":\"order-1\",\"version\":2,\"status\":\"PAID\"}")]
    Reconcile(ReconcileArgs),
    /// Check every frame of the log, and with --deep the state against the log
    #[command(after_help = "Example: foldlog verify --deep\n\
                            Exit status: 0 only if all is sound, 1 with findings, 2 if it could \
                            not be checked.")]
    Verify(VerifyArgs),
    /// For a store that is refused: what would be lost by going on without what is damaged or
    /// missing; with --accept-loss-from, go on without it
    #[command(after_help = "Example: foldlog repair\n\
                            Changes nothing until the offset that it names is accepted.\n\
                            Exit status: 0 nothing to repair, 1 there is or was, 2 could not.")]
    Repair(RepairArgs),
}

/// What to store, if anything.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Files of JSON lines with `id`, `key` (or `order_id`), `version` and `type`; `-` is standard
    /// input
    #[arg(value_name = "FILE|-")]
    pub(super) inputs: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) how: HowArgs,
}

/// What to store.
#[derive(Debug, Args)]
pub(super) struct IngestArgs {
    /// Files of JSON lines with `id`, `key` (or `order_id`), `version` and `type`; `-` is standard
    /// input
    #[arg(required = true, value_name = "FILE|-")]
    pub(super) inputs: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) how: HowArgs,
}

/// How to store it.
#[derive(Debug, Args)]
pub(super) struct HowArgs {
    /// Remember how far the input was read under this name (default: `file:` and the file's path;
    /// standard input has none)
    #[arg(long, value_name = "NAME",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(super) upstream: Option<String>,
    /// Do not stop at a bad line: store the others, and collect the bad ones in a file
    #[arg(long)]
    pub(super) keep_going: bool,
    /// The file to collect bad lines in; must not exist (default: beside the input, a free name
    /// that ends in `.refused.jsonl`)
    #[arg(long, value_name = "FILE", requires = "keep_going")]
    pub(super) refused: Option<PathBuf>,
}

/// A key.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// The key
    #[arg(value_name = "KEY")]
    pub(super) key: String,
    /// The key is written as this tool shows it, with escapes: `\n`, `\u{0}`, `\\`
    #[arg(long)]
    pub(super) escaped: bool,
}

/// Which records.
#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// The first offset
    #[arg(long, value_name = "OFFSET", default_value = "0", value_parser = offset)]
    pub(super) from: Offset,
    /// Show at most this many
    #[arg(long, value_name = "N")]
    pub(super) max: Option<u64>,
    #[command(flatten)]
    pub(super) key: KeyFilter,
    /// Only events of this type
    #[arg(long = "type", visible_alias = "kind", value_name = "TYPE")]
    pub(super) kind: Option<String>,
}

/// What to do with dead letters.
#[derive(Debug, Subcommand)]
pub(super) enum DeadCommand {
    /// List them in the order of the log
    #[command(after_help = "Example: foldlog dead list --class poison --reason cancel")]
    List(DeadListArgs),
    /// One of them: its event, its history, what is held behind it
    #[command(after_help = "Example: foldlog dead show 1042")]
    Show {
        /// The event's offset
        #[arg(value_parser = offset)]
        offset: Offset,
    },
    /// Judge them again, with a fresh retry budget
    #[command(after_help = "Example: foldlog dead redrive 1042 --note 'late event came'")]
    Redrive(DecideArgs),
    /// Give them up; later events of their keys are no longer held
    #[command(after_help = "Example: foldlog dead discard --key order-7 --yes")]
    Discard(DecideArgs),
    /// Give them up and move their keys past them, state unchanged
    #[command(after_help = "Example: foldlog dead skip 1042")]
    Skip(DecideArgs),
}

/// One key, or all.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct KeyFilter {
    /// Only what is about this key
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// The key is written as this tool shows it, with escapes: `\n`, `\u{0}`, `\\`
    #[arg(long, requires = "key")]
    pub(super) escaped: bool,
}

/// Which letters.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct FilterArgs {
    #[command(flatten)]
    pub(super) key: KeyFilter,
    /// Only letters of this class
    #[arg(long, value_enum)]
    pub(super) class: Option<ClassArg>,
    /// Only letters at or above this offset
    #[arg(long, value_name = "OFFSET", value_parser = offset)]
    pub(super) from: Option<Offset>,
    /// Only letters below this offset
    #[arg(long, value_name = "OFFSET", value_parser = offset)]
    pub(super) below: Option<Offset>,
    /// Only letters whose reason contains this text
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
}

/// Which letters to list.
#[derive(Debug, Args)]
pub(super) struct DeadListArgs {
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// Also those that were resolved
    #[arg(long)]
    pub(super) resolved: bool,
    /// List at most this many (default: 100; all with --json)
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<u64>,
}

/// Which letters to decide about.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true)
          .args(["offsets", "key", "class", "from", "below", "reason", "all"]))]
pub(super) struct DecideArgs {
    /// The events' offsets
    #[arg(value_name = "OFFSET", value_parser = offset,
          conflicts_with_all = ["key", "class", "from", "below", "reason", "all", "limit"])]
    pub(super) offsets: Vec<Offset>,
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// All open letters
    #[arg(long)]
    pub(super) all: bool,
    /// Decide about at most this many, the first in the log
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) limit: Option<u64>,
    /// Do not ask before deciding about letters chosen by a filter
    #[arg(long)]
    pub(super) yes: bool,
    /// Who decides, and why; kept in the log
    #[arg(long, value_name = "TEXT")]
    pub(super) note: Option<String>,
}

/// Where to replay from.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// The first offset to deliver again
    #[arg(long, value_name = "OFFSET", default_value = "0", value_parser = offset)]
    pub(super) from: Offset,
}

/// How to rebuild.
#[derive(Debug, Args)]
pub(super) struct RebuildArgs {
    /// Only show what would differ
    #[arg(long)]
    pub(super) preview: bool,
}

/// What to reconcile with.
#[derive(Debug, Args)]
pub(super) struct ReconcileArgs {
    /// The outside truth: JSON lines with `key` (or `order_id`), `version` and `status` (or
    /// `state`)
    #[arg(long, value_name = "FILE|-")]
    pub(super) source: PathBuf,
    /// Repair: append a fix for each difference
    #[arg(long)]
    pub(super) apply: bool,
    /// Who decides, and why; kept in the log
    #[arg(long, value_name = "TEXT", requires = "apply")]
    pub(super) note: Option<String>,
}

/// How deep to look.
#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// Also fold the log anew and compare the state with it
    #[arg(long)]
    pub(super) deep: bool,
}

/// What loss is accepted.
#[derive(Debug, Args)]
pub(super) struct RepairArgs {
    /// Give up all records from this offset on, which must be the one that `repair` names. What
    /// goes is kept in `quarantine/`
    #[arg(long, value_name = "OFFSET", value_parser = offset)]
    pub(super) accept_loss_from: Option<Offset>,
}

/// Why an event died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ClassArg {
    /// it can never be applied
    Poison,
    /// its predecessor did not come in time
    Conflict,
    /// judging it took the process down
    Crashed,
}

impl From<ClassArg> for Class {
    fn from(class: ClassArg) -> Self {
        match class {
            ClassArg::Poison => Self::Poison,
            ClassArg::Conflict => Self::Conflict,
            ClassArg::Crashed => Self::Crashed,
        }
    }
}

fn offset(text: &str) -> Result<Offset, std::num::ParseIntError> {
    text.parse().map(Offset::new)
}
