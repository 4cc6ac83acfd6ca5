//! The tree's own rules: who may import whom, how long a file may be, and what may not be in it.
//!
//! Each finding is `file:line: what is wrong`. The rules are plain functions over a tree of texts,
//! so that the tests at the end can show each of them failing on a made-up tree. The length of
//! functions is clippy's to judge.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "line numbers of source files do not overflow"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The layers, from the top. A file imports from its own layer and those above it, except from
/// the ones that its layer may not see.
const LAYERS: &[Layer] = &[
    Layer {
        name: "words",
        modules: &[
            "error",
            "offset",
            "event",
            "partition",
            "num",
            "limits",
            "codec",
        ],
        not: &[],
    },
    Layer {
        name: "bytes",
        modules: &["frame"],
        not: &[],
    },
    Layer {
        name: "storage",
        modules: &["storage"],
        not: &[],
    },
    Layer {
        name: "log",
        modules: &["log"],
        not: &[],
    },
    // Pure: it must not even be able to reach a disk.
    Layer {
        name: "fold",
        modules: &[
            "machine",
            "fold",
            "source",
            "primitive",
            "orders",
            "sequence",
        ],
        not: &["bytes", "storage", "log"],
    },
    Layer {
        name: "state",
        modules: &["state"],
        not: &[],
    },
    Layer {
        name: "drive",
        modules: &[
            "consumer",
            "compare",
            "rebuild",
            "replay",
            "reconcile",
            "repair",
            "verify",
        ],
        not: &[],
    },
    Layer {
        name: "face",
        modules: &["store", "options", "lib"],
        not: &[],
    },
    Layer {
        name: "cli",
        modules: &["cli", "main"],
        not: &[],
    },
];

/// Where the operating system's files may be used, and why.
const MAY_USE_FILES: &[(&str, &str)] = &[
    ("src/storage/disk.rs", "the only OS I/O of the log"),
    (
        "src/state/sled_store.rs",
        "sled's directories are not the log's",
    ),
    ("src/cli", "reads the operator's files"),
    ("src/main.rs", "reads the operator's files"),
];

/// Where environment variables may be read.
const MAY_READ_ENVIRONMENT: &[&str] = &["src/cli", "src/main.rs"];

const LINES_MAX: usize = 450;
const COLUMNS_MAX: usize = 100;
const MARKERS: [&str; 4] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
];

struct Layer {
    name: &'static str,
    modules: &'static [&'static str],
    not: &'static [&'static str],
}

/// A text file of the repository, by its path from the root.
struct Source {
    path: String,
    text: String,
    tokens: Vec<Token>,
    /// Lines (from 1) inside test modules; all of them for a file that is one.
    test_lines: BTreeSet<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    line: usize,
    /// An identifier or number, or one character.
    text: String,
}

#[test]
fn tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for dir in ["src", "tests", "examples", "benches", "fuzz/fuzz_targets"] {
        collect(root, dir, &mut files);
    }
    if let Ok(text) = std::fs::read_to_string(root.join("DESIGN.md")) {
        files.push(("DESIGN.md".to_owned(), text));
    }
    assert!(files.len() > 20, "only {} files were read", files.len());
    let findings = check(files);
    let count = findings.len();
    assert!(
        findings.is_empty(),
        "{count} findings:\n{}",
        findings.join("\n")
    );
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|ext| ext == "rs")
}

fn collect(root: &Path, dir: &str, files: &mut Vec<(String, String)>) {
    let Ok(entries) = std::fs::read_dir(root.join(dir)) else {
        return;
    };
    for entry in entries.flatten() {
        let path = format!("{dir}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            collect(root, &path, files);
        } else if is_rust(&path) {
            // A file that cannot be read must not pass for a tidy one.
            let text = std::fs::read_to_string(entry.path());
            files.push((path, text.unwrap_or_else(|_| "\u{0}unreadable".to_owned())));
        }
    }
}

