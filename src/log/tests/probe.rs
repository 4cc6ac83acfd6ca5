//! A storage around another one that watches the order of calls, and can stall syncs and fail
//! calls of a chosen kind.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use crate::storage::{DirEntry, Lock, OpenMode, Storage, StorageFile};

/// What a call is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Open,
    Rename,
    SyncDir,
    Remove,
    Write,
    SetLen,
    Sync,
    Read,
}

/// What shall become of it.
pub(super) enum Verdict {
    Go,
    /// A write takes only so many bytes.
    Short(usize),
    /// The system's error number.
    Fail(i32),
}

pub(super) const EIO: i32 = 5;
pub(super) const EMFILE: i32 = 24;
pub(super) const ENOSPC: i32 = 28;

type Judge = Box<dyn FnMut(Call, &str) -> Verdict + Send>;

#[derive(Default)]
struct Seen {
    names: BTreeMap<String, usize>,
    /// Of each file: what was written since the last sync, with the number of the write.
    unsynced: Vec<Vec<(u64, u64, u64)>>,
    /// Names that their directory does not safely have.
    loose: BTreeSet<String>,
    writes: u64,
    syncs: u64,
    violations: Vec<String>,
    stall: Option<Call>,
    stalled: usize,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
    judge: Mutex<Option<Judge>>,
}

#[derive(Clone)]
pub(super) struct Probe {
    inner: Arc<dyn Storage>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

impl Probe {
    pub(super) fn new(inner: impl Storage + 'static) -> Self {
        Self {
            inner: Arc::new(inner),
            shared: Arc::default(),
        }
    }

    pub(super) fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    /// Lets `judge` decide about every call from now on.
    pub(super) fn judge(&self, judge: impl FnMut(Call, &str) -> Verdict + Send + 'static) {
        *self.shared.judge.lock().unwrap() = Some(Box::new(judge));
    }

    pub(super) fn acquit(&self) {
        *self.shared.judge.lock().unwrap() = None;
    }

    /// Syncs of files wait from now on.
    pub(super) fn stall(&self) {
        self.stall_at(Call::Sync);
    }

    /// Syncs of files, or writes to them, wait from now on.
    pub(super) fn stall_at(&self, call: Call) {
        self.shared.seen.lock().unwrap().stall = Some(call);
    }

    /// Waits until so many of them are stalled.
    pub(super) fn wait_stalled(&self, n: usize) {
        let seen = self.shared.seen.lock().unwrap();
        drop(
            self.shared
                .changed
                .wait_while(seen, |seen| seen.stalled < n)
                .unwrap(),
        );
    }

    /// Lets stalled calls, and all later ones, go on.
    pub(super) fn go_on(&self) {
        self.shared.seen.lock().unwrap().stall = None;
        self.shared.changed.notify_all();
    }

    pub(super) fn syncs(&self) -> u64 {
        self.shared.seen.lock().unwrap().syncs
    }

    pub(super) fn writes(&self) -> u64 {
        self.shared.seen.lock().unwrap().writes
    }

    /// The longest write of the log that no sync has covered yet.
    pub(super) fn longest_unsynced(&self) -> u64 {
        let seen = self.shared.seen.lock().unwrap();
        let all = seen.unsynced.iter().flatten();
        all.map(|(_, _, len)| *len).max().unwrap_or(0)
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.shared.seen.lock().unwrap().violations.clone()
    }

    /// Waits here while calls of this kind are to wait; answers how many writes had been made then.
    fn pass(&self, call: Call) -> u64 {
        let mut seen = self.shared.seen.lock().unwrap();
        let writes = seen.writes;
        if seen.stall == Some(call) {
            seen.stalled += 1;
            self.shared.changed.notify_all();
            let stalled = |seen: &mut Seen| seen.stall == Some(call);
            seen = self.shared.changed.wait_while(seen, stalled).unwrap();
            seen.stalled -= 1;
        }
        writes
    }

