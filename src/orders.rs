//! The reference machine: an order is reserved, then paid, then fulfilled.

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::machine::{Poison, StateMachine};

/// The rules of an order: kinds `reserve`, `pay` and `fulfill`, which carry version 1, 2 and 3.
/// Another kind, or one of these with another version, is poison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders;

/// Where an order stands.
///
/// The order of the variants is part of the encoding of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OrderStatus {
    /// Known to a source at version 0, without an event yet.
    Created,
    /// Version 1.
    InventoryReserved,
    /// Version 2.
    Paid,
    /// Version 3.
    Fulfilled,
}

impl OrderStatus {
    const ALL: [Self; 4] = [
        Self::Created,
        Self::InventoryReserved,
        Self::Paid,
        Self::Fulfilled,
    ];

    /// The word for it: `CREATED`, `INVENTORY_RESERVED`, `PAID` or `FULFILLED`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::InventoryReserved => "INVENTORY_RESERVED",
            Self::Paid => "PAID",
            Self::Fulfilled => "FULFILLED",
        }
    }
}

impl std::fmt::Display for OrderStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for OrderStatus {
    type Err = UnknownStatus;

    fn from_str(word: &str) -> Result<Self, UnknownStatus> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == word)
            .ok_or_else(|| UnknownStatus {
                word: word.to_owned(),
            })
    }
}

/// A word that is no [`OrderStatus`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is no status of an order")]
pub struct UnknownStatus {
    word: String,
}

/// The version a kind must carry, and what it leads to.
fn step(kind: &str) -> Option<(i64, OrderStatus)> {
    match kind {
        "reserve" => Some((1, OrderStatus::InventoryReserved)),
        "pay" => Some((2, OrderStatus::Paid)),
        "fulfill" => Some((3, OrderStatus::Fulfilled)),
        _ => None,
    }
}

fn status_after(event: &Event) -> Result<OrderStatus, Poison> {
    let Event { kind, version, .. } = event;
    match step(kind) {
        None => Err(Poison::new(format!("unknown kind {kind:?}"))),
        Some((due, _)) if due != *version => Err(Poison::new(format!(
            "{kind} must carry version {due}, not {version}"
        ))),
        Some((_, status)) => Ok(status),
    }
}

impl StateMachine for Orders {
    type State = OrderStatus;

    const REVISION: u32 = 1;

    fn check(&self, event: &Event) -> Result<(), Poison> {
        status_after(event).map(|_| ())
    }

    fn apply(&self, _state: Option<&OrderStatus>, event: &Event) -> Result<OrderStatus, Poison> {
        status_after(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_carries_its_own_version_only() {
        let kinds = [
            ("reserve", 1, OrderStatus::InventoryReserved),
            ("pay", 2, OrderStatus::Paid),
            ("fulfill", 3, OrderStatus::Fulfilled),
        ];
        for (kind, due, status) in kinds {
            for version in -1..=5 {
                let event = Event::new("e", "k", version, kind);
                assert_eq!(Orders.check(&event).is_ok(), version == due);
                assert_eq!(
                    Orders.apply(None, &event).ok(),
                    (version == due).then_some(status)
                );
            }
        }
        assert!(Orders.check(&Event::new("e", "k", 1, "cancel")).is_err());
        assert!(Orders.check(&Event::new("e", "k", 1, "Reserve")).is_err());
    }

    #[test]
    fn status_words_read_back_and_encode_as_one_byte() {
        for (byte, status) in (0_u8..).zip(OrderStatus::ALL) {
            assert_eq!(status.as_str().parse(), Ok(status));
            let json = serde_json::to_string(&status).unwrap();
            assert_eq!(json, format!("\"{status}\""));
            assert_eq!(crate::codec::encode(&status, 16).unwrap(), [byte]);
        }
        assert!("paid".parse::<OrderStatus>().is_err());
    }
}