/// All findings, sorted.
fn check(files: Vec<(String, String)>) -> Vec<String> {
    let mut sources: Vec<Source> = files.into_iter().map(Source::new).collect();
    mark_test_files(&mut sources);
    let functions = functions(&sources);
    let exports = exports(&sources);
    let mut findings = Vec::new();
    for source in &sources {
        text_rules(source, &mut findings);
        names_exist(source, &functions, &mut findings);
        if source.path.starts_with("src/") {
            imports(source, &exports, &mut findings);
            length(source, &mut findings);
            switches(source, &mut findings);
            forbidden(source, &mut findings);
        }
    }
    findings.sort();
    findings
}

// Reading.

impl Source {
    fn new((path, text): (String, String)) -> Self {
        let tokens = if is_rust(&path) {
            tokenize(&text)
        } else {
            Vec::new()
        };
        let mut test_lines = BTreeSet::new();
        for (first, last, _) in test_modules(&tokens) {
            test_lines.extend(first..=last);
        }
        Self {
            path,
            text,
            tokens,
            test_lines,
        }
    }

    fn production(&self) -> Vec<&Token> {
        let tokens = self.tokens.iter();
        tokens
            .filter(|token| !self.test_lines.contains(&token.line))
            .collect()
    }

    fn finding(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    /// `log` for `src/log/commit.rs`.
    fn module(&self) -> &str {
        let path = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let first = path.split('/').next().unwrap_or(path);
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn is_under(&self, place: &str) -> bool {
        self.path == place
            || self.path == format!("{place}.rs")
            || self.path.starts_with(&format!("{place}/"))
    }
}

/// Identifiers and single characters, without comments, strings and character literals.
fn tokenize(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word: String = rest
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(len) = string(rest) {
            len
        } else if c == '\'' {
            character(rest)
        } else if !word.is_empty() {
            let len = word.len();
            tokens.push(Token { line, text: word });
            len
        } else {
            if !c.is_whitespace() {
                let text = c.to_string();
                tokens.push(Token { line, text });
            }
            c.len_utf8()
        };
        let (taken, left) = rest.split_at_checked(len).unwrap_or((rest, ""));
        line += taken.matches('\n').count();
        rest = left;
    }
    tokens
}

/// Length of the block comment at the start of `text`; they nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let step = if rest.starts_with("/*") {
            depth += 1;
            2
        } else if rest.starts_with("*/") {
            depth -= 1;
            2
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of the string literal at the start of `text`, raw and byte strings too.
fn string(text: &str) -> Option<usize> {
    let prefix = ["br", "b", "r", "c", ""];
    let prefix = prefix.iter().find(|prefix| text.starts_with(**prefix))?;
    let rest = text.get(prefix.len()..)?;
    let hashes = rest.chars().take_while(|c| *c == '#').count();
    let raw = prefix.contains('r');
    if !rest.get(hashes..)?.starts_with('"') || (hashes > 0 && !raw) {
        return None;
    }
    let start = prefix.len() + hashes + 1;
    if raw {
        let close = format!("\"{}", "#".repeat(hashes));
        let end = text.get(start..)?.find(&close)?;
        return Some(start + end + close.len());
    }
    let mut escaped = false;
    for (at, c) in text.get(start..)?.char_indices() {
        match c {
            '"' if !escaped => return Some(start + at + 1),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    Some(text.len())
}

/// Length of the character literal at the start of `text`, or 1 for a lifetime's mark.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            chars.next();
            chars.find(|(_, c)| *c == '\'').map_or(1, |(at, _)| at + 1)
        }
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

/// First line, last line and, where the module is another file, its name.
fn test_modules(tokens: &[Token]) -> Vec<(usize, usize, Option<String>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = tokens.get(at..).filter(|rest| !rest.is_empty()) {
        at += 1;
        if !starts_with(rest, &["#", "[", "cfg", "("]) {
            continue;
        }
        let attribute = group(rest.get(1..).unwrap_or_default());
        let names = |name: &str| attribute.iter().any(|token| token.text == name);
        if !names("test") || names("not") {
            continue;
        }
        let mut item = rest.get(1 + attribute.len()..).unwrap_or_default();
        while starts_with(item, &["#", "["]) {
            let other = group(item.get(1..).unwrap_or_default());
            item = item.get(1 + other.len()..).unwrap_or_default();
        }
        let head: Vec<&Token> = item
            .iter()
            .take_while(|token| token.text != "{" && token.text != ";")
            .collect();
        let Some(place) = head.iter().position(|token| token.text == "mod") else {
            continue;
        };
        let first = rest.first().map_or(0, |token| token.line);
        let body = item.get(head.len()..).unwrap_or_default();
        if starts_with(body, &[";"]) {
            let name = head.get(place + 1).map(|token| token.text.clone());
            found.push((first, first, name));
        } else {
            let last = group(body).last().map_or(first, |token| token.line);
            found.push((first, last, None));
        }
    }
    found
}

fn starts_with(tokens: &[Token], texts: &[&str]) -> bool {
    tokens.len() >= texts.len()
        && tokens
            .iter()
            .zip(texts)
            .all(|(token, text)| token.text == **text)
}

/// The bracketed group that `tokens` starts with, brackets included.
fn group(tokens: &[Token]) -> &[Token] {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return tokens.get(..=at).unwrap_or_default();
        }
    }
    tokens
}

