//! [`Fold`]: the plain rule in memory, for a caller with a broker of its own that counts
//! deliveries.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::event::Event;
use crate::fold::judge::{BUDGET_SPENT, VERSION_BELOW_1};
use crate::fold::key::RawRow;
use crate::fold::letter::{Class, DeadLetter, Death, cut_reason};
use crate::fold::{Outcome, Place, budget, call, place};
use crate::machine::{Poison, StateMachine};
use crate::offset::Offset;
use crate::source::{Fix, Row, Source, compare};

/// Rows and dead letters in memory, one event at a time, without a log.
///
/// The caller delivers each event together with how often it was delivered; nothing waits in here,
/// so whoever gets [`Outcome::Retry`] delivers the event again later. Deliveries are numbered from
/// 0, and so are the reconciled repairs; the numbers stand where a store would have the offset of
/// the record.
///
/// ```
/// use foldlog::orders::{OrderStatus, Orders};
/// use foldlog::{Event, Fold, Outcome};
///
/// let mut fold = Fold::new(Orders, 3);
/// let pay = Event::new("e2", "order-1", 2, "pay");
/// assert_eq!(fold.handle(&pay, 1)?, Outcome::Retry);
/// assert_eq!(fold.handle(&Event::new("e1", "order-1", 1, "reserve"), 1)?, Outcome::Applied);
/// assert_eq!(fold.handle(&pay, 2)?, Outcome::Applied);
/// assert_eq!(fold.get("order-1")?.unwrap().state, Some(OrderStatus::Paid));
/// # Ok::<(), foldlog::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fold<M> {
    machine: M,
    max_attempts: u32,
    rows: BTreeMap<String, RawRow>,
    dead: Vec<DeadLetter>,
    applied: u64,
    next: Offset,
    scratch: Vec<u8>,
}

impl<M: StateMachine> Fold<M> {
    /// Nothing, under the rules of `machine`. With `max_attempts` below 1 it is 3.
    #[must_use]
    pub const fn new(machine: M, max_attempts: u32) -> Self {
        Self {
            machine,
            max_attempts: budget(max_attempts),
            rows: BTreeMap::new(),
            dead: Vec::new(),
            applied: 0,
            next: Offset::ZERO,
            scratch: Vec::new(),
        }
    }

    /// Judges one delivery of `event`, the `attempt`-th one.
    ///
    /// An event of a version that the row has is a duplicate; the next version is applied; of a
    /// later one, the delivery is to be retried, or dead once `attempt` reaches the budget. What
    /// the machine refuses, and a version below 1, is dead at once.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] if the row's state does not decode; nothing changed.
    pub fn handle(&mut self, event: &Event, attempt: u32) -> Result<Outcome> {
        let at = self.next;
        let verdict = self.judge(event, at)?;
        self.next = at.next();
        let (class, poison) = match verdict {
            Ok(Place::Passed) => return Ok(Outcome::Duplicate),
            Ok(Place::Next) => return Ok(Outcome::Applied),
            Ok(Place::Gap) if attempt < self.max_attempts => return Ok(Outcome::Retry),
            Ok(Place::Gap) => (Class::Conflict, Poison::new(BUDGET_SPENT)),
            Err(poison) => (Class::Poison, poison),
        };
        self.dead.push(DeadLetter {
            offset: at,
            id: event.id.clone(),
            key: event.key.clone(),
            version: event.version,
            history: vec![Death {
                class,
                reason: cut_reason(poison.reason()),
                attempts: attempt,
                at,
                resolved: None,
            }],
        });
        Ok(Outcome::Dead)
    }

    /// Where the event stands, and if it is the next of its key, applies it.
    fn judge(&mut self, event: &Event, at: Offset) -> Result<Result<Place, Poison>> {
        if let Err(poison) = call::check(&self.machine, event) {
            return Ok(Err(poison));
        }
        if event.version < 1 {
            return Ok(Err(Poison::new(VERSION_BELOW_1)));
        }
        let row = self.rows.get_mut(&event.key);
        let place = place(row.as_ref().map_or(0, |row| row.version), event.version);
        if place != Place::Next {
            return Ok(Ok(place));
        }
        let state = row.as_ref().and_then(|row| row.state.as_deref());
        let verdict = call::apply(&self.machine, state, event, &mut self.scratch);
        let verdict = verdict.map_err(|reason| Error::Codec {
            key: event.key.clone(),
            verb: "decoded",
            reason,
        })?;
        if let Err(poison) = verdict {
            return Ok(Err(poison));
        }
        let moved = RawRow {
            version: event.version,
            state: Some(self.scratch.clone()),
            moved_at: at,
        };
        match row {
            Some(row) => *row = moved,
            None => drop(self.rows.insert(event.key.clone(), moved)),
        }
        self.applied = self.applied.saturating_add(1);
        Ok(Ok(place))
    }

