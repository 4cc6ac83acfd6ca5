//! Random operations with crashes against the model, from fixed seeds. A failing seed is printed;
//! the fuzz target `ops` runs the same driver for longer.
#![cfg(feature = "sim")]

#[cfg(test)]
#[expect(
    dead_code,
    clippy::arithmetic_side_effects,
    reason = "shared with the fuzz target; a driver that overflows should panic"
)]
mod driver;

use std::panic::{AssertUnwindSafe, catch_unwind};

const SEEDS: u64 = 300;

/// The bytes of a seed: xorshift, so that a seed means the same everywhere and for ever.
fn bytes(seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::new();
    for _ in 0..40 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes
}

#[test]
fn random_operations_and_crashes_agree_with_the_model() {
    let mut total = driver::Counts::new();
    for seed in 1..=SEEDS {
        let bytes = bytes(seed);
        let Ok(counts) = catch_unwind(AssertUnwindSafe(|| driver::run(&bytes))) else {
            panic!("seed {seed} of random_operations_and_crashes_agree_with_the_model");
        };
        for (what, count) in counts {
            let sum = total.entry(what).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    for what in [
        "append",
        "append_batch",
        "append_from",
        "write",
        "sync",
        "settle",
        "decided",
        "refused decision",
        "reconcile",
        "replay",
        "rebuild",
        "budget",
        "reopen",
        "crash",
    ] {
        let count = total.get(what).copied().unwrap_or(0);
        assert!(count > 50, "{what} happened only {count} times: {total:?}");
    }
}