/// Marks all lines of files that a parent declares as a test module.
fn mark_test_files(sources: &mut [Source]) {
    let mut declared = Vec::new();
    for source in &*sources {
        let path = source.path.strip_suffix(".rs").unwrap_or(&source.path);
        let dir = match path.rsplit_once('/') {
            Some((dir, "lib" | "main" | "mod")) => dir,
            _ => path,
        };
        for (_, _, name) in test_modules(&source.tokens) {
            declared.extend(name.map(|name| format!("{dir}/{name}")));
        }
    }
    for source in sources {
        if declared.iter().any(|place| source.is_under(place)) {
            source.test_lines = (1..=source.text.lines().count()).collect();
        }
    }
}

/// The names of all functions anywhere, tests among them.
fn functions(sources: &[Source]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in sources {
        for pair in source.tokens.windows(2) {
            if let [keyword, name] = pair
                && keyword.text == "fn"
            {
                names.insert(name.text.clone());
            }
        }
    }
    names
}

/// The names that `lib.rs` offers at the root, and the modules they come from.
fn exports(sources: &[Source]) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let lib = sources.iter().find(|source| source.path == "src/lib.rs");
    let tokens = lib.map_or(&[][..], |lib| &lib.tokens);
    for (at, token) in tokens.iter().enumerate() {
        if token.text != "use" {
            continue;
        }
        let rest = tokens.get(at + 1..).unwrap_or_default();
        let path: Vec<&Token> = rest.iter().take_while(|token| token.text != ";").collect();
        let module = path
            .iter()
            .find(|token| is_name(token) && token.text != "crate");
        if let Some(module) = module {
            for name in path.iter().filter(|token| is_name(token)) {
                names.insert(name.text.clone(), module.text.clone());
            }
        }
    }
    names
}

fn is_name(token: &Token) -> bool {
    let mut chars = token.text.chars();
    chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
}

// The rules.

fn text_rules(source: &Source, findings: &mut Vec<String>) {
    if source.text.starts_with('\u{0}') {
        findings.push(source.finding(1, "cannot be read"));
    }
    if !is_rust(&source.path) {
        return;
    }
    for (line, text) in (1..).zip(source.text.lines()) {
        let columns = text.chars().count();
        // A row of a table in a comment cannot be broken.
        let mut parts = text.split_whitespace();
        let table = matches!(parts.next(), Some("//!" | "///")) && parts.next() == Some("|");
        if columns > COLUMNS_MAX && !table {
            let what = format!("{columns} columns, at most {COLUMNS_MAX}");
            findings.push(source.finding(line, &what));
        }
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        if let Some(marker) = words.find(|word| MARKERS.contains(word)) {
            findings.push(source.finding(line, &format!("left-over {marker}")));
        }
    }
}

