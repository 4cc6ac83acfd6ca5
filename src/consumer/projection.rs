//! A projection: the folded state of one consumer, in memory over one state store.
//!
//! Live state, a rebuild, a preview, a deep verify and a read-only look are all this type with
//! another store and another bound: there is one replay path, [`Projection::fold_to`].
//!
//! - The fold stops at the bound it is given, which its callers keep at or below the durable end,
//!   so state is never ahead of the log.
//! - A flush writes the changes of a partition with its checkpoint in one atomic batch.
//! - A failure inside a record puts that partition back to its last flush, from where the next call
//!   folds the same records again. After a failed flush it refuses work until the next open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::partition::{Partition, in_doubt};
use crate::error::{Error, Result};
use crate::event::{Body, Decision, Event};
use crate::fold::counters::Counters;
use crate::fold::digest::Digest;
use crate::fold::ground::Ground;
use crate::fold::key::KeyState;
use crate::fold::letter::DeadLetter;
use crate::fold::overlay::{Overlay, Totals};
use crate::fold::{Crashes, DecisionEffect, Judge, Unwatched, Watch};
use crate::log::Log;
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::partition;
use crate::state::StateStore;
use crate::state::ground::{Share, StateGround};
use crate::state::meta::PartitionMeta;

/// How many records all partitions fold side by side before they meet. Large enough that meeting
/// costs nothing, small enough that the careful pass after a crash covers little.
const CHUNK_RECORDS: u64 = 65_536;

/// What decisions did, by their offset.
pub(crate) type Heard = BTreeMap<Offset, DecisionEffect>;

