//! The members of one JSON object in a line of input, kept as the text they were sent as.
//!
//! - A value that is only passed on (a payload) keeps its text: no number is rounded, no escape
//!   rewritten, no nesting too deep (`numbers_beyond_every_float_survive_in_a_payload`,
//!   `a_payload_may_nest_deeper_than_the_stack`). Only white space between tokens goes.
//! - No member of a line is dropped in silence: a name that comes twice is refused
//!   (`a_member_that_comes_twice_is_refused`).
//!
//! Not here: which members an event has (`lines`), and which a truth has (`reconcile`).

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, Visitor};
use serde_json::value::RawValue;

/// How much of an offending value a message shows, in characters.
const SHOWN_CHARS: usize = 40;

/// The members of one object, in the order they were sent.
#[derive(Debug)]
pub(super) struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// The reason why `line` is not a line of input, as a message for the person who sent it.
pub(super) type Refusal = String;

impl<'a> Members<'a> {
    /// Reads a line that must be one JSON object.
    pub(super) fn read(line: &'a [u8]) -> Result<Self, Refusal> {
        if let Some(at) = line.iter().position(|byte| *byte == 0) {
            return Err(format!("a NUL byte at column {}", at.saturating_add(1)));
        }
        let text =
            std::str::from_utf8(line).map_err(|error| not_utf8(line, error.valid_up_to()))?;
        if text.starts_with('\u{feff}') {
            return Err("a byte order mark that is not at the start of the file".to_owned());
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let members = de::Deserializer::deserialize_map(&mut json, ObjectVisitor)
            .and_then(|members| json.end().map(|()| members));
        members.map_err(|error| in_line(&error))
    }

    /// Takes the member `name` out.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let at = self.0.iter().position(|(member, _)| member == name)?;
        Some(self.0.remove(at).1)
    }

    /// Takes the member `name` out; it must be there.
    pub(super) fn need(&mut self, name: &str) -> Result<&'a RawValue, Refusal> {
        self.take(name).ok_or_else(|| format!("no member {name:?}"))
    }

    /// What is left, as a JSON object without white space between its tokens. Empty if nothing is.
    pub(super) fn rest(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in &self.0 {
            out.push(if out.is_empty() { b'{' } else { b',' });
            out.extend_from_slice(
                serde_json::Value::from(name.as_ref())
                    .to_string()
                    .as_bytes(),
            );
            out.push(b':');
            compact(value.get().as_bytes(), &mut out);
        }
        if !out.is_empty() {
            out.push(b'}');
        }
        out
    }
}

/// The text of a member that must be a string.
pub(super) fn string(name: &str, value: &RawValue) -> Result<String, Refusal> {
    if !value.get().starts_with('"') {
        return Err(format!("{name:?} must be a string, not {}", shown(value)));
    }
    serde_json::from_str(value.get()).map_err(|error| {
        format!(
            "{name:?} is not a readable string: {}",
            without_place(&error)
        )
    })
}

/// The text of a member that must be a string with something in it.
pub(super) fn filled(name: &str, value: &RawValue) -> Result<String, Refusal> {
    let text = string(name, value)?;
    if text.is_empty() {
        Err(format!("{name:?} is empty"))
    } else {
        Ok(text)
    }
}

/// A member that must be a whole number of 64 bits, written as one: `2`, not `2.0` or `"2"`.
pub(super) fn integer(name: &str, value: &RawValue) -> Result<i64, Refusal> {
    serde_json::from_str(value.get()).map_err(|_| {
        let (min, max) = (i64::MIN, i64::MAX);
        format!(
            "{name:?} must be a whole number from {min} to {max}, not {}",
            shown(value)
        )
    })
}

/// A value for a message: its first characters, safe for a terminal.
fn shown(value: &RawValue) -> String {
    super::text::cut(value.get(), SHOWN_CHARS)
}

/// Copies JSON text without the white space between its tokens.
pub(super) fn compact(json: &[u8], out: &mut Vec<u8>) {
    let (mut in_string, mut escaped) = (false, false);
    for byte in json {
        if in_string {
            in_string = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
        } else if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            continue;
        } else {
            in_string = *byte == b'"';
        }
        out.push(*byte);
    }
}

fn not_utf8(line: &[u8], at: usize) -> Refusal {
    if line.starts_with(&[0xff, 0xfe]) || line.starts_with(&[0xfe, 0xff]) {
        return "not UTF-8; it looks like UTF-16".to_owned();
    }
    format!("not UTF-8 at column {}", at.saturating_add(1))
}

