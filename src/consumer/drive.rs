//! What moves a consumer forward: catch up, settle, run, flush.
//!
//! Everything here runs under the consumer's drive lock, so that two calls never fold, decide or
//! switch generations at once; reads do not take it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::mark::{Judging, Mark, MarkFile};
use super::projection::{Heard, Job, Projection};
use super::{Inner, lock};
use crate::error::Result;
use crate::event::{Action, Body, Decision};
use crate::fold::Watch;
use crate::fold::counters::Counters;
use crate::log::anchor::{self, Anchor};
use crate::machine::StateMachine;
use crate::offset::Offset;

/// How long [`run`](super::Consumer::run) sleeps at most before it looks at its stop flag again.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// What a call that moves a consumer did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The checkpoint before.
    pub from: Offset,
    /// The checkpoint after, exclusive.
    pub to: Offset,
    /// Redelivery rounds appended.
    pub rounds: u64,
    /// Counters before the call.
    pub before: Counters,
    /// Counters after the call.
    pub after: Counters,
}

impl Progress {
    /// How many records were folded.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.to.since(self.from)
    }

    /// How many events became applied, first deliveries and events that had waited alike.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.after.applied.saturating_sub(self.before.applied)
    }

    /// How many deliveries were duplicates of what is applied.
    #[must_use]
    pub fn duplicate(&self) -> u64 {
        self.after.duplicate.saturating_sub(self.before.duplicate)
    }

    /// How many first deliveries came too early.
    #[must_use]
    pub fn retry(&self) -> u64 {
        self.after.retry.saturating_sub(self.before.retry)
    }

    /// How many more dead letters are open now.
    #[must_use]
    pub fn dead(&self) -> u64 {
        self.after.dead.saturating_sub(self.before.dead)
    }
}

/// The right to drive one consumer: the mark file behind its lock.
#[derive(Debug)]
pub(crate) struct Drive {
    /// `None` on a read-only store, which writes nothing.
    pub(crate) mark: Option<MarkFile>,
    pub(crate) last_flush: Instant,
}

/// Keeps the mark on the event being judged.
struct MarkWatch<'a> {
    file: &'a MarkFile,
    mark: Mark,
    /// What the last process died on.
    last: Option<Judging>,
}

impl Watch for MarkWatch<'_> {
    fn judging(&mut self, at: Offset, event: Offset) -> Result<()> {
        let again = self
            .last
            .filter(|last| (last.at, last.event) == (at, event));
        let starts = again.map_or(1, |last| last.starts.saturating_add(1));
        self.mark.judging = Some(Judging { at, event, starts });
        self.file.set(Some(&self.mark))
    }
}

impl<M> Inner<M> {
    /// Flushes the live state and moves the anchor.
    pub(crate) fn flush_live(&self, drive: &mut Drive) -> Result<()> {
        let live = self.live();
        let before = live.flushed();
        live.flush()?;
        drive.last_flush = Instant::now();
        if live.flushed() > before {
            self.anchor(&live)
        } else {
            Ok(())
        }
    }

    /// Evidence for the next recovery that the records below were durable (`log/anchor.rs`).
    fn anchor(&self, live: &Projection) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let checkpoint = live.flushed();
        let anchor = Anchor {
            log_id: self.log.id(),
            epoch: self.log.epoch(),
            consumer: self.name.clone(),
            checkpoint,
            frame_crc: self.log.frame_crc_before(checkpoint)?,
        };
        anchor::write(&*self.storage, &anchor)
    }
}

impl<M: StateMachine> Inner<M> {
    pub(crate) fn job<'a>(&'a self, crashes: &'a crate::fold::Crashes) -> Job<'a, M> {
        Job {
            log: &self.log,
            machine: &self.machine,
            consumer: &self.name,
            crashes,
            flush_entries: self.options.flush_entries,
            batch_max: self.options.batch_max,
            heard: None,
        }
    }

