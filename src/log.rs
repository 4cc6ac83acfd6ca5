//! The log.
pub(crate) mod anchor;
pub(crate) mod catalog;
pub(crate) mod commit;
pub(crate) mod reader;
pub(crate) mod recovery;
pub(crate) mod segment;
pub(crate) mod upstream;
