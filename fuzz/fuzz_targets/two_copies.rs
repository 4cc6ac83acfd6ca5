//! Two copies of one log, each damaged by a script of its own, never give different accepted
//! prefixes: what is served of one is a prefix of what is served of the other. Then one file of
//! the second copy, which has gone on with a record of its own, takes the place of the first's:
//! what is served is the history of one of the two.
#![no_main]

use foldlog_fuzz::set::{self, How, Script};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let written = &set::written()[usize::from(script.byte() % 3)];
    let middle = usize::from(script.byte()).min(script.0.len());
    let move_one = script.byte();
    let (first, second) = script.0.split_at(middle.min(script.0.len()));
    let copies = [(first, "one"), (second, "other")].map(|(damage, after)| {
        let copy = written.copy();
        set::damage(&copy.0, &mut Script(damage));
        let forged = false;
        let accepted = written.check(&copy, How { forged, after });
        (copy.0, accepted)
    });
    let [(disk, one), (other_disk, other)] = &copies;
    assert!(
        one.bodies.starts_with(&other.bodies) || other.bodies.starts_with(&one.bodies),
        "two copies of one log went different ways"
    );
    if !one.whole || !other.whole {
        return;
    }
    set::check_mixed(disk, other_disk, move_one);
});
