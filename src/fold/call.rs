//! The only calls into the user's state machine: panics caught, states decoded and encoded.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::codec;
use crate::event::Event;
use crate::limits::STATE_BYTES_MAX;
use crate::machine::{Poison, StateMachine};

/// The reason kept for a panic. Its text is traced only: it can differ between runs.
const PANICKED: &str = "panicked";
/// The reason kept for a state over its limit, or one that serde refuses.
const NOT_ENCODED: &str = "the state after it is too large or cannot be encoded";
/// The reason kept for a state that encodes to bytes it cannot be decoded from.
const NOT_DECODED: &str = "the state after it cannot be decoded again";

/// Runs user code. What it may have left half done is its own: the fold gives it nothing to change.
fn guarded<T>(what: &'static str, event: &str, call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            tracing::error!(what, event, ?text, "the state machine panicked");
            None
        }
    }
}

/// `check`, with a panic as poison.
pub(crate) fn check<M: StateMachine>(machine: &M, event: &Event) -> Result<(), Poison> {
    guarded("check", &event.id, || machine.check(event))
        .unwrap_or_else(|| Err(Poison::new(PANICKED)))
}

/// `apply` on an encoded state; the encoded next state is left in `out`.
///
/// The next state is decoded again before it counts: a state that cannot be read back is the fault
/// of the event that made it, and is poison there. Found at the key's next event it would be
/// nobody's, and would stop the whole consumer for good.
///
/// `Err` is an old state that does not decode: it is damaged, or of a machine that was changed
/// without a new revision. Not the event's fault.
pub(crate) fn apply<M: StateMachine>(
    machine: &M,
    state: Option<&[u8]>,
    event: &Event,
    out: &mut Vec<u8>,
) -> Result<Result<(), Poison>, String> {
    let state = match state {
        None => None,
        Some(bytes) => Some(decode::<M::State>(bytes)?),
    };
    out.clear();
    // Moved in, because dropping a state is user code as well.
    let verdict = guarded("apply", &event.id, move || {
        let next = machine.apply(state.as_ref(), event)?;
        codec::encode_into(out, &next, STATE_BYTES_MAX).map_err(|_| Poison::new(NOT_ENCODED))?;
        codec::decode::<M::State>(out, STATE_BYTES_MAX)
            .map(drop)
            .map_err(|_| Poison::new(NOT_DECODED))
    });
    Ok(verdict.unwrap_or_else(|| Err(Poison::new(PANICKED))))
}

/// Decodes a state of this revision.
pub(crate) fn decode<S: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<S, String> {
    guarded("decode", "", || codec::decode(bytes, STATE_BYTES_MAX))
        .ok_or_else(|| PANICKED.to_owned())?
        .map_err(|error| error.to_string())
}

/// Encodes a state.
pub(crate) fn encode<S: serde::Serialize>(state: &S) -> Result<Vec<u8>, String> {
    guarded("encode", "", || codec::encode(state, STATE_BYTES_MAX))
        .ok_or_else(|| PANICKED.to_owned())?
        .map_err(|error| error.to_string())
}

/// The encoding, under this revision, of a state that was encoded under `revision`. `None` if it
/// cannot be read.
pub(crate) fn translate<M: StateMachine>(
    machine: &M,
    revision: u32,
    bytes: &[u8],
) -> Option<Vec<u8>> {
    if revision == M::REVISION {
        decode::<M::State>(bytes).ok()?;
        return Some(bytes.to_owned());
    }
    let state = guarded("upgrade", "", || machine.upgrade(revision, bytes))??;
    encode(&state).ok()
}
