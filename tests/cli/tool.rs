//! The binary, called on a directory of its own.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use serde_json::Value;

/// A directory to work in; the store in it is `foldlog-data`, the tool's default.
pub(crate) struct Tool {
    dir: tempfile::TempDir,
}

/// What a command wrote and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        Self {
            code: output.status.code().expect("it ended by itself"),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout: {}\nstderr: {}",
            self.out, self.err
        );
        self
    }

    /// The one JSON object it wrote.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(
            self.out.lines().count(),
            1,
            "one line of JSON: {}",
            self.out
        );
        serde_json::from_str(&self.out).expect("JSON")
    }

    /// The JSON objects it wrote, one a line.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }
}

impl Tool {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("foldlog-data")
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn append(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(self.path(name))
            .unwrap();
        file.write_all(bytes.as_ref()).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foldlog"));
        command.args(args).current_dir(self.dir.path());
        command.env_remove("FOLDLOG_STORE").stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    /// Runs it with this on its standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // It may stop before it has read everything.
            scope.spawn(move || drop(stdin.write_all(input)));
            child.wait_with_output().unwrap().into()
        })
    }

    pub(crate) fn status(&self) -> Value {
        self.run(&["status", "--json"]).ended(0).json()
    }

    /// The figures of `status` that may not depend on how the store came about.
    pub(crate) fn figures(&self) -> Value {
        let mut status = self.status();
        let all = status.as_object_mut().unwrap();
        for other in ["store", "recovery", "opening", "segments"] {
            assert!(all.remove(other).is_some(), "{other}");
        }
        status
    }

    /// Ids in the log, in order.
    pub(crate) fn ids(&self) -> Vec<String> {
        let log = self.run(&["log", "--json"]).ended(0).json_lines();
        let id = |record: &Value| record["event"]["id"].as_str().map(str::to_owned);
        log.iter().filter_map(id).collect()
    }
}

/// An event line of the orders machine.
pub(crate) fn order(id: &str, key: &str, version: i64, kind: &str) -> String {
    serde_json::json!({ "id": id, "order_id": key, "version": version, "type": kind }).to_string()
}

/// Everything under a directory: name, kind, time of modification, and bytes.
pub(crate) type Everything = BTreeMap<PathBuf, (bool, SystemTime, Vec<u8>)>;

pub(crate) const NONE: [PathBuf; 0] = [];

/// What came, went or changed.
pub(crate) fn changed(before: &Everything, after: &Everything) -> Vec<PathBuf> {
    let names = before.keys().chain(after.keys()).cloned();
    let mut names: Vec<PathBuf> = names
        .filter(|name| before.get(name) != after.get(name))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Looks at everything under a directory.
pub(crate) fn everything(dir: &Path) -> Everything {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(path) = open.pop() {
        let about = std::fs::symlink_metadata(&path).unwrap();
        let bytes = if about.is_dir() {
            open.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            Vec::new()
        } else {
            std::fs::read(&path).unwrap()
        };
        found.insert(path, (about.is_dir(), about.modified().unwrap(), bytes));
    }
    found
}

/// Copies a directory.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A file of the real data, or `None` with a printed reason: it may not be copied into the
/// repository.
pub(crate) fn real_data(name: &str) -> Option<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../shared/data")
        .join(name);
    if path.exists() {
        return Some(path.to_str().unwrap().to_owned());
    }
    // Past the test harness, which hides what a passing test prints: CI looks for these words.
    let mut err = std::io::stderr().lock();
    writeln!(err, "data test skipped: ../shared/data/{name} is not here").unwrap();
    None
}
