//! `ingest`: lines of input into the log, each once.
//!
//! - A batch of events and the position after its last line are one frame, so an interrupted
//!   ingest goes on with the first line that is not in the log
//!   (`killed_runs_end_like_an_undisturbed_one` in `tests/cli`).
//! - The position moves past a refused line only when it is safe in the file of refused lines; and
//!   never past a bad last line without newline, which may not be written to its end yet.

use std::io::BufRead;
use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;

use super::args::{HowArgs, IngestArgs};
use super::input::{Input, Kind};
use super::interrupt::Interrupt;
use super::lines::{BYTE_ORDER_MARK, Lines};
use super::output::{Answer, Exit, Failure, Out};
use super::refused::Refused;
use super::resume;
use super::text::{count, counted, escape};
use super::{Access, Tool};
use crate::event::Event;
use crate::log::Ingested;
use crate::num::{to_u64, to_usize};
use crate::offset::Offset;
use crate::store::Store;

/// A batch is stored when its lines have this many bytes.
const BATCH_BYTES: usize = 1024 * 1024;
/// Refused lines listed in the JSON; all are on standard error and in the file.
const REFUSED_LISTED: usize = 1000;

/// What became of one input.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    input: String,
    upstream: Option<String>,
    /// Where an earlier call had stopped.
    resumed_at: Option<u64>,
    /// The byte after the last line read.
    position: u64,
    /// Lines read that hold something.
    lines: u64,
    /// Events stored.
    events: u64,
    first_offset: Option<Offset>,
    end_offset: Option<Offset>,
    refused: u64,
    refused_file: Option<String>,
    refused_lines: Vec<RefusedLine>,
}

#[derive(Debug, Serialize)]
struct RefusedLine {
    line: u64,
    why: String,
}

/// Runs `ingest`.
pub(super) fn run<R>(tool: &mut Tool<R>, args: &IngestArgs) -> Answer {
    let inputs = open(&args.inputs, &args.how)?;
    let store = tool.store(Access::Create)?;
    let reports = all(tool, &store, &inputs, &args.how)?;
    store.close()?;
    if tool.out.json() {
        let end = store.durable_end();
        tool.out
            .value(&json!({ "inputs": reports, "durable_end": end }))?;
    } else {
        print(&mut tool.out, &reports)?;
    }
    Ok(exit(&reports))
}

/// Opens all inputs, so that a wrong name is noticed before anything is done.
pub(super) fn open(paths: &[PathBuf], how: &HowArgs) -> Answer<Vec<Input>> {
    if how.upstream.is_some() && paths.len() > 1 {
        return Err(Failure::new(
            "--upstream names one input, and there are several",
        ));
    }
    let mut inputs: Vec<Input> = Vec::new();
    for path in paths {
        let input = Input::open(path, how.upstream.as_deref())?;
        let stdin = |input: &Input| matches!(input.kind, Kind::Stdin);
        let twice = inputs.iter().any(|other| {
            (input.upstream.is_some() && input.upstream == other.upstream)
                || (stdin(&input) && stdin(other))
        });
        if twice {
            return Err(Failure::new(format!("{} is named twice", input.name)));
        }
        inputs.push(input);
    }
    Ok(inputs)
}

/// Stores the lines of all inputs. Files that were read before are checked before anything is
/// stored.
pub(super) fn all<R>(
    tool: &mut Tool<R>,
    store: &Store,
    inputs: &[Input],
    how: &HowArgs,
) -> Answer<Vec<Report>> {
    let position = |input: &Input| {
        input
            .upstream
            .as_deref()
            .and_then(|name| store.upstream_position(name))
    };
    for input in inputs {
        if let Some(position) = position(input) {
            resume::check(input, store, position)?;
        }
    }
    let interrupt = Interrupt::listen();
    interrupt.polled(true);
    let mut reports = Vec::new();
    for input in inputs {
        let session = Session {
            store,
            input,
            interrupt: &interrupt,
            out: &mut tool.out,
            keep_going: how.keep_going,
            lines_max: to_usize(tool.common.batch.into()),
            batch: Vec::new(),
            batch_bytes: 0,
            stored: position(input).unwrap_or(0),
            lines_before: None,
            refused: Refused::new(how.refused.as_deref(), &input.refused_stem),
            report: Report {
                input: input.name.clone(),
                upstream: input.upstream.clone(),
                resumed_at: position(input),
                ..Report::default()
            },
        };
        reports.push(session.run()?);
    }
    interrupt.polled(false);
    Ok(reports)
}

