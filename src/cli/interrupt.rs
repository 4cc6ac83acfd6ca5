//! Ctrl-C: the store is sound whenever it comes; this only makes the end a tidy one.
//!
//! While lines are read, the first Ctrl-C lets the current batch be stored and then stops. At any
//! other moment, or at the second, the process ends at once: what is not folded is folded next
//! time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::output::Exit;

/// The wish to stop.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt {
    wanted: Arc<AtomicBool>,
    /// Somebody looks at `wanted` every now and then.
    polled: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens for Ctrl-C from now on. Where the process listens itself, that stays as it is.
    pub(super) fn listen() -> Self {
        let interrupt = Self::default();
        let (wanted, polled) = (Arc::clone(&interrupt.wanted), Arc::clone(&interrupt.polled));
        let listening = ctrlc::try_set_handler(move || {
            let again = wanted.swap(true, Ordering::AcqRel);
            if again || !polled.load(Ordering::Acquire) {
                end();
            }
        });
        // Without it Ctrl-C ends the process at once, which is sound as well.
        drop(listening);
        interrupt
    }

    /// Says whether somebody looks at [`wanted`](Self::wanted) from now on.
    pub(super) fn polled(&self, polled: bool) {
        self.polled.store(polled, Ordering::Release);
    }

    /// Whether it is time to stop.
    pub(super) fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }
}

#[expect(
    clippy::exit,
    reason = "ends the process where no loop looks for the wish to stop"
)]
fn end() {
    use std::io::Write as _;
    let text = "interrupted; nothing stored is lost, and the same command goes on from here";
    drop(writeln!(std::io::stderr(), "\n{text}"));
    std::process::exit(Exit::Failed.code().into());
}
