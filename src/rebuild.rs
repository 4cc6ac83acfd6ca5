//! Rebuild: fold the log from 0 into a new generation beside the live one, compare, switch.
//!
//! 1. A new generation directory is made and filled to the durable end seen at the start; reads,
//!    appends and the live fold go on.
//! 2. Under the drive lock the live state and then the new one are folded to one checkpoint.
//! 3. The digests are compared, the new state is flushed and synced.
//! 4. `CURRENT` is replaced. A crash before leaves the old generation live and the new one as a
//!    left-over, removed at the next open; a crash after leaves the new one live.
//! 5. Once no reader is left on it, the old directory is removed.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use crate::compare::Difference;
use crate::consumer::Inner;
use crate::consumer::drive::Drive;
use crate::consumer::open::{fresh_metas, global};
use crate::consumer::projection::Projection;
use crate::error::{Error, Result};
use crate::event::Action;
use crate::fold::Crashes;
use crate::fold::counters::Counters;
use crate::fold::digest::Digest;
use crate::log::Log;
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::state::generation::Current;
use crate::state::meta::{self, Meta};
use crate::state::{StateError, StateStore};

/// What a rebuild did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rebuilt {
    /// Records folded, and the checkpoint of the new state.
    pub records: u64,
    /// Counters of the new state; `applied` is how many events it applied.
    pub counters: Counters,
    /// Digest of the state before.
    pub before: Digest,
    /// Digest of the state after. Equal to `before` unless the live state was damaged.
    pub after: Digest,
}

/// How often, a millisecond apart, it is looked whether a reader still holds the old state: each
/// holds it for one page at most.
const READER_LOOKS: u32 = 5000;

/// Waits until no reader holds `old` any more, then closes it; `false` if one holds on.
fn let_go(old: Arc<Projection>) -> bool {
    let alone = (0..READER_LOOKS).any(|_| {
        // It is not live any more, so no new holder can come.
        let alone = Arc::strong_count(&old) == 1;
        if !alone {
            std::thread::sleep(Duration::from_millis(1));
        }
        alone
    });
    drop(old);
    alone
}

/// Every `Crashed` decision of `consumer` in the log from `from` on.
pub(crate) fn crashes(log: &Log, consumer: &str, from: Offset) -> Result<Crashes> {
    let mut crashes = Crashes::new();
    for (_, decision) in log.decisions(from)? {
        if decision.consumer != consumer {
            continue;
        }
        if let Action::Crashed {
            at,
            event,
            attempts,
        } = decision.action
        {
            // The first one counts: a later one must not change what was folded under it.
            crashes.entry((at, event)).or_insert(attempts);
        }
    }
    Ok(crashes)
}

impl<M: StateMachine> Inner<M> {
    /// An empty projection in as many partitions as the live one.
    pub(crate) fn empty(&self, store: Arc<dyn StateStore>) -> Projection {
        let partitions = self.live().partitions();
        Projection::open(store, &self.log, &self.name, fresh_metas(partitions))
    }

    /// Folds `[0, to)` into `projection`.
    pub(crate) fn refold(&self, projection: &Projection, to: Offset) -> Result<()> {
        let crashes = crashes(&self.log, &self.name, Offset::ZERO)?;
        let job = self.job(&crashes);
        projection.fold_to(&job, to, |from, to| {
            tracing::debug!(consumer = %self.name, %from, %to, "refolding");
            Ok(())
        })?;
        Ok(())
    }

    pub(crate) fn rebuild(&self) -> Result<Rebuilt> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        let _one = crate::consumer::lock(&self.rebuilding);
        let (generation, store) = self.generations.create()?;
        let result = self.rebuild_into(generation, &store);
        if result.is_err() {
            // Best effort: a left-over is removed, and reported, at the next open.
            if let Err(error) = self.generations.remove(generation) {
                tracing::warn!(consumer = %self.name, %error, "half-built state stays");
            }
        }
        result
    }

    fn rebuild_into(&self, generation: u64, store: &Arc<dyn StateStore>) -> Result<Rebuilt> {
        let fresh = self.empty(Arc::clone(store));
        let partitions = fresh.partitions();
        let global = global(&self.log, M::REVISION, partitions);
        let meta = Meta {
            global,
            partitions: fresh_metas(partitions),
        };
        let fail = |error: StateError| error.of(&self.name);
        let batch = meta::encode_all(&meta, 0).map_err(fail)?;
        store.apply(&batch).map_err(fail)?;
        self.refold(&fresh, self.log.durable_end())?;
        let mut drive = self.drive();
        self.catch_up(&mut drive)?;
        let live = self.live();
        self.refold(&fresh, live.checkpoint())?;
        let report = Rebuilt {
            records: fresh.checkpoint().get(),
            counters: fresh.counters(),
            before: live.digest(),
            after: fresh.digest(),
        };
        if report.before != report.after {
            tracing::warn!(
                consumer = %self.name, before = %report.before, after = %report.after,
                "the live state was not the fold of the log; the rebuild replaces it"
            );
        }
        fresh.flush()?;
        store.sync().map_err(fail)?;
        let old = self.generations.current()?;
        self.generations.switch(generation)?;
        drop(live);
        let before = self.set_live(fresh);
        self.flush_live(&mut drive)?;
        if let Current::Live(old) = old {
            // Best effort as well: what stays is removed, and reported, at the next open.
            if !let_go(before) {
                tracing::warn!(consumer = %self.name, "the old state stays: it is still read");
            } else if let Err(error) = self.generations.remove(old) {
                tracing::warn!(consumer = %self.name, %error, "the old state stays");
            }
        }
        let (records, digest) = (report.records, report.after);
        tracing::info!(consumer = %self.name, records, %digest, "rebuilt");
        Ok(report)
    }

    /// A fold of the whole log in a temporary store, at the checkpoint of the live state, which
    /// stands still as long as the guard is held.
    pub(crate) fn fold_beside(
        &self,
    ) -> Result<(MutexGuard<'_, Drive>, Arc<Projection>, Projection)> {
        let scratch = self
            .backend
            .scratch()
            .map_err(|error| error.of(&self.name))?;
        let fresh = self.empty(scratch);
        self.refold(&fresh, self.live().checkpoint())?;
        let drive = self.drive();
        let live = self.live();
        self.refold(&fresh, live.checkpoint())?;
        Ok((drive, live, fresh))
    }

    pub(crate) fn rebuild_preview(&self) -> Result<Difference> {
        let (_still, live, fresh) = self.fold_beside()?;
        Difference::between(&live, &fresh)
    }
}
