//! The fold.
pub(crate) mod digest;
pub(crate) mod ground;
pub(crate) mod key;
pub(crate) mod letter;
pub(crate) mod overlay;
