//! What opening found and did, told to the person at the terminal: nothing is healed in silence.
//!
//! A *finding* (exit 1) is what a person should know of: bytes that were cut or could not be used,
//! state that had to be folded anew. What opening does after any crash, and loses nothing by, is
//! told and is none.

use serde_json::Value;

use super::Access;
use super::output::{Exit, Out};
use super::text::{bytes, escape};
use crate::consumer::open::Opening;
use crate::log::recovery::Recovery;

/// Tells what opening the log found.
pub(super) fn recovery(out: &mut Out, recovery: &Recovery) -> Exit {
    let mut findings = false;
    if let Some(torn) = &recovery.trimmed {
        findings = true;
        let (size, file, position) = (bytes(torn.bytes), escape(&torn.file), torn.position);
        let kept = if torn.quarantine.is_empty() {
            "left as it is, because this command only reads".to_owned()
        } else {
            format!("cut off and kept in {}", escape(&torn.quarantine))
        };
        out.note(format_args!(
            "{file} ends in a torn write of {size} at byte {position} (from offset {}): {kept}",
            torn.from
        ));
        if let Some(range) = &torn.undecidable {
            out.note(format_args!(
                "  it may hold records that were acknowledged: at least {}..{}",
                range.start, range.end
            ));
        }
    }
    for file in &recovery.ignored_files {
        findings = true;
        out.note(format_args!(
            "{} is none of foldlog's files; left alone",
            escape(file)
        ));
    }
    for anchor in &recovery.unreadable_anchors {
        findings = true;
        out.note(format_args!(
            "{} cannot be read; no evidence was taken from it",
            escape(anchor)
        ));
    }
    for anchor in &recovery.ignored_anchors {
        findings = true;
        out.note(format_args!(
            "{} is of another log, or from before an accepted loss; no evidence was taken from it",
            escape(anchor)
        ));
    }
    for file in &recovery.discarded_files {
        out.note(format_args!(
            "removed {}, left by an unfinished roll",
            escape(file)
        ));
    }
    if let Some(from) = &recovery.finished_repair {
        findings = true;
        out.note(format_args!(
            "finished an interrupted repair: the records from offset {from} on are gone, and kept \
             in quarantine/"
        ));
    }
    if let Some(segment) = &recovery.finished_roll {
        out.note(format_args!(
            "finished an interrupted roll to {}",
            escape(segment)
        ));
    }
    Exit::findings(findings)
}

/// The same, for a program.
pub(super) fn recovery_json(recovery: &Recovery) -> Value {
    serde_json::to_value(recovery).unwrap_or_default()
}

/// Tells what opening a consumer found. Nothing is healed for a command that only reads, and then
/// it is no finding that state which is in use, or missing, was folded from the log for it.
pub(super) fn opening(out: &mut Out, opening: &Opening, access: Access) -> Exit {
    let mut findings = false;
    if let Some(why) = &opening.rebuilt {
        findings = access != Access::Read;
        out.note(format_args!(
            "the state was folded anew from the log: {}",
            escape(why)
        ));
    }
    if let Some(place) = &opening.set_aside {
        findings = true;
        out.note(format_args!(
            "the state as it was is kept in {}",
            escape(place)
        ));
    }
    for left_over in &opening.left_overs {
        out.note(format_args!(
            "removed what an interrupted rebuild left: {}",
            escape(left_over)
        ));
    }
    if let Some((from, to)) = opening.died_in {
        out.note(format_args!(
            "a process died while it folded records {from}..{to}; they were folded with care"
        ));
    }
    Exit::findings(findings)
}
