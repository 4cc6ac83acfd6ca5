//! Opening a consumer: find its state, heal what can be healed, refuse what must not be guessed,
//! catch up.
//!
//! | what is found | what happens |
//! |---|---|
//! | nothing | new state, folded from 0 |
//! | state older than the log | caught up |
//! | missing or unreadable `CURRENT`, missing directory | folded anew, reported |
//! | damaged, not to be opened, of an unknown format | set aside in `quarantine/`, folded anew, reported |
//! | of another machine revision | folded anew, reported |
//! | of an epoch before an accepted loss | set aside in `quarantine/`, folded anew, reported |
//! | of another log, ahead of the log, or folded from other records | typed error, files untouched |

use std::collections::HashSet;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use super::drive::Drive;
use super::mark::{Mark, MarkFile};
use super::options::{ConsumerOptions, PARTITIONS_MAX};
use super::projection::Projection;
use super::{Consumer, Inner, lock};
use crate::error::{Error, Result};
use crate::event::Action;
use crate::limits::MAX_ATTEMPTS_DEFAULT;
use crate::log::{Log, anchor};
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::rebuild::crashes;
use crate::state::generation::{Current, Found, Generations};
use crate::state::meta::{self, Global, Meta, PartitionMeta, STATE_FORMAT};
use crate::state::{StateBackend, StateStore, ground};
use crate::storage::Storage;

/// Where consumers of one store live.
pub(crate) struct Place {
    pub(crate) log: Log,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) backend: Arc<dyn StateBackend>,
    pub(crate) read_only: bool,
}

/// The right to a consumer's name within one store handle; given back when dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    open: Arc<Mutex<HashSet<String>>>,
    name: String,
}

impl Registration {
    pub(crate) fn take(open: &Arc<Mutex<HashSet<String>>>, name: &str) -> Result<Self> {
        if !lock(open).insert(name.to_owned()) {
            return Err(Error::ConsumerOpen {
                consumer: name.to_owned(),
            });
        }
        Ok(Self {
            open: Arc::clone(open),
            name: name.to_owned(),
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.name);
    }
}

/// What opening a consumer found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Opening {
    /// Why the state was folded anew from offset 0; `None` if it was new or used as found.
    pub rebuilt: Option<String>,
    /// Where a damaged state, or one from before an accepted loss, was moved, relative to the
    /// store.
    pub set_aside: Option<String>,
    /// Left-over generations removed, of an interrupted rebuild for one.
    pub left_overs: Vec<String>,
    /// The checkpoint of the state as found.
    pub found_at: Offset,
    /// The checkpoint when opening was done.
    pub caught_up_to: Offset,
    /// An earlier start died while this range was folded; it was folded with care.
    pub died_in: Option<(Offset, Offset)>,
}

/// State at offset 0.
pub(crate) fn fresh_metas(partitions: u32) -> Vec<PartitionMeta> {
    let one = PartitionMeta {
        budget: MAX_ATTEMPTS_DEFAULT,
        ..PartitionMeta::default()
    };
    (0..partitions).map(|_| one.clone()).collect()
}

/// What a state of `log` under machine revision `revision` says of itself.
pub(crate) fn global(log: &Log, revision: u32, partitions: u32) -> Global {
    Global {
        format: STATE_FORMAT,
        log_id: log.id(),
        epoch: log.epoch(),
        revision,
        partitions,
    }
}

struct Loader<'a> {
    place: &'a Place,
    generations: &'a Generations,
    name: &'a str,
    revision: u32,
    partitions: u32,
    opening: Opening,
}

