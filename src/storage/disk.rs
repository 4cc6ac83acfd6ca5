//! The real disk: the only place in foldlog's log that touches the file system.
//!
//! - One writer: the operating system's lock on the store's own *directory*, so there is no lock
//!   file that could be deleted or left behind (`second_handle_in_one_process_is_refused`,
//!   `lock_survives_the_removal_of_every_file`).
//! - The file `WRITER` holds the writer's process id for messages and decides nothing
//!   (`busy_names_the_holder_and_release_forgets_it`).
//! - A directory is durable when `create_dir` returns, also one that a killed process made before
//!   us and never synced.
#![expect(
    clippy::disallowed_methods,
    reason = "this file is the one place that may open, rename and remove files and read the clock"
)]

use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::BuildHasher;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::{DirEntry, Lock, OpenMode, Storage, StorageFile};

#[cfg(not(unix))]
compile_error!("foldlog needs a Unix system: positional I/O and a lock on a directory");

/// Holds the writer's process id in decimal and a newline; empty when nobody writes.
const WRITER_FILE: &str = "WRITER";
/// The longest content of [`WRITER_FILE`] that we would write: 10 digits and the newline.
const WRITER_BYTES_MAX: usize = 11;

/// One store's directory on the real file system.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    root: PathBuf,
}

impl Disk {
    /// The store at `root`. Touches nothing: the directory may be missing.
    pub(crate) fn open(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        // Absolute, so that a later change of the working directory does not move the store.
        let root = std::path::absolute(&root).unwrap_or(root);
        Self { root }
    }

    /// Writes our process id for others to name in their messages. Best effort.
    fn note_writer(&self) -> Option<File> {
        let path = self.path(WRITER_FILE);
        refuse_special(&path).ok()?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .ok()?;
        file.write_all_at(format!("{}\n", process::id()).as_bytes(), 0)
            .ok()?;
        Some(file)
    }