/// What one fold needs besides state.
pub(crate) struct Job<'a, M> {
    pub(crate) log: &'a Log,
    pub(crate) machine: &'a M,
    pub(crate) consumer: &'a str,
    pub(crate) crashes: &'a Crashes,
    /// Flush a partition when it has this many changed entries.
    pub(crate) flush_entries: usize,
    /// Records folded per turn of a partition's lock.
    pub(crate) batch_max: usize,
    /// Where what decisions from some offset on did is written down, if the caller wants to know.
    pub(crate) heard: Option<(Offset, &'a Mutex<Heard>)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Projection {
    store: Arc<dyn StateStore>,
    consumer: Arc<str>,
    partitions: Vec<Mutex<Partition>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Projection {
    /// The projection that `store` holds, in the partitions its meta entries name.
    pub(crate) fn open(
        store: Arc<dyn StateStore>,
        log: &Log,
        consumer: &str,
        metas: Vec<PartitionMeta>,
    ) -> Self {
        let consumer: Arc<str> = Arc::from(consumer);
        let of = crate::num::to_u32(metas.len());
        let partitions = (0_u32..)
            .zip(metas)
            .map(|(index, meta)| {
                let events = log.clone();
                let ground = StateGround::new(
                    Arc::clone(&store),
                    Arc::new(move |offset| event_at(&events, offset)),
                    Arc::clone(&consumer),
                    Share { index, of },
                );
                Mutex::new(Partition::new(Share { index, of }, ground, &meta))
            })
            .collect();
        Self {
            store,
            consumer,
            partitions,
        }
    }

    pub(crate) fn store(&self) -> &Arc<dyn StateStore> {
        &self.store
    }

    pub(crate) fn partitions(&self) -> u32 {
        crate::num::to_u32(self.partitions.len())
    }

    fn of_key(&self, key: &str) -> Option<MutexGuard<'_, Partition>> {
        let index = partition(key, self.partitions());
        self.partitions
            .get(crate::num::to_usize(index.into()))
            .map(lock)
    }

    /// The first offset that some partition has not folded yet.
    pub(crate) fn checkpoint(&self) -> Offset {
        self.partitions
            .iter()
            .map(|part| lock(part).checkpoint)
            .min()
            .unwrap_or_default()
    }

    /// The first offset that the partition of `key` has not folded yet.
    pub(crate) fn checkpoint_of(&self, key: &str) -> Offset {
        self.of_key(key)
            .map_or(Offset::ZERO, |part| part.checkpoint)
    }

    /// The retry budget in force at the checkpoint.
    pub(crate) fn budget(&self) -> u32 {
        self.partitions
            .first()
            .map_or(crate::limits::MAX_ATTEMPTS_DEFAULT, |p| lock(p).budget)
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        for part in &self.partitions {
            let totals = lock(part).overlay.totals();
            sum.counters = sum.counters.merge(totals.counters);
            sum.digest = sum.digest.plus(totals.digest);
        }
        sum
    }

    pub(crate) fn counters(&self) -> Counters {
        self.partitions
            .iter()
            .fold(Counters::default(), |sum, part| {
                sum.merge(*lock(part).overlay.counters())
            })
    }

    pub(crate) fn digest(&self) -> Digest {
        self.totals().digest
    }

    /// Folds every partition up to `to`, chunk by chunk; `before` hears of each chunk first.
    pub(crate) fn fold_to<M: StateMachine>(
        &self,
        job: &Job<'_, M>,
        to: Offset,
        mut before: impl FnMut(Offset, Offset) -> Result<()>,
    ) -> Result<()> {
        loop {
            let from = self.checkpoint();
            if from >= to {
                return Ok(());
            }
            let chunk = to.min(from.plus(CHUNK_RECORDS));
            before(from, chunk)?;
            self.fold_chunk(job, chunk)?;
        }
    }

    fn fold_chunk<M: StateMachine>(&self, job: &Job<'_, M>, to: Offset) -> Result<()> {
        if let [only] = self.partitions.as_slice() {
            return self.fold_partition(job, only, to, &mut Unwatched);
        }
        std::thread::scope(|scope| {
            let fold = |part| self.fold_partition(job, part, to, &mut Unwatched);
            let workers: Vec<_> = self
                .partitions
                .iter()
                .map(|part| (part, scope.spawn(move || fold(part))))
                .collect();
            let mut answer = Ok(());
            for (part, worker) in workers {
                let folded = worker.join().unwrap_or_else(|_| {
                    // Not the machine's panic, which is caught: ours, in the middle of a record.
                    lock(part).give_up("a worker panicked");
                    Err(in_doubt(job.consumer, "a worker panicked"))
                });
                answer = answer.and(folded);
            }
            answer
        })
    }

    /// Folds partition after partition on this thread, with `watch` told of every judgement.
    pub(crate) fn fold_carefully<M: StateMachine>(
        &self,
        job: &Job<'_, M>,
        to: Offset,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        for part in &self.partitions {
            self.fold_partition(job, part, to, watch)?;
        }
        Ok(())
    }

    fn fold_partition<M: StateMachine>(
        &self,
        job: &Job<'_, M>,
        part: &Mutex<Partition>,
        to: Offset,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let from = lock(part).checkpoint;
        if from >= to {
            return Ok(());
        }
        let judge = Judge::new(job.machine, job.consumer);
        let mut cursor = job.log.cursor(from, to)?;
        loop {
            let mut guard = lock(part);
            for _ in 0..job.batch_max.max(1) {
                let Some(raw) = cursor.next()? else {
                    return Ok(());
                };
                guard.fold_one(job, &judge, &raw, watch)?;
                guard.frame_crc = cursor.frame_crc();
            }
            if guard.is_full(job.flush_entries) {
                guard.flush(&*self.store, &self.consumer)?;
            }
        }
    }

    /// Writes every partition's changes, with its checkpoint, to the store.
    pub(crate) fn flush(&self) -> Result<()> {
        for part in &self.partitions {
            lock(part).flush(&*self.store, &self.consumer)?;
        }
        Ok(())
    }

    /// The highest checkpoint in the store.
    pub(crate) fn flushed(&self) -> Offset {
        self.partitions
            .iter()
            .map(|part| lock(part).flushed)
            .max()
            .unwrap_or_default()
    }

    pub(crate) fn key(&self, key: &str) -> Result<Option<KeyState>> {
        self.of_key(key)
            .map_or(Ok(None), |part| part.overlay.key(key))
    }

    pub(crate) fn letter(&self, offset: Offset) -> Result<Option<DeadLetter>> {
        for part in &self.partitions {
            if let Some(letter) = lock(part).overlay.letter(offset)? {
                return Ok(Some(letter));
            }
        }
        Ok(None)
    }

    pub(crate) fn letters_after(&self, from: Offset, limit: usize) -> Result<Vec<DeadLetter>> {
        self.merged(
            limit,
            |part| part.letters_after(from, limit),
            |letter| letter.offset,
        )
    }

    pub(crate) fn waiting_after(
        &self,
        from: Offset,
        limit: usize,
    ) -> Result<Vec<(Offset, String)>> {
        self.merged(
            limit,
            |part| part.waiting_after(from, limit),
            |(offset, _)| *offset,
        )
    }

    pub(crate) fn keys_after(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, KeyState)>> {
        self.merged(
            limit,
            |part| part.keys_after(after, limit),
            |(key, _)| key.clone(),
        )
    }

    /// The first `limit` entries of all partitions together: each gives its own first `limit`, so
    /// none of the answer can be missing.
    fn merged<T, K: Ord>(
        &self,
        limit: usize,
        list: impl Fn(&Overlay<StateGround>) -> Result<Vec<T>>,
        order: impl Fn(&T) -> K,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        for part in &self.partitions {
            all.extend(list(&lock(part).overlay)?);
        }
        all.sort_by_key(order);
        all.truncate(limit);
        Ok(all)
    }
}

/// The event at `offset`; what the fold asks for was folded before, so it is there.
pub(crate) fn event_at(log: &Log, offset: Offset) -> Result<Event> {
    let record = log.read(offset)?;
    match record.body {
        Body::Event(event) => Ok(event),
        Body::Decision(Decision { .. }) => Err(Error::NotFound { offset }),
    }
}
