//! A persistent, embedded event store for services on one node.
//!
//! - [`Store`]: a durable, append-only log in one directory. [`Store::append`] is on disk when it
//!   returns; concurrent callers share one sync.
//! - [`Consumer`]: a named fold of the log under your rules, a [`StateMachine`]: one row per key,
//!   kept in version order. What came too early waits; what can never apply is a [`DeadLetter`].
//! - [`Consumer::rebuild`], [`Consumer::verify`], [`Consumer::replay`]: everything but the log is
//!   derived, and shown to be, by one [`Digest`].
//! - [`Consumer::reconcile`] compares rows with a [`Source`] of truth and repairs them by records
//!   in the log, which a rebuild repeats.
//! - [`Fold`]: the plain rule in memory, for a caller with a broker of its own that counts
//!   deliveries.
//! - [`orders`] and [`sequence`]: two machines that are ready to use.
//! - `cli` (feature `cli`): the operator's command line, over any machine.
//! - [`storage`] and [`state`]: the seams below; feature `sim` has a simulated disk and a fake
//!   state store behind them, for crash tests of your own service.
//!
//! The README shows a whole program; [`design`] has the guarantees and what defends them, the bytes
//! on disk, and the reasons.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! use foldlog::sequence::Sequence;
//! use foldlog::{Event, Store};
//!
//! let store = Store::open(dir.path())?;
//! store.append(&Event::new("e1", "permit-7", 1, "filed"))?;
//! store.append(&Event::new("e3", "permit-7", 3, "granted"))?; // came too early: it waits
//! let permits = store.consumer("permits", Sequence)?;
//! assert_eq!(permits.get("permit-7")?.map(|row| row.version), Some(1));
//!
//! store.append(&Event::new("e2", "permit-7", 2, "checked"))?;
//! permits.catch_up()?;
//! let row = permits.get("permit-7")?.expect("a row");
//! assert_eq!((row.version, row.state.as_deref()), (3, Some("granted")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
mod options;
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
pub use event::{Action, Body, Decision, Event, EventRef, FixRow, Record};
pub use fold::counters::Counters;
pub use fold::digest::Digest;
pub use fold::letter::{Class, DeadLetter, Death, Resolution, Resolved};
pub use fold::{DecisionEffect, Outcome};
pub use log::recovery::{LostBytes, Recovery, Trimmed};
pub use log::{Batch, BodyRef, Ingested, RecordRef, Records, SegmentInfo};
pub use machine::{Poison, StateMachine};
pub use offset::Offset;
pub use options::Options;
pub use partition::partition;
pub use primitive::Fold;
pub use rebuild::Rebuilt;
pub use repair::{InvalidState, Repair, RepairOptions};
pub use replay::Replay;
pub use source::{Fix, MapSource, Row, Source};
pub use store::Store;
pub use verify::{LogVerified, Verified};

#[doc = include_str!("../DESIGN.md")]
pub mod design {}

/// The program in the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