/// How it ended.
pub(super) fn exit(reports: &[Report]) -> Exit {
    Exit::findings(reports.iter().any(|report| report.refused > 0))
}

/// For a person.
pub(super) fn print(out: &mut Out, reports: &[Report]) -> Answer<()> {
    for report in reports {
        let stored = match (report.first_offset, report.end_offset) {
            (Some(first), Some(end)) => {
                let events = counted(report.events, "event", "events");
                format!("{events} stored (offsets {first}..{end})")
            }
            _ => "nothing new".to_owned(),
        };
        let before = match report.resumed_at {
            Some(at) => format!("; it was read before, up to byte {}", count(at)),
            None => String::new(),
        };
        out.line(format_args!("{}: {stored}{before}", report.input))?;
        if report.refused > 0 {
            let lines = counted(report.refused, "line", "lines");
            let file = escape(report.refused_file.as_deref().unwrap_or_default());
            out.line(format_args!("  {lines} refused, kept in {file}"))?;
        }
    }
    Ok(())
}

/// The reading of one input.
struct Session<'a> {
    store: &'a Store,
    input: &'a Input,
    interrupt: &'a Interrupt,
    out: &'a mut Out,
    keep_going: bool,
    lines_max: usize,
    batch: Vec<Event>,
    batch_bytes: usize,
    /// The position in the store.
    stored: u64,
    /// Lines before the first one read here, once somebody asked.
    lines_before: Option<u64>,
    refused: Refused,
    report: Report,
}

