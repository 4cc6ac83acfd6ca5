//! Counts the calls of the simulated disk, writes them down, and makes chosen ones fail.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

/// A kind of call to the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKind {
    /// `create_dir`.
    CreateDir,
    /// `list`.
    List,
    /// `open` for reading, or for writing what exists.
    Open,
    /// `open` that creates or empties.
    Create,
    /// `rename`.
    Rename,
    /// `remove`.
    Remove,
    /// `remove_dir`.
    RemoveDir,
    /// `sync_dir`.
    SyncDir,
    /// `try_lock`.
    TryLock,
    /// `writer_is_live`.
    WriterIsLive,
    /// `len` of a file.
    Len,
    /// `read_at` of a file.
    Read,
    /// `write_at` of a file.
    Write,
    /// `set_len` of a file.
    SetLen,
    /// `sync` of a file.
    Sync,
}

impl CallKind {
    /// Every kind.
    pub const ALL: [Self; 15] = [
        Self::CreateDir,
        Self::List,
        Self::Open,
        Self::Create,
        Self::Rename,
        Self::Remove,
        Self::RemoveDir,
        Self::SyncDir,
        Self::TryLock,
        Self::WriterIsLive,
        Self::Len,
        Self::Read,
        Self::Write,
        Self::SetLen,
        Self::Sync,
    ];

    /// Whether such a call changes names, lengths or bytes. What opens a store read-only may make
    /// none of them.
    #[must_use]
    pub fn changes(self) -> bool {
        match self {
            Self::CreateDir
            | Self::Create
            | Self::Rename
            | Self::Remove
            | Self::RemoveDir
            | Self::Write
            | Self::SetLen => true,
            Self::List
            | Self::Open
            | Self::SyncDir
            | Self::TryLock
            | Self::WriterIsLive
            | Self::Len
            | Self::Read
            | Self::Sync => false,
        }
    }
}

/// One call as it was made, for monitors of order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// Its number, from 1.
    pub number: u64,
    /// What was called.
    pub kind: CallKind,
    /// The file or directory; for a rename the old name. An open file goes by the name it has now.
    pub name: Arc<str>,
    /// The new name of a rename, else empty.
    pub to: Arc<str>,
    /// The byte position of a read or write, the length of a `set_len`, else 0.
    pub position: u64,
    /// The bytes asked for by a read or write, else 0.
    pub len: u64,
    /// Whether a fault (or the crash) answered in place of the disk, wholly or in part.
    pub disturbed: bool,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.number, self.kind, self.name)?;
        if !self.to.is_empty() {
            write!(f, " -> {}", self.to)?;
        }
        match self.kind {
            CallKind::Read | CallKind::Write => write!(f, " at {} +{}", self.position, self.len)?,
            CallKind::SetLen => write!(f, " to {}", self.position)?,
            CallKind::CreateDir
            | CallKind::List
            | CallKind::Open
            | CallKind::Create
            | CallKind::Rename
            | CallKind::Remove
            | CallKind::RemoveDir
            | CallKind::SyncDir
            | CallKind::TryLock
            | CallKind::WriterIsLive
            | CallKind::Len
            | CallKind::Sync => {}
        }
        if self.disturbed {
            f.write_str(" (disturbed)")?;
        }
        Ok(())
    }
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// `EIO`. A `sync` that fails so leaves its bytes readable but forgotten: no later sync writes
    /// them unless they are written again.
    Io,
    /// `ENOSPC`; for a `sync` as [`Fault::Io`].
    NoSpace,
    /// `EINTR`; nothing is done, nothing is forgotten. For ever means every second matching call,
    /// so that callers who try again get on.
    Interrupted,
    /// `EMFILE`.
    TooManyFiles,
    /// `EACCES`.
    Permission,
    /// A read or write does the first half of its bytes (at least one) and says so. Does nothing to
    /// other kinds.
    Short,
    /// A write does the first half of its bytes and then says `EIO`. Other kinds fail as with
    /// [`Fault::Io`].
    Partial,
    /// A `sync` or `sync_dir` does nothing and says that all went well: a disk that lies. Does
    /// nothing to other kinds. No store survives it; it proves that a test can fail.
    Lie,
}

impl Fault {
    fn error(self) -> io::Error {
        // The numbers are the same on every system that foldlog runs on.
        io::Error::from_raw_os_error(match self {
            Self::Io | Self::Partial | Self::Short | Self::Lie => 5,
            Self::NoSpace => 28,
            Self::Interrupted => 4,
            Self::TooManyFiles => 24,
            Self::Permission => 13,
        })
    }
}

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// At the chosen call only.
    Once,
    /// At the chosen call and every matching one after it.
    Forever,
}

/// Which calls a fault is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    kinds: Vec<CallKind>,
    prefix: String,
}

impl Filter {
    /// Every call.
    #[must_use]
    pub fn any() -> Self {
        Self::kinds(&CallKind::ALL)
    }

    /// Calls of these kinds.
    #[must_use]
    pub fn kinds(kinds: &[CallKind]) -> Self {
        Self {
            kinds: kinds.to_vec(),
            prefix: String::new(),
        }
    }