/// What serde found wrong, and where in the line.
fn in_line(error: &serde_json::Error) -> Refusal {
    let mut what = without_place(error);
    if !error.is_data() {
        what.insert_str(0, "not JSON: ");
    }
    match error.column() {
        0 => what,
        column => format!("{what} at column {column}"),
    }
}

/// serde's message without its "at line 1 column N": there is but one line, and it has a number of
/// its own.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(place.as_str())
        .unwrap_or(&text)
        .to_owned()
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members: Vec<(Cow<'de, str>, &RawValue)> = Vec::new();
        let mut names = HashSet::new();
        while let Some(name) = map.next_key_seed(Name)? {
            if !names.insert(name.clone()) {
                let name = super::text::cut(&name, SHOWN_CHARS);
                return Err(de::Error::custom(format_args!(
                    "the member \"{name}\" comes twice"
                )));
            }
            members.push((name, map.next_value()?));
        }
        Ok(Members(members))
    }
}

/// A member's name, borrowed from the line where it has no escapes.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(line: &str) -> String {
        String::from_utf8(Members::read(line.as_bytes()).unwrap().rest()).unwrap()
    }

    #[test]
    fn numbers_beyond_every_float_survive_in_a_payload() {
        let line = r#"{ "a" : 123456789012345678901234567890.10 , "b":[ 1e999, "x y\" z\\" ] }"#;
        assert_eq!(
            rest(line),
            r#"{"a":123456789012345678901234567890.10,"b":[1e999,"x y\" z\\"]}"#
        );
        assert_eq!(rest("{ }"), "");
    }

    #[test]
    fn a_payload_may_nest_deeper_than_the_stack() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(500_000), "]".repeat(500_000));
        assert_eq!(rest(&deep), deep);
    }

    #[test]
    fn a_member_that_comes_twice_is_refused() {
        let twice = Members::read(br#"{"id":"a","x":1,"\u0069d":"a"}"#).unwrap_err();
        assert_eq!(twice, "the member \"id\" comes twice at column 25");
    }

    #[test]
    fn what_is_not_one_object_is_refused_with_its_place() {
        let refusal = |line: &[u8]| Members::read(line).unwrap_err();
        assert_eq!(
            refusal(b"{\"a\":1"),
            "not JSON: EOF while parsing an object at column 6"
        );
        assert!(refusal(b"{\"a\":1} x").starts_with("not JSON: trailing characters"));
        assert!(refusal(b"[1]").starts_with("invalid type: sequence, expected a JSON object"));
        assert!(refusal(b"7").contains("expected a JSON object"));
        assert_eq!(refusal(b"{\"a\":\"\0\"}"), "a NUL byte at column 7");
        assert_eq!(refusal(b"{\"a\":\"\xff\"}"), "not UTF-8 at column 7");
        assert_eq!(refusal(b"\xff\xfe{ "), "not UTF-8; it looks like UTF-16");
        assert!(refusal("\u{feff}{}".as_bytes()).starts_with("a byte order mark"));
        assert!(refusal(b"{\"a\":NaN}").contains("column"));
        assert!(refusal(b"{\"a\":\"\x01\"}").contains("control character"));
    }

    #[test]
    fn an_integer_is_written_as_one_and_fits_64_bits() {
        let value = |json: &str| -> Result<i64, Refusal> {
            integer("version", &RawValue::from_string(json.to_owned()).unwrap())
        };
        assert_eq!(value("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(value("9223372036854775807"), Ok(i64::MAX));
        for bad in [
            "9223372036854775808",
            "-9223372036854775809",
            "1.0",
            "1e2",
            "\"1\"",
            "null",
            "true",
            "[1]",
            "{}",
        ] {
            let refusal = value(bad).unwrap_err();
            assert!(refusal.contains("whole number"), "{refusal}");
        }
    }

    #[test]
    fn a_string_must_be_a_string_with_valid_escapes() {
        let value = |json: &str| filled("id", &RawValue::from_string(json.to_owned()).unwrap());
        assert_eq!(value(r#""\u0000\n\ud83d\ude00""#).as_deref(), Ok("\0\n😀"));
        assert_eq!(value(r#""""#).unwrap_err(), "\"id\" is empty");
        assert_eq!(value("7").unwrap_err(), "\"id\" must be a string, not 7");
        assert!(
            value(r#""\ud800""#)
                .unwrap_err()
                .starts_with("\"id\" is not a readable string")
        );
    }
}
