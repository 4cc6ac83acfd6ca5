//! The outside truth that rows are reconciled against, and what a row looks like from outside.

use std::collections::BTreeMap;
use std::error::Error as StdError;

use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Error, Result};
use crate::event::FixRow;
use crate::fold::call;
use crate::fold::key::RawRow;
use crate::offset::Offset;

/// One row of a projection: what is known of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Row<S> {
    /// The version of the last event that moved it, or what a fix or skip said.
    pub version: i64,
    /// The state; `None` after a skipped first version.
    pub state: Option<S>,
    /// The offset of the record that last moved it.
    pub moved_at: Offset,
}

impl<S: DeserializeOwned> Row<S> {
    /// Decodes a stored row.
    pub(crate) fn decode(key: &str, row: &RawRow) -> Result<Self> {
        Ok(Self {
            version: row.version,
            state: decode_state(key, row.state.as_deref())?,
            moved_at: row.moved_at,
        })
    }
}

fn decode_state<S: DeserializeOwned>(key: &str, state: Option<&[u8]>) -> Result<Option<S>> {
    state
        .map(call::decode)
        .transpose()
        .map_err(|reason| Error::Codec {
            key: key.to_owned(),
            verb: "decoded",
            reason,
        })
}

/// The outside truth: a system of record that can be asked about one key.
pub trait Source<S> {
    /// Version and state of `key`; `None` if the source does not know the key, which leaves the
    /// row alone.
    ///
    /// # Errors
    ///
    /// Anything; reconciling stops with [`Error::SourceUnavailable`], and fixes made before stay.
    fn status(&self, key: &str) -> Result<Option<(i64, S)>, Box<dyn StdError + Send + Sync>>;
}

impl<S, T: Source<S> + ?Sized> Source<S> for &T {
    fn status(&self, key: &str) -> Result<Option<(i64, S)>, Box<dyn StdError + Send + Sync>> {
        (**self).status(key)
    }
}

/// A [`Source`] in memory: for tests, and for truth that comes as a file.
///
/// ```
/// use foldlog::{MapSource, Source};
///
/// let source: MapSource<&str> = [("order-1", 2, "PAID")].into_iter().collect();
/// assert_eq!(source.status("order-1").unwrap(), Some((2, "PAID")));
/// assert_eq!(source.status("order-2").unwrap(), None);
/// ```
#[derive(Clone, Debug)]
pub struct MapSource<S> {
    known: BTreeMap<String, (i64, S)>,
}

impl<S> MapSource<S> {
    /// A source that knows nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            known: BTreeMap::new(),
        }
    }

    /// Says what is true of `key` from now on.
    pub fn insert(&mut self, key: impl Into<String>, version: i64, state: S) {
        self.known.insert(key.into(), (version, state));
    }

    /// All keys it knows, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }
}

impl<S> Default for MapSource<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S, K: Into<String>> FromIterator<(K, i64, S)> for MapSource<S> {
    fn from_iter<I: IntoIterator<Item = (K, i64, S)>>(entries: I) -> Self {
        Self {
            known: entries
                .into_iter()
                .map(|(key, version, state)| (key.into(), (version, state)))
                .collect(),
        }
    }
}

impl<S: Clone> Source<S> for MapSource<S> {
    fn status(&self, key: &str) -> Result<Option<(i64, S)>, Box<dyn StdError + Send + Sync>> {
        Ok(self.known.get(key).cloned())
    }
}

/// One repair by reconciling: the row of `key` was `from` and is `to`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Fix<S> {
    /// The key.
    pub key: String,
    /// Version and state before; `None` if there was no row.
    pub from: Option<(i64, Option<S>)>,
    /// Version and state afterwards: what the source says.
    pub to: (i64, S),
}

/// A difference between a row and the source, found but not yet repaired: a [`Fix`] and the two
/// sides of its decision.
#[derive(Debug)]
pub(crate) struct Difference<S> {
    pub(crate) fix: Fix<S>,
    pub(crate) from: Option<FixRow>,
    pub(crate) to: FixRow,
}

impl<S> Difference<S> {
    /// How many bytes of states its fix carries.
    pub(crate) fn state_bytes(&self) -> usize {
        let len = |row: &FixRow| row.state.as_ref().map_or(0, Vec::len);
        self.from
            .as_ref()
            .map_or(0, len)
            .saturating_add(len(&self.to))
    }
}

/// Compares the row of `key` with what `source` says. `None` if they agree or the source does not
/// know the key. States are equal if their encodings are.
pub(crate) fn compare<S: Serialize + DeserializeOwned>(
    source: &impl Source<S>,
    key: &str,
    row: Option<&RawRow>,
) -> Result<Option<Difference<S>>> {
    let truth = source
        .status(key)
        .map_err(|error| Error::SourceUnavailable {
            reason: error.to_string(),
        })?;
    let Some((version, state)) = truth else {
        return Ok(None);
    };
    let encoded = call::encode(&state).map_err(|reason| Error::Codec {
        key: key.to_owned(),
        verb: "encoded",
        reason,
    })?;
    let same = row.is_some_and(|row| {
        row.version == version && row.state.as_deref() == Some(encoded.as_slice())
    });
    if same {
        return Ok(None);
    }
    // A repair to a state that cannot be read back would have no effect, each time anew.
    decode_state::<S>(key, Some(&encoded)).map(drop)?;
    let before = match row {
        None => None,
        Some(row) => Some((row.version, decode_state(key, row.state.as_deref())?)),
    };
    Ok(Some(Difference {
        fix: Fix {
            key: key.to_owned(),
            from: before,
            to: (version, state),
        },
        from: row.map(|row| FixRow {
            version: row.version,
            state: row.state.clone(),
        }),
        to: FixRow {
            version,
            state: Some(encoded),
        },
    }))
}