impl Session<'_> {
    fn run(mut self) -> Answer<Report> {
        match self.input.len() {
            Some(len) => self.out.bar_bytes(len, "storing"),
            None => self.out.bar_busy("storing"),
        }
        let file = matches!(self.input.kind, Kind::File(..));
        let start = if file { self.stored } else { 0 };
        let mut lines = Lines::new(self.input.stream(start)?, start);
        if !file {
            // Line numbers are counted from the start of a stream.
            self.lines_before = Some(0);
            if self.input.upstream.is_none() {
                self.out.note(format_args!(
                    "{} has no name: sent again, its events are stored again (see --upstream)",
                    self.input.name
                ));
            }
            if let Some(position) = self.report.resumed_at {
                resume::skip(self.input, self.store, &mut lines, position)?;
            }
        }
        self.report.position = self.stored;
        let read = self.read(&mut lines);
        self.out.bar_done();
        read?;
        self.report.refused_file = self.refused.path().map(|path| path.display().to_string());
        Ok(self.report)
    }

    fn read<R: BufRead>(&mut self, lines: &mut Lines<R>) -> Answer<()> {
        let mut position = lines.position();
        loop {
            if self.interrupt.wanted() {
                self.append(position)?;
                let stored = self.so_far();
                let how = self.how_to_go_on("the next line");
                return Err(Failure::new("interrupted").help(format!("{stored}; to go on, {how}")));
            }
            match lines.advance() {
                Ok(true) if lines.start() == 0 && lines.line().starts_with(BYTE_ORDER_MARK) => {
                    let name = &self.input.name;
                    self.out.note(format_args!(
                        "{name}: passed over a byte order mark at its start"
                    ));
                }
                Ok(true) => {}
                Ok(false) => return self.append(position),
                Err(error) => {
                    self.append(position)?;
                    let failure = self.input.failed("read", &error);
                    return Err(failure.help(self.so_far()));
                }
            }
            match lines.event() {
                Ok(None) => position = lines.position(),
                Ok(Some(event)) => {
                    self.report.lines = self.report.lines.saturating_add(1);
                    self.batch_bytes = self.batch_bytes.saturating_add(lines.line().len());
                    self.batch.push(event);
                    position = lines.position();
                }
                Err(why) => {
                    self.report.lines = self.report.lines.saturating_add(1);
                    if !self.keep_going {
                        self.append(position)?;
                        return Err(self.stopped(lines.number(), &why));
                    }
                    if let Err(failure) = self.refuse(lines, why) {
                        self.append(position)?;
                        return Err(failure.and(&self.so_far()));
                    }
                    if lines.ended() {
                        position = lines.position();
                    }
                }
            }
            if self.batch.len() >= self.lines_max || self.batch_bytes >= BATCH_BYTES {
                self.append(position)?;
            }
        }
    }

    /// Stores the batch, and that the input was read up to `position`.
    fn append(&mut self, position: u64) -> Answer<()> {
        self.refused.sync()?;
        match self.append_batch(position) {
            Ok(range) => self.note_stored(range),
            Err(failure) => {
                let so_far = self.so_far();
                return Err(failure.and(&so_far));
            }
        }
        self.batch.clear();
        self.batch_bytes = 0;
        self.stored = self.stored.max(position);
        self.report.position = position;
        self.out.bar_at(position);
        Ok(())
    }

    /// The offsets of what was stored, if there was anything to store.
    fn append_batch(&self, position: u64) -> Answer<Option<Range<Offset>>> {
        let events = &self.batch;
        let range = match &self.input.upstream {
            Some(upstream) if position > self.stored => {
                match self.store.append_from(upstream, position, events)? {
                    Ingested::Stored(range) => range,
                    Ingested::AlreadyStored { position } => {
                        let name = &self.input.name;
                        let what =
                            format!("{name} was read further meanwhile, up to byte {position}");
                        return Err(Failure::new(what));
                    }
                }
            }
            Some(_) => return Ok(None),
            None if events.is_empty() => return Ok(None),
            None => self.store.append_batch(events)?,
        };
        Ok((!events.is_empty()).then_some(range))
    }

    fn note_stored(&mut self, range: Option<Range<Offset>>) {
        let Some(range) = range else { return };
        self.report.events = self.report.events.saturating_add(to_u64(self.batch.len()));
        self.report.first_offset.get_or_insert(range.start);
        self.report.end_offset = Some(range.end);
    }

    fn refuse<R: BufRead>(&mut self, lines: &mut Lines<R>, why: String) -> Answer<()> {
        let line = self.number(lines.number())?;
        self.out
            .note(format_args!("{}:{line}: {why}", self.input.name));
        self.refused.write(lines.line())?;
        let mut failed = None;
        let refused = &mut self.refused;
        let rest = lines.rest(&mut |piece| {
            if failed.is_none() {
                failed = refused.write(piece).err();
            }
            Ok(())
        });
        rest.map_err(|error| self.input.failed("read", &error))?;
        if let Some(failure) = failed {
            return Err(failure);
        }
        self.refused.write(b"\n")?;
        self.report.refused = self.report.refused.saturating_add(1);
        if self.report.refused_lines.len() < REFUSED_LISTED {
            self.report.refused_lines.push(RefusedLine { line, why });
        }
        Ok(())
    }

    /// The number in the whole input of the `n`-th line read here.
    fn number(&mut self, n: u64) -> Answer<u64> {
        let before = match (self.lines_before, &self.input.kind) {
            (Some(before), _) => before,
            (None, Kind::File(file, _)) => {
                let start = self.report.resumed_at.unwrap_or(0);
                let before = resume::lines_before(file, start);
                before.map_err(|error| self.input.failed("read", &error))?
            }
            (None, Kind::Pipe(_) | Kind::Stdin) => 0,
        };
        self.lines_before = Some(before);
        Ok(before.saturating_add(n))
    }

    fn stopped(&mut self, n: u64, why: &str) -> Failure {
        let line = match self.number(n) {
            Ok(line) => line,
            Err(failure) => return failure,
        };
        let help = format!(
            "{}. Mend line {line} and {}. Or --keep-going stores the lines behind it and keeps the \
             bad ones in a file.",
            self.so_far(),
            self.how_to_go_on(&format!("line {line}"))
        );
        Failure::new(format!("{}:{line}: {why}", self.input.name)).help(help)
    }

    fn so_far(&self) -> String {
        match (self.report.first_offset, self.report.end_offset) {
            (Some(first), Some(end)) => {
                let events = counted(self.report.events, "event", "events");
                format!("{events} stored before that (offsets {first}..{end})")
            }
            _ => "nothing stored before that by this call".to_owned(),
        }
    }

    fn how_to_go_on(&self, from: &str) -> String {
        if self.input.upstream.is_some() {
            format!("run the same command again: it goes on with {from}")
        } else {
            format!("send only what comes from {from} on")
        }
    }
}
