//! Lines of input, read in bounded memory, and the event in a line.
//!
//! - A line is what ends in `\n`, and what is left at the end of the input; `\r` before the `\n`
//!   and white space around the JSON mean nothing, and a line of nothing else is passed over
//!   (`a_last_line_without_newline_counts_and_crlf_is_taken`).
//! - Memory is bounded by [`LINE_BYTES_MAX`], whatever the input; the rest of a longer line goes
//!   through in pieces (`a_line_over_the_limit_takes_no_more_memory_than_the_limit`).
//! - Positions are bytes from the start of the input; the position after a line is where the next
//!   one starts.

use std::io::{self, BufRead};

use super::members::{Members, Refusal, filled, integer, string};
use crate::event::Event;
use crate::num::to_u64;

/// Longest line taken: room for the largest payload, and for names written with escapes.
pub(super) const LINE_BYTES_MAX: usize = 24 * 1024 * 1024;

/// The UTF-8 byte order mark that some editors put in front of a file.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads lines one by one.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: R,
    max: usize,
    /// The current line, without its end; the first bytes of one that is too long.
    line: Vec<u8>,
    start: u64,
    position: u64,
    number: u64,
    state: State,
}

/// How far the current line is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To its newline.
    Ended,
    /// To the end of the input, which came before a newline.
    Unended,
    /// To the limit.
    TooLong,
}

impl<R: BufRead> Lines<R> {
    /// Reads from `reader`, which stands at byte `position` of the input.
    pub(super) fn new(reader: R, position: u64) -> Self {
        Self::with_max(reader, position, LINE_BYTES_MAX)
    }

    fn with_max(reader: R, position: u64, max: usize) -> Self {
        let (line, state) = (Vec::new(), State::Ended);
        Self {
            reader,
            max,
            line,
            start: position,
            position,
            number: 0,
            state,
        }
    }

    /// Goes to the next line; false at the end of the input. What is left of a line that is too
    /// long is passed over.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        self.rest(&mut |_| Ok(()))?;
        self.line.clear();
        self.start = self.position;
        self.state = self.fill()?;
        let found = self.position > self.start || self.too_long();
        self.number = self.number.saturating_add(u64::from(found));
        Ok(found)
    }

    fn fill(&mut self) -> io::Result<State> {
        loop {
            let room = self.max.saturating_sub(self.line.len());
            let chunk = filled_buffer(&mut self.reader)?;
            if chunk.is_empty() {
                return Ok(State::Unended);
            }
            // One byte more than there is room for, to tell a line of exactly the limit.
            let (piece, ended) = to_newline(chunk, room.saturating_add(1));
            let text = if ended {
                piece.split_last().map_or(piece, |(_, text)| text)
            } else {
                piece
            };
            if text.len() > room {
                return Ok(State::TooLong);
            }
            self.line.extend_from_slice(text);
            let taken = piece.len();
            self.take(taken);
            if ended {
                return Ok(State::Ended);
            }
        }
    }

    fn take(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.position = self.position.saturating_add(to_u64(bytes));
    }

    /// Hands what is left of a line that is too long to `sink`, piece by piece, without its
    /// newline. Nothing for other lines.
    pub(super) fn rest(&mut self, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        while self.state == State::TooLong {
            let chunk = filled_buffer(&mut self.reader)?;
            let (piece, ended) = to_newline(chunk, usize::MAX);
            sink(piece.strip_suffix(b"\n").unwrap_or(piece))?;
            let taken = piece.len();
            self.take(taken);
            if ended {
                self.state = State::Ended;
            } else if taken == 0 {
                self.state = State::Unended;
            }
        }
        Ok(())
    }

    /// The current line without its newline; its first bytes if it is [too long](Self::too_long).
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Whether the line is longer than the limit and was not read to its end.
    pub(super) fn too_long(&self) -> bool {
        self.state == State::TooLong
    }

    /// Whether the line had its newline.
    pub(super) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Where the line starts.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Where the next line starts, once this one is read to its end.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The line's number among those read, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The line as an event; `None` if it is empty.
    pub(super) fn event(&self) -> Result<Option<Event>, Refusal> {
        if self.too_long() {
            return Err(format!("the line is longer than {} bytes", self.max));
        }
        event(&self.line, self.start).map_err(|why| {
            if self.ended() {
                why
            } else {
                why + " (it has no newline, and may not be written to its end yet)"
            }
        })
    }
}