/// Test names and file names in a module header or in DESIGN.md must exist. A name in backquotes
/// counts as a test's when it is a claim (four words or more) or follows the word "test".
fn names_exist(source: &Source, functions: &BTreeSet<String>, findings: &mut Vec<String>) {
    let design = source.path == "DESIGN.md";
    let mut fenced = false;
    for (line, text) in (1..).zip(source.text.lines()) {
        let text = match text.trim_start().strip_prefix("//!") {
            Some(text) => text,
            None if design => text,
            None => continue,
        };
        if text.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let pieces: Vec<&str> = text.split('`').collect();
        for (before, quoted) in pieces.iter().zip(pieces.iter().skip(1)).step_by(2) {
            let name = quoted.rsplit("::").next().unwrap_or(quoted);
            let snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if !name.contains('_') || !name.chars().all(snake) {
                continue;
            }
            let before = before.trim_end();
            let named = before.ends_with("test") || before.ends_with("tests");
            let claim = name.matches('_').count() >= 3;
            if (named || claim) && !functions.contains(name) {
                findings.push(source.finding(line, &format!("no test is called {name}")));
            }
        }
    }
}

fn layer_of(module: &str) -> Option<(usize, &'static Layer)> {
    let mut layers = LAYERS.iter().enumerate();
    layers.find(|(_, layer)| layer.modules.contains(&module))
}

fn imports(source: &Source, exports: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    let Some((row, layer)) = layer_of(source.module()) else {
        let what = "is in no layer: place it in LAYERS of tests/tidy.rs";
        findings.push(source.finding(1, what));
        return;
    };
    // The root names every module, in order to offer them.
    if source.path == "src/lib.rs" {
        return;
    }
    let tokens = source.production();
    for at in 0..tokens.len() {
        for (line, name) in root_names(source, tokens.get(at..).unwrap_or_default()) {
            let module = if layer_of(name).is_some() {
                name
            } else if let Some(module) = exports.get(name) {
                module
            } else {
                continue;
            };
            let Some((target_row, target)) = layer_of(module) else {
                continue;
            };
            if target_row > row || layer.not.contains(&target.name) {
                let what = format!(
                    "layer {} imports {name} of layer {}",
                    layer.name, target.name
                );
                findings.push(source.finding(line, &what));
            }
        }
    }
}

/// The names below the crate's root that a path starting at the first token reaches: one, or
/// several for `crate::{a, b}`.
fn root_names<'a>(source: &Source, tokens: &[&'a Token]) -> Vec<(usize, &'a str)> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let segment =
        |at: usize, name: &str| text(at) == name && text(at + 1) == ":" && text(at + 2) == ":";
    let mut at = 0;
    if segment(0, "crate") {
        at = 3;
    } else {
        while segment(at, "super") {
            at += 3;
        }
        // `super` of a file in a folder is still inside that folder's module.
        let folders = source.path.matches('/').count();
        if at == 0 || at / 3 < folders {
            return Vec::new();
        }
    }
    let Some(first) = tokens.get(at) else {
        return Vec::new();
    };
    if first.text != "{" {
        return vec![(first.line, first.text.as_str())];
    }
    let mut names = Vec::new();
    let mut depth = 0;
    let mut fresh = true;
    for token in tokens.iter().skip(at) {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," => fresh = depth == 1,
            name if depth == 1 && fresh => {
                names.push((token.line, name));
                fresh = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

fn length(source: &Source, findings: &mut Vec<String>) {
    let lines = source.text.lines().count();
    let lines = lines.saturating_sub(source.test_lines.len());
    if lines > LINES_MAX {
        let what = format!("{lines} lines outside tests, at most {LINES_MAX}");
        findings.push(source.finding(1, &what));
    }
}

/// Code that is other code under test is not the code that was tested.
fn switches(source: &Source, findings: &mut Vec<String>) {
    let mut in_function = Vec::new();
    let mut head = Vec::new();
    let tokens = source.production();
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" => {
                let inside = in_function.last().copied().unwrap_or(false);
                in_function.push(inside || head.contains(&"fn"));
                head.clear();
            }
            "}" => {
                in_function.pop();
                head.clear();
            }
            ";" => head.clear(),
            "cfg" | "cfg_attr" => {
                let rest = tokens.iter().skip(at + 1);
                let condition: Vec<&str> = rest
                    .map(|token| token.text.as_str())
                    .skip_while(|text| *text == "!")
                    .take_while(|text| !matches!(*text, "]" | ";" | "{"))
                    .collect();
                let test = condition.contains(&"test");
                let inside = in_function.last().copied().unwrap_or(false);
                if test && condition.contains(&"not") {
                    findings.push(source.finding(token.line, "code that is left out under test"));
                } else if test && inside {
                    findings.push(source.finding(token.line, "a switch for tests in a function"));
                }
            }
            text => head.push(text),
        }
    }
}

