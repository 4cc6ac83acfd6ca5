//! Text for a person: what comes from outside made safe for a terminal, numbers and times made
//! readable.
//!
//! - No byte from a log can move the cursor, colour the screen or reverse the reading order: such
//!   characters are shown as escapes (`no_control_or_direction_character_reaches_a_terminal`).
//! - The escaped form says exactly which text it was, and reads back (`escapes_read_back`).

use std::fmt::Write as _;

/// `text` with every character that a terminal would act on, and the backslash, as an escape.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if is_unsafe(char) => out.extend(char.escape_unicode()),
            char => out.push(char),
        }
    }
    out
}

/// Characters without a shape of their own: controls, marks that reorder or join what stands
/// around them, and breaks that only some programs see.
fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        )
        || matches!(char, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(char, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text that [`escape`] would show as `escaped`; `None` if it is not of that form.
pub(super) fn unescape(escaped: &str) -> Option<String> {
    let mut out = String::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((plain, after)) = rest.split_once('\\') {
        out.push_str(plain);
        let mut chars = after.chars();
        match chars.next()? {
            '\\' => out.push('\\'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'u' => {
                let (digits, after) = chars.as_str().strip_prefix('{')?.split_once('}')?;
                // `from_str_radix` alone would also take a sign.
                let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let code = u32::from_str_radix(digits, 16).ok().filter(|_| hex)?;
                out.push(char::from_u32(code)?);
                rest = after;
                continue;
            }
            _ => return None,
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    Some(out)
}

/// At most `chars` characters of `text`, escaped; an ellipsis stands for what was cut.
pub(super) fn cut(text: &str, chars: usize) -> String {
    let mut ends = text
        .char_indices()
        .map(|(at, _)| at)
        .skip(chars.saturating_sub(1));
    match (ends.next(), ends.next()) {
        (Some(at), Some(_)) => {
            let kept = text.get(..at).unwrap_or_default();
            format!("{}…", escape(kept))
        }
        _ => escape(text),
    }
}

/// A count with separators: `23,711`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len().saturating_sub(index);
        if index > 0 && left % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 event`, `2 events`.
pub(super) fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// A size in bytes, in the unit a person would use.
pub(super) fn bytes(n: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| n >= *unit) else {
        return format!("{n} B");
    };
    let tenths = u128::from(n)
        .saturating_mul(10)
        .checked_div(unit.into())
        .unwrap_or_default();
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// Milliseconds since 1970 as a UTC time of RFC 3339: `2016-09-04T21:15:19.000Z`.
pub(super) fn time(ms: u64) -> String {
    let (days, ms_of_day) = (ms / 86_400_000, ms % 86_400_000);
    // Days are counted from 0000-03-01, so that a leap day ends its year (and century, and era).
    let day = days.saturating_add(719_468);
    let (era, day) = (day / 146_097, day % 146_097);
    let leaps = day / 1_460;
    let year = day
        .saturating_sub(leaps)
        .saturating_add(day / 36_524)
        .saturating_sub(day / 146_096)
        / 365;
    let before = year
        .saturating_mul(365)
        .saturating_add(year / 4)
        .saturating_sub(year / 100);
    let day = day.saturating_sub(before);
    let march_month = day.saturating_mul(5).saturating_add(2) / 153;
    let day_of_month = day
        .saturating_sub(march_month.saturating_mul(153).saturating_add(2) / 5)
        .saturating_add(1);
    let month = if march_month < 10 {
        march_month.saturating_add(3)
    } else {
        march_month.saturating_sub(9)
    };
    let year = year
        .saturating_add(era.saturating_mul(400))
        .saturating_add(u64::from(month <= 2));
    let (s, ms) = (ms_of_day / 1000, ms_of_day % 1000);
    let mut out = String::with_capacity(24);
    // Writing to a `String` cannot fail.
    let _infallible = write!(
        out,
        "{year:04}-{month:02}-{day_of_month:02}T{:02}:{:02}:{:02}.{ms:03}Z",
        s / 3600,
        s / 60 % 60,
        s % 60
    );
    out
}

/// The same to the second.
pub(super) fn time_short(ms: u64) -> String {
    let time = time(ms);
    let second = time
        .split_once('.')
        .map_or(time.as_str(), |(second, _)| second);
    format!("{second}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_or_direction_character_reaches_a_terminal() {
        let hostile = "a\u{1b}[31m\u{7}\u{9b}\u{202e}\u{200b}\u{feff}\u{2028}\0\u{7f}\r\nb\\";
        let safe =
            "a\\u{1b}[31m\\u{7}\\u{9b}\\u{202e}\\u{200b}\\u{feff}\\u{2028}\\u{0}\\u{7f}\\r\\nb\\\\";
        assert_eq!(escape(hostile), safe);
        assert_eq!(
            escape("a/b .. é e\u{301} 😀 日本"),
            "a/b .. é e\u{301} 😀 日本"
        );
    }

    #[test]
    fn escapes_read_back() {
        for text in [
            "",
            "\\",
            "a\\nb",
            "\0\n\r\t\u{1b}\u{e0001}",
            "é e\u{301}",
            "\\u{41}",
        ] {
            assert_eq!(unescape(&escape(text)).as_deref(), Some(text));
        }
        for bad in [
            "\\",
            "\\x",
            "\\u",
            "\\u{",
            "\\u{}",
            "\\u{110000}",
            "\\u{d800}",
            "\\u{+1}",
        ] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }

    #[test]
    fn cut_text_keeps_whole_characters_and_its_length() {
        assert_eq!(cut("日本語", 3), "日本語");
        assert_eq!(cut("日本語x", 3), "日本…");
        assert_eq!(cut("", 3), "");
        assert_eq!(cut("abc", 1), "…");
    }

    #[test]
    fn counts_and_sizes_read_as_a_person_writes_them() {
        assert_eq!(
            [0, 7, 999, 1000, 23_711, 1_000_000].map(count),
            ["0", "7", "999", "1,000", "23,711", "1,000,000"]
        );
        assert_eq!(counted(1, "line", "lines"), "1 line");
        assert_eq!(counted(0, "line", "lines"), "0 lines");
        assert_eq!(
            [0, 1023, 1024, 1_572_864, u64::MAX].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "17179869183.9 GiB"]
        );
    }

    #[test]
    fn times_agree_with_the_calendar() {
        // From `date -u -d @SECONDS`.
        let known = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_473_023_719_000, "2016-09-04T21:15:19.000Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ];
        for (ms, text) in known {
            assert_eq!(time(ms), text);
        }
        assert_eq!(time_short(1_473_023_719_999), "2016-09-04T21:15:19Z");
        assert!(time(u64::MAX).ends_with('Z'), "no panic at the far end");
    }
}
