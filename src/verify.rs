//! Verify: is the log whole, and is the state its fold?

use crate::compare::Difference;
use crate::consumer::Inner;
use crate::error::Result;
use crate::fold::digest::Digest;
use crate::fold::overlay::totals_from_scratch;
use crate::log::Log;
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::replay::Live;

/// Entries read per step.
const PAGE: usize = 512;

/// What a look at every frame of the log found. Damage is an error, not a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogVerified {
    /// Segment files, each read to its last byte.
    pub segments: u64,
    /// Frames with records or upstream positions in them.
    pub frames: u64,
    /// Bytes of the log in use.
    pub bytes: u64,
    /// Records read, each under a checksum that holds.
    pub records: u64,
    /// Events among them.
    pub events: u64,
    /// Decisions among them.
    pub decisions: u64,
}

/// What verifying a consumer's state found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// What the log holds up to the checkpoint.
    pub log: LogVerified,
    /// The checkpoint at which the state was compared.
    pub checkpoint: Offset,
    /// The digest kept with the state.
    pub kept: Digest,
    /// The digest of the entries as they are in the state store now.
    pub stored: Digest,
    /// The digest of the log folded anew.
    pub folded: Digest,
    /// What differs, if anything does.
    pub difference: Difference,
}

impl Verified {
    /// Whether the state is exactly the fold of the log.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.kept == self.folded && self.stored == self.folded && self.difference.is_empty()
    }
}

/// Reads every record of `[0, to)`, checking frames, continuity and encodings.
pub(crate) fn verify_log(log: &Log, to: Offset) -> Result<LogVerified> {
    let (segments, frames, bytes) = log.check()?;
    let mut found = LogVerified {
        segments,
        frames,
        bytes,
        ..LogVerified::default()
    };
    let mut cursor = log.cursor(Offset::ZERO, to)?;
    while let Some(raw) = cursor.next()? {
        let record = raw
            .record()
            .map_err(|error| log.undecodable(raw.offset, &error))?;
        let kind = match record.body {
            crate::event::Body::Event(_) => &mut found.events,
            crate::event::Body::Decision(_) => &mut found.decisions,
        };
        *kind = kind.saturating_add(1);
        found.records = found.records.saturating_add(1);
    }
    Ok(found)
}

impl<M: StateMachine> Inner<M> {
    pub(crate) fn verify(&self) -> Result<Verified> {
        let (_still, live, fresh) = self.fold_beside()?;
        let checkpoint = live.checkpoint();
        let ground = Live {
            projection: &live,
            log: &self.log,
        };
        Ok(Verified {
            log: verify_log(&self.log, checkpoint)?,
            checkpoint,
            kept: live.digest(),
            stored: totals_from_scratch(&ground, PAGE)?.digest,
            folded: fresh.digest(),
            difference: Difference::between(&live, &fresh)?,
        })
    }
}