    /// Compares the rows of `keys` with `source` and repairs each that differs. Keys that the
    /// source does not know are left alone. Gives the repairs in the order of `keys`.
    ///
    /// # Errors
    ///
    /// - [`Error::SourceUnavailable`]: repairs made before stay.
    /// - [`Error::Codec`]: a state does not encode or decode; repairs made before stay.
    pub fn reconcile<K: AsRef<str>>(
        &mut self,
        source: &impl Source<M::State>,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Fix<M::State>>> {
        let mut fixes = Vec::new();
        for key in keys {
            let key = key.as_ref();
            if let Some(difference) = compare(source, key, self.rows.get(key))? {
                let row = RawRow {
                    version: difference.to.version,
                    state: difference.to.state,
                    moved_at: self.next,
                };
                self.next = self.next.next();
                self.rows.insert(key.to_owned(), row);
                fixes.push(difference.fix);
            }
        }
        Ok(fixes)
    }

    /// The row of `key`.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] if its state does not decode.
    pub fn get(&self, key: &str) -> Result<Option<Row<M::State>>> {
        self.rows
            .get(key)
            .map(|row| Row::decode(key, row))
            .transpose()
    }

    /// All rows, in the order of their keys.
    ///
    /// # Errors
    ///
    /// Each item is [`Error::Codec`] if the state of that row does not decode.
    pub fn rows(&self) -> impl Iterator<Item = Result<(&str, Row<M::State>)>> {
        self.rows
            .iter()
            .map(|(key, row)| Ok((key.as_str(), Row::decode(key, row)?)))
    }

    /// The dead letters, in the order in which they died.
    #[must_use]
    pub fn dead_letters(&self) -> &[DeadLetter] {
        &self.dead
    }

    /// How many events advanced a row. Repairs do not count.
    #[must_use]
    pub const fn applied(&self) -> u64 {
        self.applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::{OrderStatus, Orders};
    use crate::source::MapSource;

    fn event(version: i64, kind: &str) -> Event {
        Event::new(format!("e{version}"), "o", version, kind)
    }

    #[test]
    fn out_of_order_is_rejected_then_converges() {
        let mut fold = Fold::new(Orders, 3);
        let pay = event(2, "pay");
        assert_eq!(fold.handle(&pay, 1).unwrap(), Outcome::Retry);
        let reserve = event(1, "reserve");
        assert_eq!(fold.handle(&reserve, 1).unwrap(), Outcome::Applied);
        assert_eq!(fold.handle(&pay, 2).unwrap(), Outcome::Applied);
        let row = fold.get("o").unwrap().unwrap();
        assert_eq!((row.version, row.state), (2, Some(OrderStatus::Paid)));
        assert_eq!(row.moved_at, Offset::new(2));
        assert_eq!(fold.applied(), 2);
        assert!(fold.dead_letters().is_empty());
    }

    #[test]
    fn poison_goes_straight_to_the_dead_letters() {
        let mut fold = Fold::new(Orders, 3);
        for poison in [event(1, "cancel"), event(1, "pay")] {
            assert_eq!(fold.handle(&poison, 1).unwrap(), Outcome::Dead);
        }
        let dead = fold.dead_letters();
        assert_eq!(dead.len(), 2);
        assert!(dead.iter().all(|letter| letter.attempts() == 1));
        assert!(dead.iter().all(|letter| letter.class() == Class::Poison));
    }

    #[test]
    fn conflict_exhausts_the_retry_budget() {
        let mut fold = Fold::new(Orders, 0);
        let pay = event(2, "pay");
        let outcomes = [1, 2, 3].map(|attempt| fold.handle(&pay, attempt).unwrap());
        let expected = [Outcome::Retry, Outcome::Retry, Outcome::Dead];
        assert_eq!(outcomes, expected);
        let letter = &fold.dead_letters()[0];
        assert_eq!((letter.class(), letter.attempts()), (Class::Conflict, 3));
    }

    #[test]
    fn reconcile_repairs_a_dead_lettered_order() {
        let mut fold = Fold::new(Orders, 3);
        let reserve = event(1, "reserve");
        assert_eq!(fold.handle(&reserve, 1).unwrap(), Outcome::Applied);
        assert_eq!(fold.handle(&event(2, "cancel"), 1).unwrap(), Outcome::Dead);
        let truth: MapSource<_> = [("o", 2, OrderStatus::Paid)].into_iter().collect();
        let keys = ["o", "unknown", "o"];
        let fixes = fold.reconcile(&truth, keys).unwrap();
        assert_eq!(fixes.len(), 1);
        let before = Some((1, Some(OrderStatus::InventoryReserved)));
        assert_eq!(fixes[0].from, before);
        assert_eq!(fixes[0].to, (2, OrderStatus::Paid));
        assert_eq!(fold.get("o").unwrap().unwrap().version, 2);
        assert_eq!(fold.dead_letters().len(), 1);
        assert_eq!(fold.reconcile(&truth, keys).unwrap(), []);
    }

    #[test]
    fn a_source_that_fails_stops_reconciling_and_keeps_what_was_repaired() {
        struct Flaky;
        impl Source<OrderStatus> for Flaky {
            fn status(
                &self,
                key: &str,
            ) -> Result<Option<(i64, OrderStatus)>, Box<dyn std::error::Error + Send + Sync>>
            {
                if key == "down" {
                    return Err("timeout".into());
                }
                Ok(Some((0, OrderStatus::Created)))
            }
        }
        let mut fold = Fold::new(Orders, 3);
        let failed = fold.reconcile(&Flaky, ["a", "down", "b"]);
        let Err(Error::SourceUnavailable { reason }) = failed else {
            panic!("{failed:?}");
        };
        assert_eq!(reason, "timeout");
        let keys: Vec<_> = fold.rows().map(|row| row.unwrap().0.to_owned()).collect();
        assert_eq!(keys, ["a"]);
    }
}
