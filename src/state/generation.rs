//! Which directory is a consumer's live state, and how another takes its place.
//!
//! | name | what |
//! |---|---|
//! | `state/<consumer>/CURRENT` | names the live generation; replaced in one step |
//! | `state/<consumer>/<number>` | a state store; numbers from 1, never used twice while their directory is there |
//! | `quarantine/state-<consumer>-<number>[-<k>]` | a damaged one, moved there unchanged |
//!
//! `CURRENT` is valid if and only if it is exactly this, 28 bytes, integers little endian:
//!
//! | position | width | field |
//! |---|---|---|
//! | 0 | 8 | `FOLDCURR` |
//! | 8 | 4 | format: 1 |
//! | 12 | 8 | number of the live generation |
//! | 20 | 4 | zero |
//! | 24 | 4 | CRC-32 of the bytes before |
//!
//! A generation is filled and synced before `CURRENT` names it, and the old one is removed after
//! `CURRENT` is durable. So a crash at any point leaves `CURRENT` on a generation that is whole,
//! or (the old one removed, sled's bytes lost) on one that the audit refuses; other generations
//! are left-overs, of an interrupted rebuild or of an interrupted removal.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits::CONSUMER_BYTES_MAX;
use crate::state::meta::Meta;
use crate::state::{StateBackend, StateError, StateStore, ground};
use crate::storage::{self, Storage};

const MAGIC: &[u8; 8] = b"FOLDCURR";
const FORMAT: u32 = 1;
const CURRENT_LEN: usize = 28;
const CURRENT: &str = "CURRENT";
const QUARANTINE: &str = "quarantine";

/// Checks a consumer's name: 1 to [`CONSUMER_BYTES_MAX`] bytes of `a`–`z`, `0`–`9`, `_` and `-`,
/// because it is also a directory's name, on file systems that ignore case too.
///
/// # Errors
///
/// [`Error::Empty`], [`Error::TooLarge`] or [`Error::Invalid`].
pub(crate) fn check_consumer(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::Empty { what: "consumer" });
    }
    if name.len() > CONSUMER_BYTES_MAX {
        return Err(Error::TooLarge {
            what: "consumer",
            len: name.len(),
            max: CONSUMER_BYTES_MAX,
        });
    }
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if name.bytes().all(allowed) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "consumer",
        reason: format!("{name:?} may hold only a-z, 0-9, _ and -"),
    })
}

/// The names of the consumers that have a directory, in order.
///
/// # Errors
///
/// [`Error::Io`] and its kin: the directory could not be read.
pub(crate) fn consumers(storage: &dyn Storage) -> Result<Vec<String>> {
    let entries = match storage.list("state") {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", storage.path("state"), None, 0, error)),
    };
    let mut names: Vec<String> = entries
        .into_iter()
        .filter(|entry| entry.is_dir && check_consumer(&entry.name).is_ok())
        .map(|entry| entry.name)
        .collect();
    names.sort_unstable();
    Ok(names)
}

fn encode_current(number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CURRENT_LEN);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// The number in `CURRENT`, or what is wrong with it.
fn decode_current(bytes: &[u8]) -> Result<u64, &'static str> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or("too short")?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err("wrong checksum");
    }
    let (magic, rest) = body.split_first_chunk::<8>().ok_or("too short")?;
    let (format, rest) = rest.split_first_chunk::<4>().ok_or("too short")?;
    if magic != MAGIC {
        return Err("not a CURRENT file");
    }
    if u32::from_le_bytes(*format) != FORMAT {
        return Err("unknown format");
    }
    let (number, rest) = rest.split_first_chunk::<8>().ok_or("too short")?;
    if rest != [0; 4] {
        return Err("wrong length or padding");
    }
    Ok(u64::from_le_bytes(*number))
}

/// What `CURRENT` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Current {
    /// There is no such file.
    Missing,
    /// It is there and says nothing; why.
    Unreadable(String),
    /// This generation is live.
    Live(u64),
}

/// What was found where the live state should be. Everything but [`Found::Live`] ends in a fold
/// from offset 0 into a new generation; only [`Found::Nothing`] is no news to report.
#[derive(Debug)]
pub(crate) enum Found {
    /// The consumer has never had state.
    Nothing,
    /// State that hangs together; whether it belongs to this log is for the caller to see.
    Live {
        /// Its generation.
        number: u64,
        /// The open store.
        store: Arc<dyn StateStore>,
        /// What it says about itself.
        meta: Meta,
    },
    /// There was state, and nothing of it is to be found or told to be live.
    Lost {
        /// What is missing.
        reason: String,
    },
    /// The live generation is damaged: set it aside.
    Damaged {
        /// Its generation.
        number: u64,
        /// What is wrong.
        error: StateError,
    },
}

/// The generations of one consumer.
#[derive(Clone)]
pub(crate) struct Generations {
    storage: Arc<dyn Storage>,
    backend: Arc<dyn StateBackend>,
    consumer: Arc<str>,
}

impl fmt::Debug for Generations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generations")
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

