//! The user's rules: a [`StateMachine`] turns a key's state and its next event into the next state.

use serde::{Serialize, de::DeserializeOwned};

use crate::event::Event;

/// The rules of one projection: what events mean.
///
/// Both functions must be pure: the same arguments give the same answer on every machine, for ever,
/// without clock, randomness, environment or I/O, because a rebuild calls them again and must
/// come to the same state. A panic is caught and makes the event a dead letter.
pub trait StateMachine: Send + Sync + 'static {
    /// What a row holds. Encoded with bincode: no `skip_serializing_if`, no internally tagged or
    /// untagged enums, no flattening, and no sequences of zero-sized elements.
    type State: Serialize + DeserializeOwned + Send + Sync + 'static;

    /// The revision of these rules and of the encoding of `State`. State that was folded under
    /// another revision is rebuilt from the log at open.
    const REVISION: u32;

    /// Refuses events that can never be applied, whatever the state. Called before the version is
    /// looked at.
    ///
    /// # Errors
    ///
    /// [`Poison`] sends the event to the dead letters at its first delivery.
    fn check(&self, event: &Event) -> Result<(), Poison> {
        let _ = event;
        Ok(())
    }

    /// The state after `event`, which carries the next version of its key. `state` is `None` for a
    /// key without a state: its first event, or the first after a skipped first version.
    ///
    /// # Errors
    ///
    /// [`Poison`] sends the event to the dead letters; the state stays as it was.
    fn apply(&self, state: Option<&Self::State>, event: &Event) -> Result<Self::State, Poison>;

    /// Reads a state that was encoded under another revision, for repairs in the log that are
    /// older than this machine. `None` means that it cannot be read; such a repair is counted as a
    /// finding and changes nothing.
    fn upgrade(&self, revision: u32, bytes: &[u8]) -> Option<Self::State> {
        let _ = (revision, bytes);
        None
    }
}

/// Why an event can never be applied. The reason is kept in the dead letter, cut to
/// [`crate::limits::REASON_BYTES_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Poison {
    reason: String,
}

impl Poison {
    /// A refusal with this reason, which must not depend on anything but the event and the state.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
        }
    }

    /// The reason given.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl std::fmt::Display for Poison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Poison {}
