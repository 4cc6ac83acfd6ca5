//! The files of a log of several segments, damaged as the input says: no panic, no unbounded
//! memory, no record that was never written, and none missing in silence that evidence proves.
//! The first byte picks the log, and whether one file is made of the input's own bytes.
#![no_main]

use foldlog_fuzz::set::{self, How, Script};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let pick = script.byte();
    let written = &set::written()[usize::from(pick % 3)];
    let copy = written.copy();
    let disk = &copy.0;
    let forged = pick >= 192;
    if forged {
        // Where these bytes stand, a few changes elsewhere follow from their first ones.
        let files = set::log_files(disk);
        let (name, mut bytes) = script.pick(&files).clone();
        let place = script.below(bytes.len() + 1);
        set::damage(disk, &mut Script(&script.0[..script.0.len().min(8)]));
        bytes.truncate(place);
        bytes.extend_from_slice(script.0);
        disk.write_file(&name, &bytes).expect("a good path");
    } else {
        set::damage(disk, &mut script);
    }
    let after = "after";
    written.check(&copy, How { forged, after });
});
