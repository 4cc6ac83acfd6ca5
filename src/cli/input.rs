//! Inputs: regular files, which are resumed, and streams, which are only if they have a name.
//!
//! This is the one place of the command line that opens files which are not the store's.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::output::{Answer, Failure};
use super::text::escape;

/// Bytes asked for per read.
const BUFFER: usize = 256 * 1024;

/// An opened input.
#[derive(Debug)]
pub(super) struct Input {
    /// For messages: safe for a terminal.
    pub(super) name: String,
    /// Under which name the store remembers how far it was read.
    pub(super) upstream: Option<String>,
    /// Where its refused lines go, without `.refused.jsonl`.
    pub(super) refused_stem: PathBuf,
    pub(super) kind: Kind,
}

/// What can be done with an input.
#[derive(Debug)]
pub(super) enum Kind {
    /// A regular file of this length.
    File(File, u64),
    /// A pipe or device that was opened by name.
    Pipe(File),
    /// Standard input.
    Stdin,
}

/// Reads a stream of input, whatever it is.
pub(super) type Stream<'a> = BufReader<Box<dyn Read + 'a>>;

impl Input {
    /// Opens `path`, or standard input for `-`.
    pub(super) fn open(path: &Path, upstream: Option<&str>) -> Answer<Self> {
        let upstream = upstream.map(str::to_owned);
        if path == Path::new("-") {
            let (name, refused_stem) = ("standard input".to_owned(), PathBuf::from("stdin"));
            return Ok(Self {
                name,
                upstream,
                refused_stem,
                kind: Kind::Stdin,
            });
        }
        let name = escape(&path.display().to_string());
        let file = open(path).map_err(|error| Failure::io("open", &name, &error))?;
        let about = file
            .metadata()
            .map_err(|error| Failure::io("read", &name, &error))?;
        let refused_stem = path.to_owned();
        if about.is_dir() {
            return Err(Failure::new(format!("{name} is a directory")));
        }
        if !about.is_file() {
            return Ok(Self {
                name,
                upstream,
                refused_stem,
                kind: Kind::Pipe(file),
            });
        }
        let upstream = match upstream {
            Some(upstream) => upstream,
            None => canonical(path, &name)?,
        };
        let kind = Kind::File(file, about.len());
        Ok(Self {
            name,
            upstream: Some(upstream),
            refused_stem,
            kind,
        })
    }

    /// The input from byte `position` of a file, and from where a stream is.
    pub(super) fn stream(&self, position: u64) -> Answer<Stream<'_>> {
        let reader: Box<dyn Read> = match &self.kind {
            Kind::File(file, _) => {
                let mut file = file;
                let moved = file.seek(SeekFrom::Start(position));
                moved.map_err(|error| self.failed("read", &error))?;
                Box::new(file)
            }
            Kind::Pipe(file) => Box::new(file),
            Kind::Stdin => Box::new(io::stdin()),
        };
        Ok(BufReader::with_capacity(BUFFER, reader))
    }

    /// Its length, where it has one.
    pub(super) fn len(&self) -> Option<u64> {
        match &self.kind {
            Kind::File(_, len) => Some(*len),
            Kind::Pipe(_) | Kind::Stdin => None,
        }
    }

    pub(super) fn failed(&self, doing: &str, error: &io::Error) -> Failure {
        Failure::io(doing, &self.name, error)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "an input file, not one of the store"
)]
fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// The upstream of a file: its one path, so that the same file by another path is not stored twice.
fn canonical(path: &Path, name: &str) -> Answer<String> {
    let path = path
        .canonicalize()
        .map_err(|error| Failure::io("find", name, &error))?;
    match path.to_str() {
        Some(path) => Ok(format!("file:{path}")),
        None => Err(Failure::new(format!("the path of {name} is not UTF-8"))
            .help("give the input a name with --upstream")),
    }
}