impl Loader<'_> {
    fn load(&mut self) -> Result<(Arc<dyn StateStore>, Meta)> {
        self.check_anchor()?;
        if self.place.read_only {
            return self.load_copy();
        }
        let (reason, old) = match self.generations.open_live()? {
            Found::Live {
                number,
                store,
                meta,
            } if self.is_former(&meta) => {
                // The mark is of the records that it was folded from.
                let dir = self.generations.dir();
                MarkFile::open(&*self.place.storage, &dir)?.0.clear()?;
                drop(store);
                self.opening.set_aside = Some(self.generations.set_aside(number)?);
                let (found, now) = (meta.global.epoch, self.place.log.epoch());
                (
                    Some(format!(
                        "a loss was accepted since: the log is of epoch {now}, the state of {found}"
                    )),
                    None,
                )
            }
            Found::Live {
                number,
                store,
                meta,
            } => {
                self.check(&meta)?;
                if meta.global.revision == self.revision {
                    self.opening.left_overs = self.generations.remove_left_overs(Some(number))?;
                    return Ok((store, meta));
                }
                let (found, now) = (meta.global.revision, self.revision);
                (
                    Some(format!("machine revision {now}, state of revision {found}")),
                    Some(number),
                )
            }
            Found::Nothing => (None, None),
            Found::Lost { reason } => (Some(reason), None),
            Found::Damaged { number, error } => {
                self.opening.set_aside = Some(self.generations.set_aside(number)?);
                (Some(error.to_string()), None)
            }
        };
        if let Some(reason) = &reason {
            let set_aside = &self.opening.set_aside;
            tracing::warn!(consumer = %self.name, %reason, ?set_aside, "state is folded anew");
        }
        self.opening.rebuilt = reason;
        let (number, store) = self.generations.create()?;
        let meta = self.write_fresh(&*store)?;
        store.sync().map_err(|error| error.of(self.name))?;
        self.generations.switch(number)?;
        if let Some(old) = old {
            self.generations.remove(old)?;
        }
        self.opening.left_overs = self.generations.remove_left_overs(Some(number))?;
        Ok((store, meta))
    }

    /// A read-only store leaves the state directory alone: it works on a private copy, which is
    /// just an older cache, or folds everything into a temporary store.
    fn load_copy(&mut self) -> Result<(Arc<dyn StateStore>, Meta)> {
        if let Current::Live(number) = self.generations.current()? {
            let copy = self.place.backend.copy(&self.generations.path(number));
            match copy.and_then(|store| Ok((ground::audit(&*store)?, store))) {
                Ok((Some(meta), _)) if self.is_former(&meta) => {}
                Ok((Some(meta), store)) => {
                    if self.check_copy(&meta)? && meta.global.revision == self.revision {
                        return Ok((store, meta));
                    }
                }
                Ok((None, _)) => {}
                Err(error) => {
                    tracing::info!(consumer = %self.name, %error, "no copy, the log is folded");
                }
            }
            self.opening.rebuilt =
                Some("the state could not be used, the log was folded".to_owned());
        }
        let store = self
            .place
            .backend
            .scratch()
            .map_err(|error| error.of(self.name))?;
        let meta = self.write_fresh(&*store)?;
        Ok((store, meta))
    }

    fn write_fresh(&self, store: &dyn StateStore) -> Result<Meta> {
        let global = global(&self.place.log, self.revision, self.partitions);
        let meta = Meta {
            global,
            partitions: fresh_metas(self.partitions),
        };
        let batch = meta::encode_all(&meta, 0).map_err(|error| error.of(self.name))?;
        store.apply(&batch).map_err(|error| error.of(self.name))?;
        Ok(meta)
    }

    /// State of another log is refused before anything opens it: opening a database can write.
    /// The anchor beside it tells whose it is; where that is missing, a private copy does.
    fn check_anchor(&self) -> Result<()> {
        let log = &self.place.log;
        let anchors = anchor::read_all(&*self.place.storage)?.0;
        match anchors.iter().find(|anchor| anchor.consumer == self.name) {
            Some(anchor) if anchor.log_id != log.id() || anchor.epoch > log.epoch() => {
                Err(Error::WrongLog {
                    consumer: self.name.to_owned(),
                })
            }
            Some(_) => Ok(()),
            None => {
                let Current::Live(number) = self.generations.current()? else {
                    return Ok(());
                };
                let copy = self.place.backend.copy(&self.generations.path(number));
                match copy.and_then(|store| meta::read(&*store)) {
                    Ok(Some(meta)) if self.is_former(&meta) => Ok(()),
                    Ok(Some(meta)) => self.check(&meta),
                    // Damage is for the real open to find and set aside.
                    Ok(None) | Err(_) => Ok(()),
                }
            }
        }
    }

    /// Whether the state is of this log before a loss was accepted: some of the records that it was
    /// folded from may be gone, and others stand in their place.
    fn is_former(&self, meta: &Meta) -> bool {
        let log = &self.place.log;
        meta.global.log_id == log.id() && meta.global.epoch < log.epoch()
    }

    /// Whether a copy can be used. Beside a live writer it may be ahead of what the log proves to
    /// be durable by now: no fault of either.
    fn check_copy(&self, meta: &Meta) -> Result<bool> {
        let storage = &self.place.storage;
        let live = storage
            .writer_is_live()
            .map_err(|error| Error::io("probe the lock of", storage.path(""), None, 0, error))?;
        self.place.log.refresh()?;
        match self.check(meta) {
            Err(Error::StateAheadOfLog { .. }) if live => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    fn check(&self, meta: &Meta) -> Result<()> {
        let (log, consumer) = (&self.place.log, self.name.to_owned());
        if (meta.global.log_id, meta.global.epoch) != (log.id(), log.epoch()) {
            return Err(Error::WrongLog { consumer });
        }
        let end = log.durable_end();
        for part in &meta.partitions {
            let checkpoint = part.checkpoint;
            if checkpoint > end {
                return Err(Error::StateAheadOfLog {
                    consumer,
                    checkpoint,
                    end,
                });
            }
            if log.frame_crc_before(checkpoint)? != part.frame_crc {
                return Err(Error::Diverged {
                    consumer,
                    checkpoint,
                });
            }
        }
        Ok(())
    }
}

impl<M: StateMachine> Consumer<M> {
    pub(crate) fn open(
        place: Place,
        registration: Registration,
        machine: M,
        options: ConsumerOptions,
    ) -> Result<Self> {
        if !(1..=PARTITIONS_MAX).contains(&options.partitions) {
            return Err(Error::Invalid {
                what: "partitions",
                reason: format!("must be from 1 to {PARTITIONS_MAX}"),
            });
        }
        let name = registration.name.clone();
        let storage = Arc::clone(&place.storage);
        let generations =
            Generations::new(Arc::clone(&storage), Arc::clone(&place.backend), &name)?;
        let mut loader = Loader {
            place: &place,
            generations: &generations,
            name: &name,
            revision: M::REVISION,
            partitions: options.partitions,
            opening: Opening::default(),
        };
        let (store, meta) = loader.load()?;
        let mut opening = loader.opening;
        opening.found_at = meta.checkpoint();
        let (mark, died) = if place.read_only {
            (None, None)
        } else {
            let (file, mark) = MarkFile::open(&*storage, &generations.dir())?;
            (Some(file), mark)
        };
        opening.died_in = died.map(|mark| (mark.from, mark.to));
        let live = Projection::open(store, &place.log, &name, meta.partitions);
        let known = crashes(&place.log, &name, live.checkpoint())?;
        let mut inner = Inner {
            name,
            machine,
            options,
            read_only: place.read_only,
            log: place.log,
            storage,
            backend: place.backend,
            generations,
            opening,
            live: RwLock::new(Arc::new(live)),
            crashes: RwLock::new(known),
            drive: Mutex::new(Drive {
                mark,
                last_flush: Instant::now(),
            }),
            rebuilding: Mutex::new(()),
            _registration: registration,
        };
        inner.start(died)?;
        inner.opening.caught_up_to = inner.live().checkpoint();
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

impl<M: StateMachine> Inner<M> {
    /// Brings freshly loaded state to the durable end, into the partitions and under the budget
    /// that the options ask for.
    fn start(&self, died: Option<Mark>) -> Result<()> {
        let mut drive = self.drive();
        if let Some(mark) = died {
            self.advance_carefully(&mut drive, mark)?;
        }
        self.catch_up(&mut drive)?;
        if self.live().partitions() != self.options.partitions {
            self.repartition(&mut drive)?;
        }
        let Some(wanted) = self.options.max_attempts else {
            return Ok(());
        };
        let wanted = if wanted == 0 {
            MAX_ATTEMPTS_DEFAULT
        } else {
            wanted
        };
        if wanted != self.live().budget() {
            let action = Action::Configure {
                max_attempts: wanted,
            };
            self.log.append_decision(&self.decision(action, None), 0)?;
            self.catch_up(&mut drive)?;
        }
        Ok(())
    }

    /// Spreads the same state over another number of partitions, all at one offset by now.
    fn repartition(&self, drive: &mut Drive) -> Result<()> {
        self.flush_live(drive)?;
        let live = self.live();
        let old = live.partitions();
        let checkpoint = live.checkpoint();
        let mut partitions = fresh_metas(self.options.partitions);
        for part in &mut partitions {
            part.checkpoint = checkpoint;
            part.frame_crc = self.log.frame_crc_before(checkpoint)?;
            part.budget = live.budget();
        }
        // Totals are sums, and only the sum is ever looked at.
        if let Some(first) = partitions.first_mut() {
            first.totals = live.totals();
        }
        let global = global(&self.log, M::REVISION, self.options.partitions);
        let meta = Meta { global, partitions };
        let store = Arc::clone(live.store());
        let batch = meta::encode_all(&meta, old).map_err(|error| error.of(&self.name))?;
        store.apply(&batch).map_err(|error| error.of(&self.name))?;
        let fresh = Projection::open(store, &self.log, &self.name, meta.partitions);
        drop(self.set_live(fresh));
        Ok(())
    }
}
