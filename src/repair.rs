//! The way out of a store that opening refuses: what would be lost, told without changing a byte,
//! and the same loss carried out once it is accepted.
//!
//! What is wrong with the log, and the cut itself, are `log/recovery/damage.rs` and `accept.rs`.
//! Here are the lock, the comparison with what was accepted, and the consumers: whose state is of
//! records that are no longer there.
//!
//! - After an accepted loss the log is of another epoch. State of the former one is set aside by
//!   the consumer's next open; its anchor is no evidence from then on.
//! - State of another log stays refused whatever the epoch, so it is moved away here.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::log::anchor::{self, Anchor};
use crate::log::recovery::{self, Damage, LostBytes};
use crate::log::{LogOptions, lock_storage};
use crate::offset::Offset;
use crate::state::generation::{self, Current, Generations};
use crate::state::meta::{self, Meta};
use crate::state::{StateBackend, StateError};
use crate::storage::Storage;

/// How to repair. By default a dry run: nothing is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct RepairOptions {
    accepted: Option<Offset>,
}

impl RepairOptions {
    /// Accepts that all records from `offset` on are lost. It must be the offset that a dry run
    /// names.
    pub fn accept_loss_from(mut self, offset: Offset) -> Self {
        self.accepted = Some(offset);
        self
    }
}

/// What is wrong with a store, and what repairing it loses, or has lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Repair {
    /// Why the store, or a consumer of it, is refused. Empty: there is nothing to repair.
    pub findings: Vec<String>,
    /// The records from here on are lost: the offset to accept, and where the log ends afterwards.
    pub loss_from: Offset,
    /// At least the records below it existed; the loss is at least from `loss_from` up to it.
    pub known_end: Offset,
    /// The bytes that are cut off the last segment that stays.
    pub cut: Option<LostBytes>,
    /// Files of the log that go as a whole.
    pub dropped: Vec<LostBytes>,
    /// Consumers whose state and anchor are invalid afterwards, and made again from the log when
    /// they are next opened.
    pub consumers: Vec<InvalidState>,
    /// The epoch of the log afterwards.
    pub epoch: u32,
    /// The directory that what goes is copied to.
    pub quarantine: String,
    /// The copies made.
    pub kept: Vec<String>,
    /// An earlier repair was accepted and interrupted; it is finished by this one, or by opening
    /// for writing.
    pub unfinished: bool,
    /// It was accepted and carried out; else this is a dry run.
    pub done: bool,
}

impl Repair {
    /// Whether there is anything to repair.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        !self.findings.is_empty()
    }

    /// How many bytes of the log go.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let lost = self.cut.iter().chain(&self.dropped);
        lost.fold(0, |sum, lost| sum.saturating_add(lost.bytes))
    }
}

/// A consumer whose state counts no more after a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct InvalidState {
    /// The consumer.
    pub consumer: String,
    /// How far its state was folded, or its anchor says so; `None` where neither can be read.
    pub checkpoint: Option<Offset>,
    /// It is of another log: its directory is moved to the quarantine by the repair itself.
    pub other_log: bool,
}

/// What was found: the log, and who has state.
struct Findings {
    damage: Damage,
    /// Reasons why consumers are refused.
    refusals: Vec<Error>,
    consumers: Vec<InvalidState>,
    /// A new epoch has to begin.
    renew: bool,
    epoch_max: u32,
}

/// A store that may need repair.
pub(crate) struct Patient {
    storage: Arc<dyn Storage>,
    states: Arc<dyn StateBackend>,
    options: LogOptions,
}

