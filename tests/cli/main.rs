//! The command line as an operator meets it: the real binary, its output, its exit status.
#![cfg(feature = "cli")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "tests: what goes wrong should fail them, and files are harmed on purpose"
)]

mod commands;
mod damage;
mod data;
mod input;
mod kill;
mod repair;
mod tool;
