//! The file that refused lines are collected in, to be mended and ingested alone.
//!
//! - Nothing that exists is overwritten: the file is always a new one.
//! - A line is in it, and synced, before the store is told that the line was read
//!   (`ingest.rs` calls [`Refused::sync`] before each append).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::output::{Answer, Failure};
use super::text::escape;

/// Names tried before giving up.
const NAMES_MAX: u32 = 10_000;

/// See the module. The file is made with the first refused line.
#[derive(Debug)]
pub(super) struct Refused {
    /// What the caller asked for, if he did.
    wanted: Option<PathBuf>,
    stem: PathBuf,
    file: Option<(File, PathBuf)>,
    dirty: bool,
}

impl Refused {
    pub(super) fn new(wanted: Option<&Path>, stem: &Path) -> Self {
        Self {
            wanted: wanted.map(Path::to_owned),
            stem: stem.to_owned(),
            file: None,
            dirty: false,
        }
    }

    /// The file, once it exists.
    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(_, path)| path.as_path())
    }

    /// Adds bytes of a refused line; the file is made if need be.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Answer<()> {
        let (file, path) = match &mut self.file {
            Some(file) => file,
            None => self
                .file
                .insert(create(self.wanted.as_deref(), &self.stem)?),
        };
        self.dirty = true;
        file.write_all(bytes)
            .map_err(|error| Failure::io("write", &shown(path), &error))
    }

    /// Makes what was added durable.
    pub(super) fn sync(&mut self) -> Answer<()> {
        let Some((file, path)) = self.file.as_ref().filter(|_| self.dirty) else {
            return Ok(());
        };
        file.sync_all()
            .map_err(|error| Failure::io("sync", &shown(path), &error))?;
        self.dirty = false;
        Ok(())
    }
}

fn shown(path: &Path) -> String {
    escape(&path.display().to_string())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a file beside the input, not one of the store"
)]
fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Makes the file that was asked for; or one beside the input, or where that is not allowed one in
/// the working directory, under the first name that is free.
fn create(wanted: Option<&Path>, stem: &Path) -> Answer<(File, PathBuf)> {
    if let Some(path) = wanted {
        let file = create_new(path).map_err(|error| Failure::io("create", &shown(path), &error))?;
        return Ok((file, path.to_owned()));
    }
    match first_free(stem) {
        Ok(made) => Ok(made),
        Err((path, error)) => {
            let here = stem.file_name().map(PathBuf::from);
            let made = here
                .filter(|here| here != stem)
                .map(|here| first_free(&here));
            made.and_then(Result::ok).ok_or_else(|| {
                Failure::io("create", &shown(&path), &error)
                    .help("name a file for the refused lines with --refused")
            })
        }
    }
}

fn first_free(stem: &Path) -> Result<(File, PathBuf), (PathBuf, io::Error)> {
    let mut last = (stem.to_owned(), io::ErrorKind::AlreadyExists.into());
    for n in 1..=NAMES_MAX {
        let mut path = stem.as_os_str().to_owned();
        match n {
            1 => path.push(".refused.jsonl"),
            n => path.push(format!(".refused-{n}.jsonl")),
        }
        let path = PathBuf::from(path);
        match create_new(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) => {
                let taken = error.kind() == io::ErrorKind::AlreadyExists;
                last = (path, error);
                if !taken {
                    break;
                }
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_exists_is_never_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let stem = dir.path().join("in.jsonl");
        for name in [
            "in.jsonl.refused.jsonl",
            "in.jsonl.refused-2.jsonl",
            "in.jsonl.refused-3.jsonl",
        ] {
            let mut refused = Refused::new(None, &stem);
            assert_eq!(refused.path(), None);
            refused.write(name.as_bytes()).unwrap();
            refused.sync().unwrap();
            assert_eq!(refused.path(), Some(dir.path().join(name).as_path()));
        }
        let first = dir.path().join("in.jsonl.refused.jsonl");
        assert_eq!(std::fs::read(&first).unwrap(), b"in.jsonl.refused.jsonl");
        let mut asked = Refused::new(Some(&first), &stem);
        assert!(
            asked
                .write(b"x")
                .unwrap_err()
                .message
                .starts_with("cannot create")
        );
    }
}
