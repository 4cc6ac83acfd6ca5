//! Every limit of the format in one place, each with its reason.
//!
//! All of them are checked before a byte is written, so nothing can be stored that cannot be read
//! back ([`crate::Error::TooLarge`]).

/// Longest event id in bytes. Ids are stored again in waiting events and dead letters, so they
/// stay small enough to list a million of them.
pub const ID_BYTES_MAX: usize = 64 * 1024;
/// Longest key in bytes. Long enough for a path or URL; short enough for a key of the state store.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// Longest kind in bytes: a kind is a name, not content.
pub const KIND_BYTES_MAX: usize = 4 * 1024;
/// Longest payload of one event in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest encoded record (event or decision) in bytes: payload, names, and room for a `Fix` that
/// carries two states.
pub const RECORD_BYTES_MAX: usize = 48 * 1024 * 1024;
/// Longest payload of one frame (one append call) in bytes. A frame is checked as a whole, so this
/// bounds the memory that a read needs.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most records in one frame.
pub const FRAME_RECORDS_MAX: usize = 1_000_000;
/// Longest note on a decision in bytes.
pub const NOTE_BYTES_MAX: usize = 4 * 1024;
/// Longest encoded state of one row in bytes (a `Fix` carries two).
pub const STATE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest reason kept in a dead letter, in bytes; longer text is cut at a character boundary.
pub const REASON_BYTES_MAX: usize = 1024;
/// Longest name of a consumer in bytes; it is also a directory name.
pub const CONSUMER_BYTES_MAX: usize = 64;
/// Longest name of an upstream in bytes (`file:` and a canonical path fit).
pub const UPSTREAM_BYTES_MAX: usize = 4 * 1024 + 16;
/// Most upstreams one log remembers: the whole table is written again at the head of each segment.
pub const UPSTREAMS_MAX: usize = 1024;
/// Longest upstream table in bytes, for the same reason.
pub const UPSTREAM_TABLE_BYTES_MAX: usize = 1024 * 1024;
/// Smallest `segment_bytes` an option may ask for.
pub const SEGMENT_BYTES_MIN: u64 = 4 * 1024;
/// Largest `segment_bytes` an option may ask for: positions inside a segment fit 32 bits.
pub const SEGMENT_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Retry budget in force before any `Configure`, and the meaning of a budget below one.
pub const MAX_ATTEMPTS_DEFAULT: u32 = 3;