    /// The process id in [`WRITER_FILE`], if there is a whole one.
    fn noted_writer(&self) -> Option<u32> {
        let path = self.path(WRITER_FILE);
        refuse_special(&path).ok()?;
        let mut bytes = [0; WRITER_BYTES_MAX];
        let read = File::open(path).ok()?.read_at(&mut bytes, 0).ok()?;
        // Without the newline the number may be cut short and name an innocent process.
        let digits = bytes.get(..read)?.strip_suffix(b"\n")?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

impl Storage for Disk {
    fn create_dir(&self, dir: &str) -> io::Result<()> {
        if dir.is_empty() || !self.root.is_dir() {
            let missing: Vec<&Path> = self
                .root
                .ancestors()
                .skip(1)
                .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
                .collect();
            for path in missing.into_iter().rev() {
                make_dir(path)?;
            }
            make_dir(&self.root)?;
        }
        let mut path = self.root.clone();
        for part in dir.split('/').filter(|part| !part.is_empty()) {
            path.push(part);
            make_dir(&path)?;
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.path(dir))? {
            let entry = entry?;
            // Following links, as `open` will; a dangling one is listed as itself.
            let found = fs::metadata(entry.path()).or_else(|_| entry.metadata());
            let metadata = match found {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let is_dir = metadata.is_dir();
            entries.push(DirEntry {
                name: entry.file_name().to_string_lossy().into_owned(),
                is_dir,
                len: if is_dir { 0 } else { metadata.len() },
            });
        }
        Ok(entries)
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Box<dyn StorageFile>> {
        let path = self.path(file);
        refuse_special(&path)?;
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
            }
            OpenMode::Create => {
                options.write(true).create(true).truncate(true);
            }
        }
        Ok(Box::new(DiskFile(options.open(path)?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.path(from), self.path(to));
        // The system would replace an empty directory without a word.
        if fs::symlink_metadata(&from)?.is_dir() && fs::symlink_metadata(&to).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        fs::rename(from, to)
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        fs::remove_file(self.path(file))
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        fs::remove_dir_all(self.path(dir))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        sync_path(&self.path(dir))
    }

    fn try_lock(&self) -> io::Result<Lock> {
        let dir = File::open(&self.root)?;
        match dir.try_lock() {
            Ok(()) => {
                let note = self.note_writer();
                Ok(Lock::Held(Box::new(Guard { dir, note })))
            }
            Err(TryLockError::WouldBlock) => Ok(Lock::Busy {
                pid: self.noted_writer(),
            }),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn writer_is_live(&self) -> io::Result<bool> {
        let dir = File::open(&self.root)?;
        // Shared, so that two readers that ask at the same time do not take each other for a
        // writer.
        match dir.try_lock_shared() {
            Ok(()) => dir.unlock().map(|()| false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn now_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| {
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            })
    }

    fn random(&self) -> u64 {
        // `RandomState` is keyed by the system's random numbers, but the keys of one thread differ
        // only by one; SipHash over a count and the clock spreads them.
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        std::hash::RandomState::new().hash_one((call, process::id(), SystemTime::now()))
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() {
            self.root.clone()
        } else {
            self.root.join(name)
        }
    }
}

/// Refuses what is there but is no file. A pipe or device under one of our names would block the
/// open for ever, and a directory would open for reading.
fn refuse_special(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(metadata) if !metadata.is_file() => Err(ErrorKind::InvalidInput.into()),
        // Whatever is wrong with the path, the open says it better.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Creates one directory if it is missing and makes its name durable.
fn make_dir(path: &Path) -> io::Result<()> {
    let existed = match fs::create_dir(path) {
        Ok(()) => false,
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => true,
        Err(error) => return Err(error),
    };
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    match sync_path(parent) {
        // A directory that stood there before us, in one that we may enter but not read: whoever
        // made it had more rights, and we cannot sync it.
        Err(error) if existed && error.kind() == ErrorKind::PermissionDenied => Ok(()),
        result => result,
    }
}

fn sync_path(dir: &Path) -> io::Result<()> {
    // With the dot a file of that name is refused, and the parent of a bare name is found.
    File::open(dir.join("."))?.sync_all()
}

/// The held lock.
#[derive(Debug)]
struct Guard {
    dir: File,
    note: Option<File>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Through the descriptor, not the name: the file may be someone else's by now. Both are
        // best effort; the note is information, and closing the directory releases the lock too.
        if let Some(note) = &self.note {
            drop(note.set_len(0));
        }
        // Not left to the closing alone: a child between fork and exec holds a copy of the
        // descriptor for a moment, and the next open would find the store busy.
        drop(self.dir.unlock());
    }
}

/// One open file.
#[derive(Debug)]
struct DiskFile(File);

impl StorageFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.0.read_at(buf, position)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        self.0.write_at(bytes, position)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        // Data and length, not the times.
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (tempfile::TempDir, Disk) {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::open(dir.path());
        (dir, disk)
    }

    fn held(disk: &Disk) -> Box<dyn std::fmt::Debug + Send + Sync> {
        match disk.try_lock().unwrap() {
            Lock::Held(guard) => guard,
            Lock::Busy { pid } => panic!("busy, held by {pid:?}"),
        }
    }

    fn is_busy(disk: &Disk) -> bool {
        matches!(disk.try_lock().unwrap(), Lock::Busy { .. })
    }

    #[test]
    fn second_handle_in_one_process_is_refused() {
        let (dir, disk) = disk();
        let guard = held(&disk);
        assert!(is_busy(&disk));
        assert!(is_busy(&Disk::open(dir.path())));
        assert!(disk.writer_is_live().unwrap());
        drop(guard);
        assert!(!disk.writer_is_live().unwrap());
        drop(held(&disk));
    }

    #[test]
    fn lock_survives_the_removal_of_every_file() {
        let (_dir, disk) = disk();
        disk.create_dir("log").unwrap();
        disk.open("log/a.seg", OpenMode::Create).unwrap();
        let _guard = held(&disk);
        disk.remove_dir("log").unwrap();
        for entry in disk.list("").unwrap() {
            disk.remove(&entry.name).unwrap();
        }
        assert!(disk.list("").unwrap().is_empty());
        assert!(is_busy(&disk));
        assert!(disk.writer_is_live().unwrap());
    }

    #[test]
    fn busy_names_the_holder_and_release_forgets_it() {
        let (dir, disk) = disk();
        let guard = held(&disk);
        let Lock::Busy { pid } = disk.try_lock().unwrap() else {
            panic!("not busy")
        };
        assert_eq!(pid, Some(process::id()));
        // Cut short, it could name an innocent process.
        fs::write(dir.path().join("WRITER"), "12").unwrap();
        assert_eq!(disk.noted_writer(), None);
        drop(guard);
        assert_eq!(fs::read(dir.path().join("WRITER")).unwrap(), b"");
    }

    #[test]
    fn a_note_that_cannot_be_written_does_not_cost_the_lock() {
        let (dir, disk) = disk();
        fs::create_dir(dir.path().join("WRITER")).unwrap();
        let _guard = held(&disk);
        let Lock::Busy { pid: None } = disk.try_lock().unwrap() else {
            panic!("not busy, or a process named")
        };
    }

    #[test]
    fn asking_for_the_writer_changes_nothing_and_disturbs_no_one() {
        let (dir, disk) = disk();
        assert!(!disk.writer_is_live().unwrap());
        assert!(disk.list("").unwrap().is_empty());
        // A reader that asks meanwhile is not taken for a writer …
        let probe = File::open(dir.path()).unwrap();
        probe.try_lock_shared().unwrap();
        assert!(!disk.writer_is_live().unwrap());
        drop(probe);
        let guard = held(&disk);
        let before = fs::metadata(dir.path()).unwrap().modified().unwrap();
        for _ in 0..100 {
            assert!(disk.writer_is_live().unwrap());
        }
        // … and asking does not take the writer's lock away.
        assert!(is_busy(&disk));
        let after = fs::metadata(dir.path()).unwrap().modified().unwrap();
        assert_eq!(after, before);
        drop(guard);
        // Nor does an answer hold anything.
        drop(held(&disk));
    }

    #[test]
    fn a_missing_store_is_not_created_by_asking() {
        let (dir, _) = disk();
        let disk = Disk::open(dir.path().join("none"));
        for error in [
            disk.try_lock().unwrap_err(),
            disk.writer_is_live().unwrap_err(),
            disk.list("").unwrap_err(),
            disk.open("log/a", OpenMode::Create).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        assert!(!dir.path().join("none").exists());
    }

    #[test]
    fn create_dir_makes_parents_also_above_the_store_and_accepts_what_is_there() {
        let (dir, _) = disk();
        let disk = Disk::open(dir.path().join("a/b"));
        disk.create_dir("state/orders/3").unwrap();
        disk.create_dir("state/orders/3").unwrap();
        disk.create_dir("").unwrap();
        assert!(dir.path().join("a/b/state/orders/3").is_dir());
        disk.open("file", OpenMode::Create).unwrap();
        assert!(disk.create_dir("file").is_err());
        assert!(disk.create_dir("file/x").is_err());
    }

    #[test]
    fn bytes_are_read_and_written_at_positions() {
        let (_dir, disk) = disk();
        let file = disk.open("f", OpenMode::Create).unwrap();
        assert_eq!(file.write_at(b"world", 6).unwrap(), 5);
        assert_eq!(file.write_at(b"hello", 0).unwrap(), 5);
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 11);
        let file = disk.open("f", OpenMode::Read).unwrap();
        let mut buf = [1; 16];
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 11);
        assert_eq!(&buf[..11], b"hello\0world");
        assert_eq!(file.read_at(&mut buf, 11).unwrap(), 0);
        assert!(file.write_at(b"x", 0).is_err());
        let file = disk.open("f", OpenMode::Write).unwrap();
        file.set_len(2).unwrap();
        file.set_len(4).unwrap();
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 4);
        assert_eq!(&buf[..4], b"he\0\0");
        assert_eq!(
            disk.open("f", OpenMode::Create).unwrap().len().unwrap(),
            0,
            "create empties"
        );
        assert_eq!(
            disk.open("g", OpenMode::Write).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }

    #[test]
    fn names_are_listed_renamed_and_removed() {
        let (_dir, disk) = disk();
        disk.create_dir("d").unwrap();
        disk.create_dir("e").unwrap();
        for (name, bytes) in [("a", "1"), ("b", "22")] {
            let file = disk.open(name, OpenMode::Create).unwrap();
            file.write_at(bytes.as_bytes(), 0).unwrap();
        }
        disk.rename("a", "b").unwrap();
        assert_eq!(
            disk.rename("d", "e").unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        disk.rename("d", "c").unwrap();
        disk.sync_dir("").unwrap();
        let mut entries = disk.list("").unwrap();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let found: Vec<_> = entries
            .iter()
            .map(|entry| (entry.name.as_str(), entry.is_dir, entry.len))
            .collect();
        assert_eq!(found, [("b", false, 1), ("c", true, 0), ("e", true, 0)]);
        disk.remove("b").unwrap();
        disk.remove_dir("c").unwrap();
        disk.remove_dir("e").unwrap();
        assert!(disk.list("").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_file_is_refused_instead_of_blocking() {
        let (dir, disk) = disk();
        fs::create_dir(dir.path().join("d")).unwrap();
        let pipe = dir.path().join("pipe");
        let made = process::Command::new("mkfifo").arg(&pipe).status();
        for mode in [OpenMode::Read, OpenMode::Write, OpenMode::Create] {
            assert!(disk.open("d", mode).is_err());
            if made.as_ref().is_ok_and(process::ExitStatus::success) {
                assert!(disk.open("pipe", mode).is_err());
            }
        }
    }

    #[test]
    fn random_numbers_differ() {
        let (_dir, disk) = disk();
        let numbers: std::collections::BTreeSet<u64> = (0..1000).map(|_| disk.random()).collect();
        assert_eq!(numbers.len(), 1000);
    }
}