    fn ask(&self, call: Call, name: &str) -> io::Result<Option<usize>> {
        let mut judge = self.shared.judge.lock().unwrap();
        match judge.as_mut().map(|judge| judge(call, name)) {
            None | Some(Verdict::Go) => Ok(None),
            Some(Verdict::Short(len)) => Ok(Some(len)),
            Some(Verdict::Fail(errno)) => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Seen {
    fn id(&mut self, name: &str) -> usize {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        self.unsynced.push(Vec::new());
        let id = self.unsynced.len() - 1;
        self.names.insert(name.to_owned(), id);
        id
    }
}

impl Storage for Probe {
    fn create_dir(&self, dir: &str) -> io::Result<()> {
        self.inner.create_dir(dir)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Box<dyn StorageFile>> {
        let create = mode == OpenMode::Create;
        self.ask(if create { Call::Create } else { Call::Open }, file)?;
        let inner = self.inner.open(file, mode)?;
        let mut seen = self.shared.seen.lock().unwrap();
        if create && file.ends_with(".seg.new") {
            let dirty: Vec<String> = seen
                .names
                .iter()
                .filter(|(name, id)| name.ends_with(".seg") && !seen.unsynced[**id].is_empty())
                .map(|(name, _)| format!("{file} created before {name} was synced"))
                .collect();
            seen.violations.extend(dirty);
        }
        if create {
            seen.names.remove(file);
            seen.loose.insert(file.to_owned());
        }
        let id = seen.id(file);
        drop(seen);
        Ok(Box::new(ProbeFile {
            inner,
            probe: self.clone(),
            id,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.ask(Call::Rename, from)?;
        self.inner.rename(from, to)?;
        let mut seen = self.shared.seen.lock().unwrap();
        if let Some(id) = seen.names.remove(from) {
            seen.names.insert(to.to_owned(), id);
        }
        if seen.loose.remove(from) {
            seen.violations
                .push(format!("{from} renamed before its directory was synced"));
        }
        seen.loose.insert(to.to_owned());
        Ok(())
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        self.ask(Call::Remove, file)?;
        self.inner.remove(file)?;
        let mut seen = self.shared.seen.lock().unwrap();
        seen.names.remove(file);
        seen.loose.remove(file);
        Ok(())
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.ask(Call::SyncDir, dir)?;
        self.inner.sync_dir(dir)?;
        let prefix = format!("{dir}/");
        let mut seen = self.shared.seen.lock().unwrap();
        seen.loose.retain(|name| !name.starts_with(&prefix));
        Ok(())
    }

    fn try_lock(&self) -> io::Result<Lock> {
        self.inner.try_lock()
    }

    fn writer_is_live(&self) -> io::Result<bool> {
        self.inner.writer_is_live()
    }

    fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.inner.path(name)
    }
}

#[derive(Debug)]
struct ProbeFile {
    inner: Box<dyn StorageFile>,
    probe: Probe,
    id: usize,
}

impl ProbeFile {
    fn name(&self) -> String {
        let seen = self.probe.shared.seen.lock().unwrap();
        let found = seen.names.iter().find(|(_, id)| **id == self.id);
        found.map(|(name, _)| name.clone()).unwrap_or_default()
    }
}

impl StorageFile for ProbeFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.probe.ask(Call::Read, &self.name())?;
        self.inner.read_at(buf, position)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        let name = self.name();
        self.probe.pass(Call::Write);
        let short = self.probe.ask(Call::Write, &name)?;
        let mut seen = self.probe.shared.seen.lock().unwrap();
        if name.ends_with(".seg") && seen.loose.contains(&name) {
            seen.violations
                .push(format!("{name} written before its directory was synced"));
        }
        seen.writes += 1;
        let entry = (seen.writes, position, bytes.len() as u64);
        seen.unsynced[self.id].push(entry);
        drop(seen);
        self.inner.write_at(
            &bytes[..short.unwrap_or(bytes.len()).min(bytes.len())],
            position,
        )
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.probe.ask(Call::SetLen, &self.name())?;
        self.inner.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        // What was written before the sync started is covered, and no more.
        let covered = self.probe.pass(Call::Sync);
        self.probe.ask(Call::Sync, &self.name())?;
        self.inner.sync()?;
        let mut seen = self.probe.shared.seen.lock().unwrap();
        seen.syncs += 1;
        seen.unsynced[self.id].retain(|(write, _, _)| *write > covered);
        Ok(())
    }
}
