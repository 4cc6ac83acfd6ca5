//! How a consumer is opened.

use std::time::Duration;

/// Options of one consumer. None of them changes a verdict or the digest, except
/// [`max_attempts`](Self::max_attempts), which is therefore written to the log.
#[derive(Clone, Debug)]
#[must_use]
pub struct ConsumerOptions {
    pub(crate) partitions: u32,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) batch_max: usize,
    pub(crate) flush_entries: usize,
    pub(crate) flush_age: Duration,
    pub(crate) retry_delay_min: Duration,
    pub(crate) retry_delay_max: Duration,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            partitions: 1,
            max_attempts: None,
            batch_max: 1024,
            flush_entries: 10_000,
            flush_age: Duration::from_secs(1),
            retry_delay_min: Duration::from_secs(1),
            retry_delay_max: Duration::from_secs(60),
        }
    }
}

/// Most partitions of one consumer: each is a thread while it folds.
pub(crate) const PARTITIONS_MAX: u32 = 256;

impl ConsumerOptions {
    /// In how many partitions the consumer folds side by side, each on a thread of its own. The
    /// result does not depend on it, and it may change between opens. Default: 1. At most 256.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// How many delivery attempts an early event gets before it is a dead letter; below 1 means 3.
    /// Without this option the budget stays what the log says (3 at first).
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = Some(max_attempts);
        self
    }

    /// How many records are folded before waiting readers get their turn. Default: 1024.
    pub fn batch_max(mut self, records: usize) -> Self {
        self.batch_max = records;
        self
    }

    /// State goes to disk when this many entries of a partition have changed. More makes flushes
    /// rarer and cheaper per entry, and the fold after a crash longer. Default: 10,000.
    pub fn flush_entries(mut self, entries: usize) -> Self {
        self.flush_entries = entries;
        self
    }

    /// [`run`](crate::Consumer::run) also writes state to disk when the last time is this long ago.
    /// Default: 1 s.
    pub fn flush_age(mut self, age: Duration) -> Self {
        self.flush_age = age;
        self
    }

    /// How long [`run`](crate::Consumer::run) waits between redelivery rounds: from `min`, doubling
    /// up to `max`, back to `min` when something is applied. Default: 1 s to 60 s.
    pub fn retry_delay(mut self, min: Duration, max: Duration) -> Self {
        self.retry_delay_min = min;
        self.retry_delay_max = max.max(min);
        self
    }
}