    /// Folds the live state to `to`, marked against a machine that takes the process down.
    pub(crate) fn advance(
        &self,
        drive: &mut Drive,
        to: Offset,
        heard: Option<Offset>,
    ) -> Result<Heard> {
        let live = self.live();
        let collected = Mutex::new(Heard::new());
        if live.checkpoint() >= to {
            return Ok(Heard::new());
        }
        let crashes = self.crashes.read().unwrap_or_else(PoisonError::into_inner);
        let job = Job {
            heard: heard.map(|from| (from, &collected)),
            ..self.job(&crashes)
        };
        let flushed = live.flushed();
        let mark = drive.mark.as_ref();
        live.fold_to(&job, to, |from, to| {
            mark.map_or(Ok(()), |file| {
                file.set(Some(&Mark {
                    from,
                    to,
                    judging: None,
                }))
            })
        })?;
        if let Some(file) = mark {
            file.set(None)?;
        }
        if live.flushed() > flushed {
            self.anchor(&live)?;
            drive.last_flush = Instant::now();
        }
        Ok(collected
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner))
    }

    /// After a start that found `mark`: folds the marked range one judgement at a time. An event
    /// that has taken `budget` careful starts down gets its `Crashed` decision first.
    pub(crate) fn advance_carefully(&self, drive: &mut Drive, mark: Mark) -> Result<()> {
        let live = self.live();
        if let Some(judging) = mark.judging
            && judging.starts >= live.budget()
            && self.is_ahead(&live, judging)?
        {
            self.record_crash(judging)?;
        }
        let end = self.log.durable_end();
        let crashes = self.crashes.read().unwrap_or_else(PoisonError::into_inner);
        let job = self.job(&crashes);
        // The mark stays as found while the records below it are folded: they were folded before
        // without harm, and a start that ends there must not be forgotten.
        live.fold_to(&job, mark.from.min(end), |_, _| Ok(()))?;
        let Some(file) = drive.mark.as_ref() else {
            return Ok(());
        };
        let range = Mark {
            judging: None,
            ..mark
        };
        let mut watch = MarkWatch {
            file,
            mark: range,
            last: mark.judging,
        };
        live.fold_carefully(&job, mark.to.min(end), &mut watch)?;
        file.clear()
    }

    /// Whether the judgement is still to come. A mark is never synced while it is made, so after a
    /// power loss an old one can stand there; what is folded must not be changed any more.
    fn is_ahead(&self, live: &Projection, judging: Judging) -> Result<bool> {
        let end = self.log.durable_end();
        if judging.at >= end || judging.event > judging.at {
            return Ok(false);
        }
        let key = match self.log.read(judging.event)?.body {
            Body::Event(event) => event.key,
            Body::Decision(decision) => match decision.action.key() {
                Some(key) => key.to_owned(),
                None => return Ok(false),
            },
        };
        Ok(judging.at >= live.checkpoint_of(&key))
    }

    fn record_crash(&self, judging: Judging) -> Result<()> {
        let Judging { at, event, starts } = judging;
        tracing::warn!(
            consumer = %self.name, %at, %event, starts,
            "an event took the process down at every start: dead-lettered"
        );
        let action = Action::Crashed {
            at,
            event,
            attempts: starts,
        };
        self.log
            .append_decision(&self.decision(action, Some("crash loop".to_owned())), 0)?;
        let mut crashes = self.crashes.write().unwrap_or_else(PoisonError::into_inner);
        crashes.insert((at, event), starts);
        Ok(())
    }

    pub(crate) fn decision(&self, action: Action, note: Option<String>) -> Decision {
        Decision {
            consumer: self.name.clone(),
            note,
            action,
        }
    }

    pub(crate) fn drive(&self) -> MutexGuard<'_, Drive> {
        lock(&self.drive)
    }

    pub(crate) fn catch_up(&self, drive: &mut Drive) -> Result<Progress> {
        let live = self.live();
        let (from, before) = (live.checkpoint(), live.counters());
        self.advance(drive, self.log.refresh()?, None)?;
        let (to, after) = (live.checkpoint(), live.counters());
        tracing::debug!(consumer = %self.name, %from, %to, "caught up");
        Ok(Progress {
            from,
            to,
            rounds: 0,
            before,
            after,
        })
    }

    /// Appends one redelivery round, if an event waits that nothing known holds back.
    pub(crate) fn round(&self, live: &Arc<Projection>) -> Result<bool> {
        let counters = live.counters();
        if counters.waiting <= counters.held {
            return Ok(false);
        }
        let action = Action::Redeliver {
            below: live.checkpoint(),
        };
        self.log.append_decision(&self.decision(action, None), 0)?;
        Ok(true)
    }

    pub(crate) fn settle(&self, drive: &mut Drive) -> Result<Progress> {
        let mut progress = self.catch_up(drive)?;
        while self.round(&self.live())? {
            let step = self.catch_up(drive)?;
            progress.rounds = progress.rounds.saturating_add(1);
            (progress.to, progress.after) = (step.to, step.after);
        }
        Ok(progress)
    }

    pub(crate) fn run(&self, stop: &AtomicBool) -> Result<Progress> {
        let mut progress: Option<Progress> = None;
        let mut delay = self.options.retry_delay_min;
        let mut due: Option<Instant> = None;
        while !stop.load(Ordering::Acquire) {
            let checkpoint = {
                let mut drive = self.drive();
                let mut step = self.catch_up(&mut drive)?;
                if step.applied() > 0 {
                    delay = self.options.retry_delay_min;
                }
                if step.after.waiting <= step.after.held {
                    due = None;
                } else if due.is_none_or(|due| due <= Instant::now()) {
                    if due.is_some() && self.round(&self.live())? {
                        step.rounds = 1;
                        delay = delay.saturating_mul(2).min(self.options.retry_delay_max);
                    }
                    due = Instant::now().checked_add(delay);
                }
                if drive.last_flush.elapsed() >= self.options.flush_age {
                    self.flush_live(&mut drive)?;
                }
                let checkpoint = step.to;
                progress = Some(match progress {
                    None => step,
                    Some(sum) => Progress {
                        to: step.to,
                        rounds: sum.rounds.saturating_add(step.rounds),
                        after: step.after,
                        ..sum
                    },
                });
                checkpoint
            };
            let _new_records = self.log.wait_for(checkpoint, STOP_LOOK);
        }
        self.flush_live(&mut self.drive())?;
        Ok(progress.unwrap_or_default())
    }
}
