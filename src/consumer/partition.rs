//! One partition of a projection: the keys of one share, folded in order.

use std::sync::Arc;

use super::lock;
use super::projection::Job;
use crate::error::{Error, Result};
use crate::event::{Action, Body, RawRecord, Record, RecordKind};
use crate::fold::overlay::Overlay;
use crate::fold::{Judge, Pass, Watch};
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::partition;
use crate::state::StateStore;
use crate::state::ground::{Share, StateGround};
use crate::state::meta::{self, PartitionMeta};

/// About how many bytes of changed keys a partition holds before it flushes, however few they are.
const DIRTY_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// About how many bytes of unchanged keys a partition keeps as a cache.
const CLEAN_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// One partition's state.
#[derive(Debug)]
pub(super) struct Partition {
    share: Share,
    pub(super) overlay: Overlay<StateGround>,
    pub(super) checkpoint: Offset,
    /// Header CRC of the frame that holds the record before the checkpoint.
    pub(super) frame_crc: u32,
    pub(super) budget: u32,
    pub(super) flushed: Offset,
    /// What the store holds: where to start over after a failure inside a record.
    stored: PartitionMeta,
    broken: Option<Arc<str>>,
}

impl Partition {
    /// The partition as `meta` says it is in the store under `ground`.
    pub(super) fn new(share: Share, ground: StateGround, meta: &PartitionMeta) -> Self {
        Self {
            share,
            overlay: Overlay::new(ground, meta.totals, CLEAN_BYTES_MAX),
            checkpoint: meta.checkpoint,
            frame_crc: meta.frame_crc,
            budget: meta.budget,
            flushed: meta.checkpoint,
            stored: meta.clone(),
            broken: None,
        }
    }

    /// Whether it holds so many changes that they should go to the store now.
    pub(super) fn is_full(&self, flush_entries: usize) -> bool {
        self.overlay.dirty_len() >= flush_entries || self.overlay.dirty_bytes() >= DIRTY_BYTES_MAX
    }

    /// Folds one record, if it is one of this partition's.
    pub(super) fn fold_one<M: StateMachine>(
        &mut self,
        job: &Job<'_, M>,
        judge: &Judge<'_, M>,
        raw: &RawRecord<'_>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        if let Some(reason) = &self.broken {
            return Err(in_doubt(job.consumer, reason));
        }
        let Some(record) = self.mine(job, raw)? else {
            self.checkpoint = raw.offset.next();
            return Ok(());
        };
        let mut pass = Pass {
            budget: self.budget,
            crashes: job.crashes,
            watch,
            counts_shared: self.share.index == 0,
        };
        let effect = judge.record(&mut self.overlay, &mut pass, &record);
        self.budget = pass.budget;
        let effect = effect.inspect_err(|_| self.start_over())?;
        self.checkpoint = raw.offset.next();
        if let Some((from, heard)) = job.heard
            && raw.offset >= from
            && let Some(decision) = effect.decision
        {
            lock(heard).insert(raw.offset, decision);
        }
        Ok(())
    }

    /// Marks what is in memory as not to be used or flushed any more.
    pub(super) fn give_up(&mut self, reason: &str) {
        self.broken = Some(Arc::from(reason));
    }

    /// A record was folded only in part: back to the last flush, which is whole.
    fn start_over(&mut self) {
        self.overlay.start_over(self.stored.totals);
        self.checkpoint = self.stored.checkpoint;
        self.frame_crc = self.stored.frame_crc;
        self.budget = self.stored.budget;
    }

    /// The record, if this partition has to fold it.
    fn mine<M>(&self, job: &Job<'_, M>, raw: &RawRecord<'_>) -> Result<Option<Record>> {
        let here = partition::of_hash(raw.key_hash, self.share.of) == self.share.index;
        let body = match raw.kind {
            RecordKind::Event if !here => return Ok(None),
            RecordKind::Event => raw.event().map(Body::Event),
            RecordKind::Decision => raw.decision().map(Body::Decision),
        };
        let body = body.map_err(|error| job.log.undecodable(raw.offset, &error))?;
        let wanted = match &body {
            Body::Event(_) => true,
            Body::Decision(decision) => {
                decision.consumer == job.consumer && (here || is_for_all(&decision.action))
            }
        };
        let record = Record {
            offset: raw.offset,
            recorded_at_ms: raw.recorded_at_ms,
            body,
        };
        Ok(wanted.then_some(record))
    }

    fn meta(&mut self) -> PartitionMeta {
        PartitionMeta {
            checkpoint: self.checkpoint,
            frame_crc: self.frame_crc,
            budget: self.budget,
            totals: self.overlay.totals(),
        }
    }

    /// Writes what changed, with the checkpoint, to the store in one batch.
    pub(super) fn flush(&mut self, store: &dyn StateStore, consumer: &str) -> Result<()> {
        if self.broken.is_some() || self.flushed == self.checkpoint {
            return Ok(());
        }
        let meta = self.meta();
        let batch = meta::encode_flush(self.share.index, &self.overlay.changes(), &meta)
            .map_err(|error| error.of(consumer))?;
        if let Err(error) = store.apply(&batch) {
            // How much of the batch took effect is unknown: this state is not to be used again.
            self.give_up(&error.to_string());
            return Err(error.of(consumer));
        }
        self.overlay.flushed();
        self.flushed = self.checkpoint;
        self.stored = meta;
        Ok(())
    }
}

/// `Configure` and `Redeliver` take effect in every partition, at their own offset.
fn is_for_all(action: &Action) -> bool {
    matches!(action, Action::Configure { .. } | Action::Redeliver { .. })
}

pub(super) fn in_doubt(consumer: &str, reason: &str) -> Error {
    Error::State {
        consumer: consumer.to_owned(),
        reason: format!("an earlier failure left it in doubt ({reason}); open it again"),
    }
}