impl Patient {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        states: Arc<dyn StateBackend>,
        options: LogOptions,
    ) -> Self {
        Self {
            storage,
            states,
            options,
        }
    }

    /// See `Options::repair`.
    pub(crate) fn repair(&self, how: RepairOptions) -> Result<Repair> {
        let path = || self.storage.path("");
        match self.storage.writer_is_live() {
            Ok(false) => {}
            Ok(true) => {
                return Err(Error::Locked {
                    path: path(),
                    pid: None,
                });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NoStore { path: path() });
            }
            Err(error) => return Err(self.io("probe the lock of", "", error)),
        }
        // Looked at before the lock is taken: a wrong offset touches nothing at all.
        let report = self.look()?.1;
        let Some(accepted) = how.accepted.filter(|_| report.is_needed()) else {
            return Ok(report);
        };
        check_accepted(accepted, &report)?;
        let lock = lock_storage(&*self.storage)?;
        let unfinished = recovery::finish_pending(&self.storage, &self.options)?.is_some();
        let (found, mut report) = match self.look() {
            // The log is whole again.
            Ok((found, again)) if unfinished && !again.is_needed() => (found, report),
            Ok((found, again)) => {
                check_accepted(accepted, &again)?;
                (found, again)
            }
            Err(error) => return Err(error),
        };
        report.unfinished = unfinished;
        if let Some(found) = found {
            self.carry_out(&found, &mut report)?;
        }
        report.done = true;
        drop(lock);
        tracing::warn!(?report, "a loss was accepted");
        Ok(report)
    }

    /// Looks at everything and writes nothing. Without findings where a repair is unfinished: the
    /// log has to be brought to its end first.
    fn look(&self) -> Result<(Option<Findings>, Repair)> {
        if let Some(order) = recovery::pending(&*self.storage)? {
            let unfinished = Error::RepairUnfinished {
                path: self.storage.path(""),
                offset: order.end,
            };
            let report = Repair {
                findings: vec![unfinished.to_string()],
                loss_from: order.end,
                known_end: order.end,
                epoch: order.epoch,
                quarantine: directory(order.epoch, order.end),
                unfinished: true,
                ..Repair::default()
            };
            return Ok((None, report));
        }
        let (anchors, _) = anchor::read_all(&*self.storage)?;
        let damage = recovery::look(&self.storage, &anchors)?;
        let mut found = Findings {
            renew: !damage.findings.is_empty(),
            epoch_max: damage.epoch_max,
            damage,
            refusals: Vec::new(),
            consumers: Vec::new(),
        };
        for consumer in generation::consumers(&*self.storage)? {
            let anchor = anchors.iter().find(|anchor| anchor.consumer == consumer);
            self.look_at(&mut found, consumer, anchor)?;
        }
        let report = report(&found)?;
        Ok((Some(found), report))
    }

    /// Looks at one consumer's state, in a private copy. State that cannot be read is healed by
    /// opening the consumer.
    fn look_at(
        &self,
        found: &mut Findings,
        consumer: String,
        anchor: Option<&Anchor>,
    ) -> Result<()> {
        let meta = self.meta(&consumer)?;
        let damage = &found.damage;
        let ids = meta.iter().map(|meta| meta.global.log_id);
        let mut ids = ids.chain(anchor.map(|anchor| anchor.log_id));
        let other_log = ids.any(|id| Some(id) != damage.log_id);
        let checkpoints = meta.iter().flat_map(|meta| &meta.partitions);
        let checkpoints = checkpoints.map(|part| part.checkpoint);
        let state = InvalidState {
            checkpoint: checkpoints
                .chain(anchor.map(|anchor| anchor.checkpoint))
                .max(),
            consumer: consumer.clone(),
            other_log,
        };
        if other_log {
            found.refusals.push(Error::WrongLog { consumer });
        } else if let Some(meta) = &meta {
            found.epoch_max = found.epoch_max.max(meta.global.epoch);
            if let Some(refusal) = refusal(damage, meta, &consumer)? {
                found.damage.known_end = found.damage.known_end.max(checkpoint_of(meta));
                found.refusals.push(refusal);
                found.renew = true;
            }
        }
        found.consumers.push(state);
        Ok(())
    }

    fn meta(&self, consumer: &str) -> Result<Option<Meta>> {
        let (storage, states) = (Arc::clone(&self.storage), Arc::clone(&self.states));
        let generations = Generations::new(storage, states, consumer)?;
        let Current::Live(number) = generations.current()? else {
            return Ok(None);
        };
        let copy = self.states.copy(&generations.path(number));
        match copy.and_then(|store| meta::read(&*store)) {
            Ok(meta) => Ok(meta),
            Err(error @ (StateError::Busy { .. } | StateError::Io { .. })) => {
                Err(error.of(consumer))
            }
            Err(_) => Ok(None),
        }
    }

    fn carry_out(&self, found: &Findings, report: &mut Repair) -> Result<()> {
        if found.renew {
            let what = (report.epoch, report.quarantine.as_str());
            report.kept = recovery::accept(&self.storage, &self.options, &found.damage, what)?;
        }
        let others = report.consumers.iter().filter(|state| state.other_log);
        for state in others {
            let name = self.move_away(&state.consumer, &report.quarantine)?;
            report.kept.push(name);
        }
        Ok(())
    }

    /// Moves the directory of a consumer that is of another log.
    fn move_away(&self, consumer: &str, dir: &str) -> Result<String> {
        let storage = &self.storage;
        let create = storage.create_dir(dir);
        create.map_err(|error| self.io("create directory", dir, error))?;
        for parent in ["", "quarantine"] {
            let synced = storage.sync_dir(parent);
            synced.map_err(|error| self.io("sync directory", parent, error))?;
        }
        let there = storage.list(dir);
        let there = there.map_err(|error| self.io("list", dir, error))?;
        let plain = format!("state-{consumer}");
        let mut name = plain.clone();
        let mut again = 1_u64;
        while there.iter().any(|entry| entry.name == name) {
            again = again.checked_add(1).ok_or(Error::Overflow)?;
            name = format!("{plain}-{again}");
        }
        let (from, to) = (format!("state/{consumer}"), format!("{dir}/{name}"));
        let renamed = storage.rename(&from, &to);
        renamed.map_err(|error| self.io("rename", &from, error))?;
        for parent in [dir, "state"] {
            let synced = storage.sync_dir(parent);
            synced.map_err(|error| self.io("sync directory", parent, error))?;
        }
        Ok(to)
    }

    fn io(&self, op: &'static str, name: &str, error: std::io::Error) -> Error {
        Error::io(op, self.storage.path(name), None, 0, error)
    }
}

