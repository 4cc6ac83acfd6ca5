//! The state store.
#[cfg(feature = "sim")]
pub mod fake;
pub(crate) mod generation;
pub(crate) mod letters;
pub(crate) mod meta;
pub(crate) mod rows;
pub(crate) mod sled_store;
pub(crate) mod waiting;
