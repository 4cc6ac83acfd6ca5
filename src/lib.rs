//! foldlog: a persistent, embedded event store for services on one node.
//!
//! - [`Store`]: the durable, append-only log in one directory. [`Store::append`] is durable when it
//!   returns.
//! - [`Consumer`]: a named fold of the log under a [`StateMachine`], your rules: one [`Row`] per
//!   key, folded in version order, with [waiting](Consumer::waiting) events and
//!   [dead letters](Consumer::dead_letters).
//! - Everything but the log is derived from it: [`Consumer::rebuild`], [`Consumer::verify`],
//!   [`Consumer::replay`]. [`Consumer::reconcile`] compares rows with a [`Source`] of truth.
//! - [`orders::Orders`] and [`sequence::Sequence`] are machines to begin with; [`Fold`] is the rule
//!   alone, without a log.
//!
//! The README has two programs to start from, the guarantees and the vocabulary.

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
mod replay;
pub mod sequence;
mod source;
pub mod state;
pub mod storage;
mod store;
mod verify;

#[cfg(feature = "cli")]
pub mod cli;

/// The programs of the README, as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

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
pub use log::recovery::{Recovery, Trimmed};
pub use log::{Batch, Ingested, SegmentInfo};
pub use machine::{Poison, StateMachine};
pub use offset::Offset;
pub use partition::partition;
pub use primitive::Fold;
pub use rebuild::Rebuilt;
pub use replay::Replay;
pub use source::{Fix, MapSource, Row, Source};
pub use store::{Options, Store};
pub use verify::{LogVerified, Verified};