fn check_accepted(accepted: Offset, report: &Repair) -> Result<()> {
    if accepted == report.loss_from {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "accepted loss",
        reason: format!(
            "from offset {accepted} on was accepted, but it is from {} on",
            report.loss_from
        ),
    })
}

/// Why the consumer's open would refuse this state of the same log, the log being what it is.
fn refusal(damage: &Damage, meta: &Meta, consumer: &str) -> Result<Option<Error>> {
    if meta.global.epoch < damage.epoch {
        return Ok(None);
    }
    for part in &meta.partitions {
        let (consumer, checkpoint) = (consumer.to_owned(), part.checkpoint);
        if checkpoint > damage.end {
            return Ok(Some(Error::StateAheadOfLog {
                consumer,
                checkpoint,
                end: damage.end,
            }));
        }
        if meta.global.epoch > damage.epoch
            || damage.frame_crc_before(checkpoint)? != part.frame_crc
        {
            return Ok(Some(Error::Diverged {
                consumer,
                checkpoint,
            }));
        }
    }
    Ok(None)
}

fn checkpoint_of(meta: &Meta) -> Offset {
    let checkpoints = meta.partitions.iter().map(|part| part.checkpoint);
    checkpoints.max().unwrap_or_default()
}

/// Where copies of what goes are kept.
fn directory(epoch: u32, end: Offset) -> String {
    format!("quarantine/repair-{epoch}-{end}")
}

fn report(found: &Findings) -> Result<Repair> {
    let damage = &found.damage;
    let findings = damage.findings.iter().chain(&found.refusals);
    let findings: Vec<String> = findings.map(ToString::to_string).collect();
    let mut report = Repair {
        loss_from: damage.end,
        known_end: damage.known_end,
        epoch: damage.epoch,
        findings,
        ..Repair::default()
    };
    if found.renew {
        report.epoch = found.epoch_max.checked_add(1).ok_or(Error::Overflow)?;
        report.cut.clone_from(&damage.cut);
        report.dropped.clone_from(&damage.dropped);
        report.consumers.clone_from(&found.consumers);
    } else {
        let others = found.consumers.iter().filter(|state| state.other_log);
        report.consumers = others.cloned().collect();
    }
    report.quarantine = directory(report.epoch, damage.end);
    Ok(report)
}