fn forbidden(source: &Source, findings: &mut Vec<String>) {
    let tokens = source.production();
    let files = MAY_USE_FILES
        .iter()
        .any(|(place, _)| source.is_under(place));
    let environment = MAY_READ_ENVIRONMENT
        .iter()
        .any(|place| source.is_under(place));
    let fold = layer_of(source.module()).is_some_and(|(_, layer)| layer.name == "fold");
    let mut use_std = false;
    for (at, token) in tokens.iter().enumerate() {
        let text = |ahead: usize| {
            tokens
                .get(at + ahead)
                .map_or("", |token| token.text.as_str())
        };
        let path = |name: &str| text(0) == name && text(1) == ":" && text(2) == ":";
        use_std = (use_std && text(0) != ";") || (path("std") && text(3) == "{");
        let names_fs = (path("std") && text(3) == "fs") || (use_std && text(0) == "fs");
        if names_fs && !files {
            findings.push(source.finding(token.line, "std::fs outside storage/disk.rs"));
        }
        if path("env") && text(3).starts_with("var") && !environment {
            findings.push(source.finding(token.line, "reads the environment outside cli"));
        }
        if fold && matches!(text(0), "SystemTime" | "Instant") {
            findings.push(source.finding(token.line, "the fold knows no clock"));
        }
    }
}

// Each rule must be able to fail.