impl Generations {
    /// Those of `consumer`. Touches nothing.
    ///
    /// # Errors
    ///
    /// As [`check_consumer`].
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        backend: Arc<dyn StateBackend>,
        consumer: &str,
    ) -> Result<Self> {
        check_consumer(consumer)?;
        Ok(Self {
            storage,
            backend,
            consumer: Arc::from(consumer),
        })
    }

    /// The consumer's directory: `state/<consumer>`.
    pub(crate) fn dir(&self) -> String {
        format!("state/{}", self.consumer)
    }

    /// Where a generation is.
    pub(crate) fn path(&self, number: u64) -> String {
        format!("state/{}/{number}", self.consumer)
    }

    fn fail(&self, error: &StateError) -> Error {
        error.of(&self.consumer)
    }

    fn io(&self, op: &'static str, name: &str, source: io::Error) -> Error {
        Error::io(op, self.storage.path(name), None, 0, source)
    }

    /// Which generation is live. Changes nothing.
    pub(crate) fn current(&self) -> Result<Current> {
        let name = format!("{}/{CURRENT}", self.dir());
        // One byte more than the file has, so that a longer one is told from a whole one.
        match storage::read_small(&*self.storage, &name, CURRENT_LEN.saturating_add(1)) {
            Ok(None) => Ok(Current::Missing),
            Ok(Some(bytes)) => Ok(match decode_current(&bytes) {
                Ok(number) => Current::Live(number),
                Err(reason) => Current::Unreadable(reason.to_owned()),
            }),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidData => {
                Ok(Current::Unreadable("too long".to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    /// The generations whose directory is there, ascending. Names that are not a generation's are
    /// none of ours and left alone.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>> {
        let names = self
            .backend
            .list(&self.dir())
            .map_err(|error| self.fail(&error))?;
        let mut numbers: Vec<u64> = names
            .iter()
            .filter_map(|name| name.parse().ok().filter(|n: &u64| n.to_string() == **name))
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Opens and audits the live generation. Writes nothing but what the state store's own open
    /// writes.
    ///
    /// # Errors
    ///
    /// What folding anew would not cure: the store is in use, no space, no permission, no file
    /// descriptors.
    pub(crate) fn open_live(&self) -> Result<Found> {
        let number = match self.current()? {
            Current::Live(number) => number,
            Current::Missing if self.numbers()?.is_empty() => return Ok(Found::Nothing),
            Current::Missing => {
                return Ok(Found::Lost {
                    reason: "CURRENT is missing".to_owned(),
                });
            }
            Current::Unreadable(reason) => {
                return Ok(Found::Lost {
                    reason: format!("CURRENT is unreadable: {reason}"),
                });
            }
        };
        let dir = self.path(number);
        if !self.backend.exists(&dir).map_err(|e| self.fail(&e))? {
            return Ok(Found::Lost {
                reason: format!("generation {number} is missing"),
            });
        }
        let opened = self.backend.open(&dir).and_then(|store| {
            let meta = ground::audit(&*store)?;
            Ok((store, meta))
        });
        match opened {
            Ok((store, Some(meta))) => Ok(Found::Live {
                number,
                store,
                meta,
            }),
            Ok((_, None)) => Ok(Found::Damaged {
                number,
                error: StateError::Damaged {
                    op: "open",
                    reason: "no entry is left".to_owned(),
                },
            }),
            Err(error) if error.is_damage() => Ok(Found::Damaged { number, error }),
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Creates an empty generation beside the live one.
    pub(crate) fn create(&self) -> Result<(u64, Arc<dyn StateStore>)> {
        let live = match self.current()? {
            Current::Live(number) => number,
            Current::Missing | Current::Unreadable(_) => 0,
        };
        let highest = self.numbers()?.last().copied().unwrap_or(0).max(live);
        let number = highest.checked_add(1).ok_or(Error::Overflow)?;
        self.create_dir()?;
        let store = self
            .backend
            .open(&self.path(number))
            .map_err(|error| self.fail(&error))?;
        Ok((number, store))
    }

    /// The consumer's directory, durably there: `CURRENT` and the anchor live in it.
    fn create_dir(&self) -> Result<()> {
        let dir = self.dir();
        self.storage
            .create_dir(&dir)
            .map_err(|error| self.io("create directory", &dir, error))?;
        for parent in ["", "state"] {
            self.storage
                .sync_dir(parent)
                .map_err(|error| self.io("sync directory", parent, error))?;
        }
        Ok(())
    }

    /// Makes `number`, filled and synced, the live generation. After a crash, the old or the
    /// new one is; when this returns, the new one for good.
    pub(crate) fn switch(&self, number: u64) -> Result<()> {
        self.create_dir()?;
        let bytes = encode_current(number);
        storage::replace_small(&*self.storage, &self.dir(), CURRENT, &bytes, true)?;
        tracing::info!(consumer = %self.consumer, number, "state generation is live");
        Ok(())
    }

    /// Removes a generation that is not live.
    pub(crate) fn remove(&self, number: u64) -> Result<()> {
        self.backend
            .remove(&self.path(number))
            .map_err(|error| self.fail(&error))
    }

    /// Moves a damaged generation to the quarantine and answers its name there. `CURRENT` goes on
    /// naming it until the next switch, which the open tells as lost. Every handle on it must have
    /// been dropped.
    pub(crate) fn set_aside(&self, number: u64) -> Result<String> {
        let plain = format!("{QUARANTINE}/state-{}-{number}", self.consumer);
        let mut name = plain.clone();
        let mut again = 1_u64;
        while self
            .backend
            .exists(&name)
            .map_err(|error| self.fail(&error))?
        {
            again = again.checked_add(1).ok_or(Error::Overflow)?;
            name = format!("{plain}-{again}");
        }
        self.backend
            .set_aside(&self.path(number), &name)
            .map_err(|error| self.fail(&error))?;
        tracing::warn!(consumer = %self.consumer, number, to = %name, "state set aside");
        Ok(name)
    }

    /// Removes all generations but `live` and answers their directories, for the report.
    pub(crate) fn remove_left_overs(&self, live: Option<u64>) -> Result<Vec<String>> {
        let mut removed = Vec::new();
        for number in self.numbers()? {
            if Some(number) != live {
                self.remove(number)?;
                let dir = self.path(number);
                tracing::warn!(consumer = %self.consumer, dir = %dir, "left-over state removed");
                removed.push(dir);
            }
        }
        Ok(removed)
    }
}
