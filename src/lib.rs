//! foldlog: a persistent embedded event store.

mod codec;
mod compare;
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
mod primitive;
mod rebuild;
mod reconcile;
mod repair;
mod replay;
pub mod sequence;
mod source;
pub mod state;
pub mod storage;
mod store;
mod verify;

#[cfg(feature = "cli")]
pub mod cli;

pub use compare::{Difference, RowChange};
pub use consumer::decide::{Decided, Filter};
pub use consumer::drive::Progress;
pub use consumer::list::{List, WaitingEvent};
pub use consumer::open::Opening;
pub use consumer::options::ConsumerOptions;
pub use consumer::{Blocked, Consumer};
pub use error::{Error, Result};
pub use event::{Action, Body, Decision, Event, FixRow, Record};
pub use fold::counters::Counters;
pub use fold::digest::Digest;
pub use fold::letter::{Class, DeadLetter, Death, Resolution, Resolved};
pub use fold::{DecisionEffect, Outcome};
pub use log::recovery::{LostBytes, Recovery, Trimmed};
pub use log::{Batch, Ingested, SegmentInfo};
pub use machine::{Poison, StateMachine};
pub use offset::Offset;
pub use partition::partition;
pub use primitive::Fold;
pub use rebuild::Rebuilt;
pub use repair::{InvalidState, Repair, RepairOptions};
pub use replay::Replay;
pub use source::{Fix, MapSource, Row, Source};
pub use store::{Options, Store};
pub use verify::{LogVerified, Verified};