#[cfg(test)]
mod made_up {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        check(files.iter().map(owned).collect())
    }

    #[test]
    fn imports_from_below_are_found_in_every_form() {
        let tree = [
            (
                "src/lib.rs",
                "pub use store::{Store, Options};\npub use event::Event;\n",
            ),
            (
                "src/frame.rs",
                "use crate::event::Event;\nuse crate::store::Store;\n",
            ),
            (
                "src/offset.rs",
                "use crate::{\n    event::Event,\n    fold::{key, log},\n};\n",
            ),
            (
                "src/event.rs",
                "fn f() {\n    let x = crate::log::open();\n}\n",
            ),
            ("src/error.rs", "use crate::Event;\nuse crate::Store;\n"),
            ("src/partition.rs", "use super::state::State;\n"),
            (
                "src/log/commit.rs",
                "use super::segment;\nuse super::super::consumer;\n",
            ),
            (
                "src/store.rs",
                "use crate::{consumer::Consumer, log::Log};\n",
            ),
        ];
        assert_eq!(
            findings(&tree),
            [
                "src/error.rs:2: layer words imports Store of layer face",
                "src/event.rs:2: layer words imports log of layer log",
                "src/frame.rs:2: layer bytes imports store of layer face",
                "src/log/commit.rs:2: layer log imports consumer of layer drive",
                "src/offset.rs:3: layer words imports fold of layer fold",
                "src/partition.rs:1: layer words imports state of layer state",
            ]
        );
    }

    #[test]
    fn fold_may_not_see_the_log_though_it_stands_below_it() {
        let tree = [(
            "src/fold/key.rs",
            "use crate::log::Log;\nuse crate::storage::Storage;\n",
        )];
        assert_eq!(
            findings(&tree),
            [
                "src/fold/key.rs:1: layer fold imports log of layer log",
                "src/fold/key.rs:2: layer fold imports storage of layer storage",
            ]
        );
    }

    #[test]
    fn imports_in_tests_comments_and_strings_do_not_count() {
        let text = "// crate::store\n/* crate::store /* */ crate::store */\n\
            const A: &str = \"crate::store\";\nconst B: &str = r#\"\"crate::store\"#;\n\
            const C: char = '\"';\nfn f<'a>(x: &'a str) {}\n\
            #[cfg(test)]\nmod tests {\n    use crate::store::Store;\n}\n";
        assert_eq!(findings(&[("src/frame.rs", text)]), [""; 0]);
        let after = format!("{text}use crate::store::Store;\n");
        let expected = ["src/frame.rs:11: layer bytes imports store of layer face"];
        assert_eq!(findings(&[("src/frame.rs", &after)]), expected);
    }

    #[test]
    fn unplaced_file_is_found() {
        let found = findings(&[("src/misc.rs", "fn f() {}\n"), ("src/log/new.rs", "")]);
        let what = "is in no layer: place it in LAYERS of tests/tidy.rs";
        assert_eq!(found, [format!("src/misc.rs:1: {what}")]);
    }

    #[test]
    fn long_files_and_lines_are_found_but_tests_do_not_count() {
        let line = "fn f() {}\n";
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", line.repeat(1_000));
        let good = format!("{}{tests}", line.repeat(450));
        assert_eq!(findings(&[("src/frame.rs", &good)]), [""; 0]);
        let bad = format!("{}{tests}", line.repeat(451));
        let expected = ["src/frame.rs:1: 451 lines outside tests, at most 450"];
        assert_eq!(findings(&[("src/frame.rs", &bad)]), expected);

        let apart = [
            ("src/log.rs", "#[cfg(test)]\nmod tests;\n"),
            ("src/log/tests.rs", &*line.repeat(1_000)),
        ];
        assert_eq!(findings(&apart), [""; 0]);

        let [a, b] = [97, 98].map(|n| "ä".repeat(n));
        let wide = format!("/// | {a}{b} |\n// {a}\n// {b}\n");
        let expected = ["tests/x.rs:3: 101 columns, at most 100"];
        assert_eq!(findings(&[("tests/x.rs", &wide)]), expected);
    }

    #[test]
    fn markers_are_found() {
        let text = MARKERS.map(|marker| format!("fn f() {{}} // {marker}: later\n"));
        let found = findings(&[("examples/x.rs", &text.concat())]);
        let expected = (1..)
            .zip(MARKERS)
            .map(|(n, m)| format!("examples/x.rs:{n}: left-over {m}"));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn switches_for_tests_are_found_in_functions_only() {
        let text = "#[cfg(test)]\nuse a::b;\nimpl X {\n    fn f(&self) {\n        \
            #[cfg(test)]\n        g();\n        if cfg!(test) { h() }\n    }\n}\n\
            #[cfg(not(test))]\nfn k() {}\n#[cfg(feature = \"sim\")]\nmod m;\n";
        assert_eq!(
            findings(&[("src/frame.rs", text)]),
            [
                "src/frame.rs:10: code that is left out under test",
                "src/frame.rs:5: a switch for tests in a function",
                "src/frame.rs:7: a switch for tests in a function",
            ]
        );
    }

    #[test]
    fn files_environment_and_clocks_are_found_where_they_do_not_belong() {
        let text = "use std::fs::File;\nuse std::{io, fs};\nfn f() {\n    \
            std::env::var(\"X\");\n    let t = Instant::now();\n}\n";
        assert_eq!(
            findings(&[("src/fold.rs", text), ("src/cli/run.rs", text)]),
            [
                "src/fold.rs:1: std::fs outside storage/disk.rs",
                "src/fold.rs:2: std::fs outside storage/disk.rs",
                "src/fold.rs:4: reads the environment outside cli",
                "src/fold.rs:5: the fold knows no clock",
            ]
        );
    }

    #[test]
    fn names_of_tests_that_do_not_exist_are_found() {
        let header = [
            "//! - Never torn (`torn_tail_is_trimmed`, test `cut_short`).",
            "//! - Said once: `durable_upto`, `tests::torn_tail_is_gone`.",
        ];
        let header = header.join("\n");
        let tree = [
            ("src/frame.rs", &*header),
            ("tests/x.rs", "#[test]\nfn torn_tail_is_trimmed() {}\n"),
            (
                "DESIGN.md",
                "I1: `ack_is_always_durable`\n```\n`in_a_code_block`\n```\n",
            ),
        ];
        assert_eq!(
            findings(&tree),
            [
                "DESIGN.md:1: no test is called ack_is_always_durable",
                "src/frame.rs:1: no test is called cut_short",
                "src/frame.rs:2: no test is called torn_tail_is_gone",
            ]
        );
    }
}