/// The bytes that are there, after as many interruptions as it takes.
fn filled_buffer<R: BufRead>(reader: &mut R) -> io::Result<&[u8]> {
    loop {
        match reader.fill_buf() {
            // Asked again below: returned from here the borrow would last through the loop.
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    reader.fill_buf()
}

/// The first bytes of `chunk` up to and with a newline, at most `max`; and whether it is there.
fn to_newline(chunk: &[u8], max: usize) -> (&[u8], bool) {
    let within = chunk.get(..max).unwrap_or(chunk);
    match within.iter().position(|byte| *byte == b'\n') {
        Some(at) => (within.get(..=at).unwrap_or(within), true),
        None => (within, false),
    }
}

/// The event in a line that starts at byte `start` of its input; `None` for a line of white space.
///
/// `id`, `key` (or `order_id` where there is no `key`), `version` and `type` make the event; all
/// other members are its payload, as one JSON object, or nothing where there are none.
pub(super) fn event(line: &[u8], start: u64) -> Result<Option<Event>, Refusal> {
    let Some(mut members) = members(line, start)? else {
        return Ok(None);
    };
    let id = filled("id", members.need("id")?)?;
    let key = key(&mut members)?;
    let version = integer("version", members.need("version")?)?;
    let kind = string("type", members.need("type")?)?;
    let event = Event {
        id,
        key,
        version,
        kind,
        payload: members.rest(),
    };
    event.check().map_err(|error| error.to_string())?;
    Ok(Some(event))
}

/// The members in a line that starts at byte `start` of its input; `None` for a line of white
/// space. A byte order mark is passed over at the very start of the input, and only there.
pub(super) fn members(line: &[u8], start: u64) -> Result<Option<Members<'_>>, Refusal> {
    let line = match line.strip_prefix(BYTE_ORDER_MARK) {
        Some(line) if start == 0 => line,
        _ => line,
    };
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    Members::read(line).map(Some)
}

/// The key of a line: `key`, or `order_id` where there is no `key`.
pub(super) fn key(members: &mut Members<'_>) -> Result<String, Refusal> {
    if let Some(key) = members.take("key") {
        return filled("key", key);
    }
    match members.take("order_id") {
        Some(key) => filled("order_id", key),
        None => Err("no member \"key\" (or \"order_id\")".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8], buffer: usize, max: usize) -> Vec<(u64, String, bool)> {
        let mut lines = Lines::with_max(io::BufReader::with_capacity(buffer, input), 0, max);
        let mut found = Vec::new();
        while lines.advance().unwrap() {
            let text = String::from_utf8_lossy(lines.line()).into_owned();
            found.push((lines.start(), text, lines.too_long()));
        }
        assert_eq!(lines.position(), to_u64(input.len()));
        found
    }

    #[test]
    fn a_last_line_without_newline_counts_and_crlf_is_taken() {
        let input = b"{\"a\":1}\r\n\r\n \t\n{}";
        for buffer in 1..20 {
            let lines = all(input, buffer, 100);
            let starts: Vec<u64> = lines.iter().map(|line| line.0).collect();
            assert_eq!(starts, [0, 9, 11, 14], "buffer {buffer}");
            assert_eq!(lines[3].1, "{}");
        }
        assert!(members(b" \t\r", 5).unwrap().is_none());
        assert!(members(b"{\"a\":1}\r", 5).unwrap().is_some());
    }

    #[test]
    fn a_line_over_the_limit_takes_no_more_memory_than_the_limit() {
        let input = b"12345\n123456\n1234567890123\n1\n12345678";
        for buffer in 1..40 {
            let lines = all(input, buffer, 5);
            let long: Vec<bool> = lines.iter().map(|line| line.2).collect();
            assert_eq!(long, [false, true, true, false, true], "buffer {buffer}");
            assert_eq!(lines[3].1, "1");
            assert!(lines.iter().all(|line| line.1.len() <= 5));
        }
    }

    #[test]
    fn the_rest_of_a_long_line_completes_what_was_kept_of_it() {
        let input = b"1234567890\n2";
        for buffer in 1..15 {
            let mut lines = Lines::with_max(io::BufReader::with_capacity(buffer, &input[..]), 0, 4);
            assert!(lines.advance().unwrap());
            let mut whole = lines.line().to_vec();
            lines
                .rest(&mut |piece| {
                    whole.extend_from_slice(piece);
                    Ok(())
                })
                .unwrap();
            assert_eq!(whole, b"1234567890");
            assert_eq!((lines.ended(), lines.position()), (true, 11));
            assert!(lines.advance().unwrap());
            assert_eq!(
                (lines.line(), lines.ended(), lines.number()),
                (&b"2"[..], false, 2)
            );
            assert!(!lines.advance().unwrap());
        }
    }

    #[test]
    fn an_event_takes_its_members_and_keeps_the_others_as_payload() {
        let line =
            br#"{"time":"t", "id":"e", "order_id":"o", "version":2, "type":"pay", "n": {"x" : 1}}"#;
        let event = event(line, 9).unwrap().unwrap();
        let expected = Event::new("e", "o", 2, "pay").with_payload(*br#"{"time":"t","n":{"x":1}}"#);
        assert_eq!(event, expected);
        let bare = super::event(br#"{"id":"e","key":"k","version":1,"type":""}"#, 0)
            .unwrap()
            .unwrap();
        assert_eq!(bare, Event::new("e", "k", 1, ""));
        let both = super::event(
            br#"{"id":"e","order_id":"o","key":"k","version":1,"type":"t"}"#,
            0,
        );
        assert_eq!(both.unwrap().unwrap().payload, br#"{"order_id":"o"}"#);
    }

    #[test]
    fn each_missing_or_wrong_member_is_named() {
        let refusal = |line: &str| event(line.as_bytes(), 1).unwrap_err();
        assert_eq!(
            refusal(r#"{"key":"k","version":1,"type":"t"}"#),
            "no member \"id\""
        );
        assert_eq!(
            refusal(r#"{"id":"e","version":1,"type":"t"}"#),
            "no member \"key\" (or \"order_id\")"
        );
        assert_eq!(
            refusal(r#"{"id":"e","key":"k","type":"t"}"#),
            "no member \"version\""
        );
        assert_eq!(
            refusal(r#"{"id":"e","key":"k","version":1}"#),
            "no member \"type\""
        );
        assert_eq!(
            refusal(r#"{"id":"","key":"k","version":1,"type":"t"}"#),
            "\"id\" is empty"
        );
        assert_eq!(
            refusal(r#"{"id":"e","key":"","version":1,"type":"t"}"#),
            "\"key\" is empty"
        );
        assert_eq!(
            refusal(r#"{"id":"e","key":null,"version":1,"type":"t"}"#),
            "\"key\" must be a string, not null"
        );
        assert_eq!(
            refusal(r#"{"id":"e","key":"k","version":1,"type":3}"#),
            "\"type\" must be a string, not 3"
        );
        let long = format!(
            r#"{{"id":"e","key":"{}","version":1,"type":"t"}}"#,
            "k".repeat(70_000)
        );
        assert_eq!(refusal(&long), "key is too large: 70000, at most 65536");
    }

    #[test]
    fn a_byte_order_mark_is_passed_over_at_the_start_of_the_input_only() {
        let line = "\u{feff}{\"id\":\"e\",\"key\":\"k\",\"version\":1,\"type\":\"t\"}".as_bytes();
        assert!(event(line, 0).unwrap().is_some());
        assert!(event(line, 1).unwrap_err().starts_with("a byte order mark"));
        assert_eq!(event(BYTE_ORDER_MARK, 0), Ok(None));
    }
}
