//! Where the words go: results to standard output, everything else to standard error.
//!
//! - A reader that went away is not a failure: what is left is not written, and the exit status
//!   stays that of the work (`a_closed_pipe_changes_no_exit_status` in `tests/cli`). Any other
//!   failure to write a result is one: an answer that did not arrive is no answer.
//! - Nothing from a log reaches a terminal unescaped (`text.rs`); the messages of errors, which
//!   hold names of files, are escaped here as well.
//! - Bars and spinners are drawn on a terminal only, and on standard error only.

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::text;
use crate::error::Error;

/// Width of what is written for a person, in columns: fits every terminal, and a pipe has none.
pub(super) const WIDTH: u16 = 80;

/// How a command ended. The order is that of weight: the heavier one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Exit {
    /// Done.
    #[default]
    Done,
    /// Done, and something was found that wants a look.
    Findings,
    /// Could not.
    Failed,
}

impl Exit {
    /// The exit status of the process.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Findings => 1,
            Self::Failed => 2,
        }
    }

    /// Findings if there are any.
    pub(super) const fn findings(any: bool) -> Self {
        if any { Self::Findings } else { Self::Done }
    }
}

/// Why a command could not be done, and what may help.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl Failure {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: None,
        }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds to what may help.
    pub(super) fn and(self, more: &str) -> Self {
        let help = match &self.help {
            Some(help) => format!("{help}; {more}"),
            None => more.to_owned(),
        };
        self.help(help)
    }

    /// A failure to read or write a file that is not the store's.
    pub(super) fn io(doing: &str, name: &str, error: &io::Error) -> Self {
        Self::new(format!("cannot {doing} {name}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = Self::new(text::escape(&error.to_string()));
        match advice(&error) {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "most errors say all there is to say, new ones too"
)]
fn advice(error: &Error) -> Option<&'static str> {
    match error {
        Error::Locked { .. } => Some(
            "the process that has it can offer this itself; status, get, log, dead list, dead \
             show, replay and verify work beside it",
        ),
        Error::NoStore { .. } => Some("name one with --store, or make one with `run` or `ingest`"),
        Error::NoSpace { .. } => Some("nothing was lost; free some space and try again"),
        Error::OutcomeUnknown { .. } | Error::Stopped { .. } => {
            Some("run the same command again: opening finds out what was stored")
        }
        Error::Corrupt { .. }
        | Error::MissingSegment { .. }
        | Error::LogShorterThanAnchor { .. } => Some(
            "nothing was changed; restore the log from a backup, and keep a copy of this one; \
                 `repair` tells what would be lost by going on without one",
        ),
        Error::RepairUnfinished { .. } => {
            Some("`repair` tells how to finish it, and any command that writes finishes it")
        }
        Error::UnsupportedFormat { .. } => Some("nothing was changed; use a newer foldlog"),
        Error::StateAheadOfLog { .. } | Error::WrongLog { .. } | Error::Diverged { .. } => Some(
            "nothing was changed; if the log is the right one, `repair` sets the state aside, and \
             it is made again from the log",
        ),
        _ => None,
    }
}

/// What a command answers: how it ended, or why it could not.
pub(super) type Answer<T = Exit> = Result<T, Failure>;

/// The two streams of one command.
pub(super) struct Out {
    json: bool,
    results: Box<dyn Write>,
    notes: Box<dyn Write>,
    closed: bool,
    bar: Option<ProgressBar>,
}

impl Out {
    /// On the process's own streams.
    pub(super) fn standard(json: bool) -> Self {
        let results = Box::new(BufWriter::new(io::stdout()));
        Self {
            json,
            results,
            notes: Box::new(io::stderr()),
            closed: false,
            bar: None,
        }
    }

    /// Whether results are written for a program.
    pub(super) fn json(&self) -> bool {
        self.json
    }

    /// Whether the reader of the results went away: a long list may stop.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Writes a line of the result.
    pub(super) fn line(&mut self, line: impl Display) -> Answer<()> {
        if self.closed {
            return Ok(());
        }
        let written = writeln!(self.results, "{line}");
        self.written(written)
    }

    /// Writes a value of the result, as JSON on one line.
    pub(super) fn value(&mut self, value: &impl Serialize) -> Answer<()> {
        let json = serde_json::to_string(value)
            .map_err(|error| Failure::new(format!("the result does not go into JSON: {error}")))?;
        self.line(json)
    }

    /// Writes out what is buffered.
    pub(super) fn flush(&mut self) -> Answer<()> {
        if self.closed {
            return Ok(());
        }
        let flushed = self.results.flush();
        self.written(flushed)
    }

    fn written(&mut self, result: io::Result<()>) -> Answer<()> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.closed = true,
            Err(error) => return Err(Failure::io("write to", "standard output", &error)),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Tells the person at the terminal something that is not the result. There is nobody left to
    /// tell if that fails.
    pub(super) fn note(&mut self, note: impl Display) {
        let notes = &mut self.notes;
        let mut write = || drop(writeln!(notes, "{note}"));
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Tells why a command could not be done.
    pub(super) fn failure(&mut self, failure: &Failure) {
        self.bar_done();
        self.note(format_args!("error: {}", failure.message));
        if let Some(help) = &failure.help {
            self.note(format_args!("help: {help}"));
        }
    }

    /// Shows how far work on `total` bytes is.
    pub(super) fn bar_bytes(&mut self, total: u64, what: &str) {
        let template =
            "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        self.start_bar(ProgressBar::new(total), template, what);
    }

    /// Shows that work of unknown length goes on.
    pub(super) fn bar_busy(&mut self, what: &str) {
        self.start_bar(ProgressBar::no_length(), "{spinner} {msg} {elapsed}", what);
    }

    fn start_bar(&mut self, bar: ProgressBar, template: &str, what: &str) {
        self.bar_done();
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.to_owned());
        // Without a thread of its own where nobody would see it.
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        self.bar = Some(bar);
    }

    /// Moves the bar.
    pub(super) fn bar_at(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// Takes the bar off the screen.
    pub(super) fn bar_done(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// A table for a person: a header, columns to the right where `right` names them, 80 columns wide
/// at most.
pub(super) fn table(header: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_content_arrangement(comfy_table::ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(
            header
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>(),
        );
    for row in rows {
        table.add_row(row);
    }
    for index in right {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    fn out(kind: io::ErrorKind) -> Out {
        Out {
            json: false,
            results: Box::new(Broken(kind)),
            notes: Box::new(Broken(kind)),
            closed: false,
            bar: None,
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure_and_a_full_disk_is() {
        let mut closed = out(io::ErrorKind::BrokenPipe);
        closed.note("nobody hears this");
        assert!(closed.line("x").is_ok() && closed.is_closed() && closed.flush().is_ok());
        let mut full = out(io::ErrorKind::StorageFull);
        assert!(
            full.line("x")
                .unwrap_err()
                .message
                .starts_with("cannot write to standard output")
        );
    }

    #[test]
    fn a_table_is_80_columns_wide_at_most_and_ends_its_lines_with_text() {
        let long = "word ".repeat(40);
        let rows = vec![
            vec!["1".to_owned(), long],
            vec!["1,234".to_owned(), "日本語".to_owned()],
        ];
        let table = table(&["count", "reason"], &[0], rows);
        assert!(table.lines().count() >= 4);
        for line in table.lines() {
            assert!(line.chars().count() <= usize::from(WIDTH), "{line}");
            assert_eq!(line.trim_end(), line);
        }
        assert!(table.contains("     1  word"), "{table}");
    }

    #[test]
    fn the_heavier_end_counts() {
        assert_eq!(Exit::Done.max(Exit::Findings).code(), 1);
        assert_eq!(Exit::Failed.max(Exit::Findings).code(), 2);
        assert_eq!(Exit::findings(false).code(), 0);
    }
}