    /// Calls that change names, lengths or bytes: what a read-only file system refuses.
    #[must_use]
    pub fn changes() -> Self {
        let changes = CallKind::ALL.iter().copied();
        Self {
            kinds: changes.filter(|kind| kind.changes()).collect(),
            prefix: String::new(),
        }
    }

    /// Of these only the calls on names that start so, such as `quarantine/`. For a rename either
    /// name counts.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    fn matches(&self, call: &Call) -> bool {
        self.kinds.contains(&call.kind)
            && (call.name.starts_with(&self.prefix)
                || (!call.to.is_empty() && call.to.starts_with(&self.prefix)))
    }
}

impl From<CallKind> for Filter {
    fn from(kind: CallKind) -> Self {
        Self::kinds(&[kind])
    }
}

#[derive(Clone, Debug)]
struct Armed {
    filter: Filter,
    /// Matching calls still to pass.
    pass: u64,
    fault: Fault,
    repeat: Repeat,
}

/// What a call may do.
#[derive(Debug)]
pub(super) enum Permit {
    /// All of it.
    Whole,
    /// The first half of its bytes.
    Half,
    /// The first half of its bytes, and then fail.
    HalfThenFail(io::Error),
    /// Nothing, but say that it did.
    Pretend,
    /// Nothing: a fault.
    Fail(Fault, io::Error),
    /// Nothing: this is the call that the crash interrupts.
    Crash(io::Error),
    /// Nothing: the machine is gone.
    Gone(io::Error),
}

/// The state of the counter.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    total: u64,
    by_kind: BTreeMap<CallKind, u64>,
    armed: Vec<Armed>,
    struck: u64,
    crash_at: Option<u64>,
    crashed: bool,
    trace: Option<Vec<Call>>,
}

impl Calls {
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn of(&self, kind: CallKind) -> u64 {
        self.by_kind.get(&kind).copied().unwrap_or(0)
    }

    pub(super) fn struck(&self) -> u64 {
        self.struck
    }

    pub(super) fn crash_at(&mut self, number: u64) {
        self.crash_at = Some(number);
    }

    /// The machine has crashed, at no call that is counted.
    pub(super) fn die(&mut self) {
        self.crashed = true;
    }

    pub(super) fn crashed(&self) -> bool {
        self.crashed
    }

    pub(super) fn arm(&mut self, filter: Filter, nth: u64, fault: Fault, repeat: Repeat) {
        self.armed.push(Armed {
            filter,
            pass: nth.saturating_sub(1),
            fault,
            repeat,
        });
    }

    pub(super) fn disarm(&mut self) {
        self.armed.clear();
    }

    pub(super) fn start_trace(&mut self) {
        self.trace.get_or_insert_default();
    }

    pub(super) fn take_trace(&mut self) -> Vec<Call> {
        self.trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Counts a call and decides about it.
    pub(super) fn begin(&mut self, mut call: Call) -> Permit {
        if self.crashed {
            return Permit::Gone(gone());
        }
        self.total = self.total.saturating_add(1);
        let of = self.by_kind.entry(call.kind).or_default();
        *of = of.saturating_add(1);
        call.number = self.total;
        let permit = self.decide(&call);
        if let Some(trace) = &mut self.trace {
            call.disturbed = !matches!(permit, Permit::Whole);
            trace.push(call);
        }
        permit
    }

    fn decide(&mut self, call: &Call) -> Permit {
        if self.crash_at.is_some_and(|number| call.number >= number) {
            self.crashed = true;
            return Permit::Crash(gone());
        }
        let mut struck = None;
        self.armed.retain_mut(|armed| {
            if struck.is_some() || !armed.filter.matches(call) {
                return true;
            }
            if armed.pass > 0 {
                armed.pass = armed.pass.saturating_sub(1);
                return true;
            }
            struck = Some(armed.fault);
            if armed.fault == Fault::Interrupted {
                armed.pass = 1;
            }
            armed.repeat == Repeat::Forever
        });
        let Some(fault) = struck else {
            return Permit::Whole;
        };
        let permit = permit(fault, call.kind);
        if !matches!(permit, Permit::Whole) {
            self.struck = self.struck.saturating_add(1);
        }
        permit
    }
}

fn permit(fault: Fault, kind: CallKind) -> Permit {
    let moves_bytes = matches!(kind, CallKind::Read | CallKind::Write);
    let syncs = matches!(kind, CallKind::Sync | CallKind::SyncDir);
    match fault {
        Fault::Short if moves_bytes => Permit::Half,
        Fault::Lie if syncs => Permit::Pretend,
        Fault::Short | Fault::Lie => Permit::Whole,
        Fault::Partial if kind == CallKind::Write => Permit::HalfThenFail(fault.error()),
        Fault::Io
        | Fault::NoSpace
        | Fault::Interrupted
        | Fault::TooManyFiles
        | Fault::Permission
        | Fault::Partial => Permit::Fail(fault, fault.error()),
    }
}

fn gone() -> io::Error {
    io::Error::other("the simulated machine has crashed")
}
