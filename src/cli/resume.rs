//! Going on where an earlier run stopped, after a check that the input is still the same.
//!
//! What is checked, and all of it: the input is not shorter than the position stored; a line starts
//! there; and the last event before it (lines that hold none are passed over) is the last one that
//! was stored from that upstream, with the same id, key, version, type and payload. Where no event
//! was stored yet, there may be none before the position either.

use std::fs::File;
use std::io::{self, BufRead};
use std::os::unix::fs::FileExt as _;

use super::input::{Input, Kind};
use super::lines::{LINE_BYTES_MAX, Lines, event};
use super::output::{Answer, Failure};
use crate::event::Event;
use crate::num::{to_u64, to_usize};
use crate::store::Store;

/// Bytes read per step back through a file: at first, and at most.
const STEP: (u64, u64) = (4 * 1024, 1024 * 1024);

/// Checks that a file still is what was read up to `position`. A stream is checked while it is
/// read, by [`skip`].
pub(super) fn check(input: &Input, store: &Store, position: u64) -> Answer<()> {
    let Kind::File(file, len) = &input.kind else {
        return Ok(());
    };
    if *len < position {
        return Err(not_the_same(
            input,
            &format!("it is shorter than the {position} bytes read before"),
        ));
    }
    let read = |error: io::Error| input.failed("read", &error);
    if !starts_line(file, position).map_err(read)? {
        return Err(not_the_same(
            input,
            &format!("no line starts at byte {position}, where reading stopped"),
        ));
    }
    let last = last_event(file, position).map_err(read)?;
    check_event(input, store, last.as_ref(), position)
}

/// Reads a stream up to `position`, with the same checks.
pub(super) fn skip<R: BufRead>(
    input: &Input,
    store: &Store,
    lines: &mut Lines<R>,
    position: u64,
) -> Answer<()> {
    let mut last = None;
    while lines.position() < position {
        if !lines
            .advance()
            .map_err(|error| input.failed("read", &error))?
        {
            let why = format!("it ends before byte {position}, up to which it was read before");
            return Err(not_the_same(input, &why));
        }
        if let Ok(Some(event)) = lines.event() {
            last = Some(event);
        }
        lines
            .rest(&mut |_| Ok(()))
            .map_err(|error| input.failed("read", &error))?;
    }
    // A last line that had no newline may have got one since.
    let text = lines.line().strip_suffix(b"\r").unwrap_or(lines.line());
    let text_end = lines.start().saturating_add(to_u64(text.len()));
    if lines.position() != position && text_end != position {
        return Err(not_the_same(
            input,
            &format!("no line starts at byte {position}, where reading stopped"),
        ));
    }
    check_event(input, store, last.as_ref(), position)
}

fn check_event(input: &Input, store: &Store, last: Option<&Event>, position: u64) -> Answer<()> {
    let Some(upstream) = &input.upstream else {
        return Ok(());
    };
    if store.upstream_last(upstream)?.as_ref() == last {
        return Ok(());
    }
    let why = format!("the last event before byte {position} is not the last one that was stored");
    Err(not_the_same(input, &why))
}

fn not_the_same(input: &Input, why: &str) -> Failure {
    Failure::new(format!(
        "{} is not the same file as before: {why}; nothing was stored",
        input.name
    ))
    .help("if it is another file, give it a name of its own with --upstream")
}

/// Whether a line starts at `position`: after a newline, or where the last line had none, if
/// nothing was written on to it.
fn starts_line(file: &File, position: u64) -> io::Result<bool> {
    let Some(before) = position.checked_sub(1) else {
        return Ok(true);
    };
    if read(file, before, 1)? == b"\n" {
        return Ok(true);
    }
    let after = read(file, position, 2)?;
    Ok(after.is_empty() || after.starts_with(b"\n") || after.starts_with(b"\r"))
}

/// The last event in a line that ends at or before `position`.
fn last_event(file: &File, position: u64) -> io::Result<Option<Event>> {
    let mut end = position;
    while end > 0 {
        let start = line_start(file, end)?;
        let len = to_usize(end.saturating_sub(start));
        if len <= LINE_BYTES_MAX.saturating_add(1) {
            let bytes = read(file, start, len)?;
            let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            if let Ok(Some(event)) = event(line, start) {
                return Ok(Some(event));
            }
        }
        end = start;
    }
    Ok(None)
}

/// Where the line that ends at `end` (after its newline, if it has one) starts.
fn line_start(file: &File, end: u64) -> io::Result<u64> {
    // The byte before `end` may be the line's own newline.
    let mut upper = end.saturating_sub(1);
    let (mut step, step_max) = STEP;
    while upper > 0 {
        let lower = upper.saturating_sub(step);
        let bytes = read(file, lower, to_usize(upper.saturating_sub(lower)))?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
            return Ok(lower.saturating_add(to_u64(at)).saturating_add(1));
        }
        upper = lower;
        step = step.saturating_mul(2).min(step_max);
    }
    Ok(0)
}

/// How many newlines stand before `position`: the number of the line there, less one.
pub(super) fn lines_before(file: &File, position: u64) -> io::Result<u64> {
    let (mut from, mut lines) = (0_u64, 0_u64);
    while from < position {
        let len = position.saturating_sub(from).min(STEP.1);
        let bytes = read(file, from, to_usize(len))?;
        if bytes.is_empty() {
            break;
        }
        let newlines = bytes.split(|byte| *byte == b'\n').skip(1).count();
        lines = lines.saturating_add(to_u64(newlines));
        from = from.saturating_add(to_u64(bytes.len()));
    }
    Ok(lines)
}

/// At most `len` bytes from `position`; fewer only at the end of the file.
fn read(file: &File, position: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0_usize;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, position.saturating_add(to_u64(filled))) {
            Ok(0) => break,
            Ok(n) => filled = filled.saturating_add(n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn line(id: &str) -> String {
        format!("{{\"id\":\"{id}\",\"key\":\"k\",\"version\":1,\"type\":\"t\"}}")
    }

    #[test]
    fn a_line_starts_after_a_newline_or_where_an_unended_one_was_not_written_on() {
        let file = file(b"a\nbc\r\nd");
        let starts: Vec<bool> = (0..=7).map(|at| starts_line(&file, at).unwrap()).collect();
        assert_eq!(starts, [true, true, true, false, true, true, true, true]);
    }

    #[test]
    fn the_last_event_is_found_over_bad_and_empty_lines_and_long_ones() {
        let (a, b) = (line("a"), line("b"));
        let long = "x".repeat(9000);
        let text = format!("{a}\n{long}\nnot json\r\n\n{b}");
        let file = file(text.as_bytes());
        let at = |position: usize| {
            last_event(&file, to_u64(position))
                .unwrap()
                .map(|event| event.id)
        };
        let before_b = text.len() - b.len();
        assert_eq!(at(text.len()).as_deref(), Some("b"));
        for position in [before_b, before_b - 1, a.len() + 1, a.len()] {
            assert_eq!(at(position).as_deref(), Some("a"), "{position}");
        }
        assert_eq!(at(0), None);
        assert_eq!(at(5), None);
        assert_eq!(lines_before(&file, to_u64(before_b)).unwrap(), 4);
    }
}
