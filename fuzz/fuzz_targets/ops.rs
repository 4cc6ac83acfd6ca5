//! Operations and crashes against the model: the driver of `tests/model_ops.rs`, for longer.
#![no_main]

#[path = "../../tests/driver/mod.rs"]
#[allow(dead_code)]
mod driver;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    driver::run(data);
});
