//! foldlog: a persistent embedded event store.

mod codec;
mod consumer;
mod error;
mod event;
mod fold;
mod frame;
pub mod limits;
mod log;
mod machine;
mod num;
mod offset;
pub mod orders;
mod partition;
mod rebuild;
mod reconcile;
pub mod sequence;
pub mod state;
#[cfg_attr(
    not(feature = "sim"),
    expect(unreachable_pub, reason = "public with the simulated disk")
)]
mod storage;
mod store;
mod verify;

#[cfg(feature = "cli")]
pub mod cli;

pub use error::{Error, Result};
pub use event::{Action, Body, Decision, Event, FixRow, Record};
pub use machine::{Poison, StateMachine};
pub use offset::Offset;
pub use partition::partition;
