//! One error type for "the store could not do its job". Expected answers (a duplicate, a dead
//! letter, a decision that came too late) are values, not errors.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::offset::Offset;

/// `std::result::Result` with foldlog's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the store could not do what it was asked.
///
/// Cheap to clone, because one failed sync answers every caller that waited for it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation. For an append it means: nothing was stored, the
    /// handle stays usable.
    #[error("{op} failed on {file}{}: {source}", at_byte(*.position))]
    Io {
        /// What was being done: `read`, `write`, `open`, ….
        op: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// The byte position, where there is one.
        position: Option<u64>,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The disk is full. Nothing was stored; free space and call again.
    #[error("no space left for {op} on {file}: {needed} bytes needed")]
    NoSpace {
        /// What was being done.
        op: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// How many bytes the operation needs.
        needed: u64,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The process or the system is out of file descriptors. Nothing was stored.
    #[error("too many open files for {op} on {file}")]
    TooManyFiles {
        /// What was being done.
        op: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The process may not access a file or directory.
    #[error("no permission for {op} on {file}")]
    Permission {
        /// What was being done.
        op: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// A write or sync failed in a way that leaves the outcome open: after reopening, the events of
    /// this call are wholly there or wholly absent. The handle refuses further appends
    /// ([`Error::Stopped`]); reads of durable records go on.
    #[error("outcome unknown, {op} failed on {file}: {source}; reopen the store to go on")]
    OutcomeUnknown {
        /// What was being done.
        op: &'static str,
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// An earlier failure stopped this handle for appends. Nothing was stored by this call.
    #[error(
        "the log takes no more appends since an earlier failure ({reason}); reopen it to go on"
    )]
    Stopped {
        /// The earlier failure.
        reason: Arc<str>,
    },
    /// Bytes on disk that foldlog cannot have written, or acknowledged records that are damaged.
    /// Nothing was changed on disk.
    #[error("{file} is corrupt at byte {position} (offset {offset} expected there): {reason}")]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// The first byte that is wrong.
        position: u64,
        /// The offset of the record expected there.
        offset: Offset,
        /// What is wrong with it.
        reason: String,
    },
    /// Segments are missing between two others, or at an end of the log. Nothing was changed.
    #[error("log segments are missing: offsets {from}..{to} between {before} and {after}")]
    MissingSegment {
        /// The segment before the hole, or `the start`.
        before: String,
        /// The segment after the hole, or `the end`.
        after: String,
        /// The first offset missing.
        from: Offset,
        /// The first offset present again; equal to `from` where that is not known.
        to: Offset,
    },
    /// The log ends before what a consumer's anchor proves was durable. Nothing was changed.
    #[error("the log ends at {end}, before the checkpoint {checkpoint} of consumer {consumer}")]
    LogShorterThanAnchor {
        /// Whose anchor.
        consumer: String,
        /// The checkpoint in the anchor.
        checkpoint: Offset,
        /// The end of the log as found.
        end: Offset,
    },
    /// A loss was accepted, and carrying it out was interrupted. Nothing was changed; opening for
    /// writing, or accepting it again, does the rest.
    #[error("an accepted repair of {path}, from offset {offset} on, was not finished")]
    RepairUnfinished {
        /// The store.
        path: PathBuf,
        /// The first offset that was given up.
        offset: Offset,
    },
    /// Written by a newer (or unknown) version of foldlog. Nothing was changed.
    #[error("{file}: {what} version {found} is not supported (this build reads {supported})")]
    UnsupportedFormat {
        /// The file.
        file: PathBuf,
        /// Which part has the version.
        what: &'static str,
        /// The version found.
        found: u64,
        /// The newest version this build reads.
        supported: u64,
    },
    /// Strict opening met a torn tail, which a plain open would trim. Nothing was changed.
    #[error(
        "{file} ends in a torn write at byte {position} ({bytes} bytes from offset {offset} on)"
    )]
    TornTail {
        /// The file.
        file: PathBuf,
        /// Where the torn bytes begin.
        position: u64,
        /// How many there are.
        bytes: u64,
        /// The offset of the first record that is not whole.
        offset: Offset,
    },
    /// Another process or handle has the store open for writing. Nothing was touched.
    #[error("{path} is locked by another writer{}", holder(*.pid))]
    Locked {
        /// The store.
        path: PathBuf,
        /// Who holds it, where known.
        pid: Option<u32>,
    },
    /// The handle was opened read-only.
    #[error("the store was opened read-only")]
    ReadOnly,
    /// There is no store in this directory.
    #[error("there is no store in {path}")]
    NoStore {
        /// The directory.
        path: PathBuf,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// A read beyond the durable end, or below the first offset.
    #[error("offset {requested} is out of range {first}..={end}")]
    OffsetOutOfRange {
        /// What was asked for.
        requested: Offset,
        /// The first offset of the log.
        first: Offset,
        /// The durable end, which is itself a legal place to read from (nothing yet).
        end: Offset,
    },
    /// A batch of at most zero records was asked for.
    #[error("a batch of zero records was asked for")]
    ZeroBatch,
    /// An event without id or key, or a batch, name or list that must not be empty.
    #[error("{what} is empty")]
    Empty {
        /// What is empty.
        what: &'static str,
    },
    /// Over a limit of [`crate::limits`]. Nothing was written.
    #[error("{what} is too large: {len}, at most {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A value outside what an option or argument allows.
    #[error("{what}: {reason}")]
    Invalid {
        /// The option or argument.
        what: &'static str,
        /// What it may be.
        reason: String,
    },
    /// The offsets of the log are used up.
    #[error("the log has no offsets left")]
    Overflow,
    /// A consumer's state was folded from records that this log does not have. Nothing was changed.
    #[error("state of consumer {consumer} is at {checkpoint}, ahead of the log's end {end}")]
    StateAheadOfLog {
        /// Whose state.
        consumer: String,
        /// Its checkpoint.
        checkpoint: Offset,
        /// The durable end of the log.
        end: Offset,
    },
    /// A consumer's state belongs to another log. Nothing was changed.
    #[error("state of consumer {consumer} belongs to another log")]
    WrongLog {
        /// Whose state.
        consumer: String,
    },
    /// A consumer's state was folded from other records under the same offsets. Nothing was
    /// changed.
    #[error("state of consumer {consumer} was folded from other records below {checkpoint}")]
    Diverged {
        /// Whose state.
        consumer: String,
        /// Its checkpoint.
        checkpoint: Offset,
    },
    /// The state store failed and could not be healed. The log is not affected.
    #[error("state of consumer {consumer}: {reason}")]
    State {
        /// Whose state.
        consumer: String,
        /// What happened.
        reason: String,
    },
    /// The consumer is already open under this name with other options or another machine.
    #[error("consumer {consumer} is already open in this process")]
    ConsumerOpen {
        /// Its name.
        consumer: String,
    },
    /// No dead letter has this offset.
    #[error("there is no dead letter at offset {offset}")]
    NotFound {
        /// The offset asked for.
        offset: Offset,
    },
    /// The dead letter was resolved before.
    #[error("the dead letter at offset {offset} was already resolved ({how})")]
    AlreadyResolved {
        /// The offset asked for.
        offset: Offset,
        /// How: redriven, discarded or skipped.
        how: &'static str,
    },
    /// A skip of an event that is not its key's next version. The letter stays open.
    #[error("the event at offset {offset} is version {version}, not the next of its key ({next})")]
    NotNext {
        /// The offset asked for.
        offset: Offset,
        /// Its version.
        version: i64,
        /// The key's next version.
        next: i64,
    },
    /// A reconciliation source failed. Fixes appended before stay.
    #[error("the source is not available: {reason}")]
    SourceUnavailable {
        /// What it said.
        reason: String,
    },
    /// The user's state could not be encoded or decoded.
    #[error("state of key {key:?} could not be {verb}: {reason}")]
    Codec {
        /// The row's key.
        key: String,
        /// `encoded` or `decoded`.
        verb: &'static str,
        /// What serde said.
        reason: String,
    },
}

fn at_byte(position: Option<u64>) -> String {
    position
        .map(|position| format!(" at byte {position}"))
        .unwrap_or_default()
}

fn holder(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})"))
        .unwrap_or_default()
}

impl Error {
    /// Sorts an I/O error into the variant that tells the caller what to do about it.
    pub(crate) fn io(
        op: &'static str,
        file: PathBuf,
        position: Option<u64>,
        needed: u64,
        source: io::Error,
    ) -> Self {
        let kind = source.kind();
        let raw = source.raw_os_error();
        let source = Arc::new(source);
        if matches!(
            kind,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ) {
            return Self::NoSpace {
                op,
                file,
                needed,
                source,
            };
        }
        // EMFILE and ENFILE have no `ErrorKind` of their own; their numbers are the same on every
        // system this crate supports.
        if matches!(raw, Some(23 | 24)) {
            return Self::TooManyFiles { op, file, source };
        }
        if kind == io::ErrorKind::PermissionDenied {
            return Self::Permission { op, file, source };
        }
        Self::Io {
            op,
            file,
            position,
            source,
        }
    }
}
