//! Calls into sled that end in bounded time and never in a panic.
//!
//! Invariants:
//! - A panic becomes an error with its text (`a_panic_in_a_call_is_an_error_with_its_text`).
//! - No caller waits longer than its timeout
//!   (`a_call_that_does_not_end_is_given_up_and_its_late_result_is_dropped`,
//!   `a_read_does_not_wait_for_ever_for_a_batch_that_hangs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use crate::state::StateError;

/// How often a reader looks again while a batch is being applied.
const GATE_PAUSE: Duration = Duration::from_micros(100);

/// Shadows sled's own process-wide lock of batches against reads, which cannot be waited for with a
/// bound: held for writing while a batch is applied, also by a helper thread that hangs.
static GATE: RwLock<()> = RwLock::new(());

/// Waits, without a bound, until no read and no batch runs, and keeps both out. For helper threads.
pub(super) fn close_gate() -> RwLockWriteGuard<'static, ()> {
    GATE.write().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn translate(op: &'static str, error: sled::Error) -> StateError {
    match error {
        sled::Error::Io(source) => StateError::Io {
            op,
            file: PathBuf::from("db"),
            source: Arc::new(source),
        },
        sled::Error::Corruption { .. }
        | sled::Error::CollectionNotFound(_)
        | sled::Error::Unsupported(_)
        | sled::Error::ReportableBug(_) => StateError::Damaged {
            op,
            reason: error.to_string(),
        },
    }
}

/// The text of a panic, where it has one.
fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned())
}

fn caught<T>(
    op: &'static str,
    call: impl FnOnce() -> Result<T, StateError>,
) -> Result<T, StateError> {
    // Unwind safety: after a panic the handle is out of use, so no one sees what it left behind.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        Err(StateError::Panicked {
            op,
            text: panic_text(&*payload),
        })
    })
}

/// Runs a read in this thread, once no batch is being applied.
pub(super) fn read_guarded<T>(
    op: &'static str,
    timeout: Duration,
    call: impl FnOnce() -> sled::Result<T>,
) -> Result<T, StateError> {
    let began = Instant::now();
    let _gate = loop {
        match GATE.try_read() {
            Ok(gate) => break gate,
            Err(TryLockError::Poisoned(gate)) => break gate.into_inner(),
            Err(TryLockError::WouldBlock) if began.elapsed() < timeout => thread::sleep(GATE_PAUSE),
            Err(TryLockError::WouldBlock) => {
                return Err(StateError::Hung {
                    op,
                    waited: timeout,
                });
            }
        }
    };
    caught(op, || call().map_err(|error| translate(op, error)))
}

/// Runs `call` in a thread of its own and waits at most `timeout` for it.
pub(super) fn bounded<T: Send + 'static>(
    op: &'static str,
    timeout: Duration,
    call: impl FnOnce() -> Result<T, StateError> + Send + 'static,
) -> Result<T, StateError> {
    let (answer, answered) = sync_channel(1);
    thread::Builder::new()
        .name(format!("foldlog-state-{op}"))
        .spawn(move || {
            let result = caught(op, call);
            // Nobody waits any more after a timeout; a store that opened late is dropped here,
            // under a guard, because closing it can panic too.
            if let Err(late) = answer.send(result) {
                drop(caught(op, move || {
                    drop(late);
                    Ok(())
                }));
            }
        })
        .map_err(|error| StateError::Io {
            op: "spawn thread",
            file: PathBuf::from(op),
            source: Arc::new(error),
        })?;
    match answered.recv_timeout(timeout) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(StateError::Hung {
            op,
            waited: timeout,
        }),
        Err(RecvTimeoutError::Disconnected) => Err(StateError::Panicked {
            op,
            text: "the helper thread ended without an answer".to_owned(),
        }),
    }
}
