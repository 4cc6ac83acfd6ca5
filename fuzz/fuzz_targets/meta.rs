//! Any bytes in one of the small files beside the log (`CURRENT`, `ANCHOR`, `MARK`, `REPAIR`,
//! `WRITER`), or as key or value of one entry of the state store: opening is refused with a typed
//! error, or serves what a fold of the log from its first record comes to. Never a panic, and
//! never wrong state for right.
#![no_main]

use foldlog_fuzz::kept;
use foldlog_fuzz::set::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    kept::check(&mut Script(data));
});
