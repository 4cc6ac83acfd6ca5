//! Reconcile: compare rows with the outside truth and repair the log's state by records.
//!
//! A repair is a `Fix` in the log, guarded by the row it was computed against, so a rebuild keeps
//! it and an event that moved the row meanwhile makes it stale instead of wrong.

use std::collections::BTreeSet;

use crate::consumer::Inner;
use crate::error::{Error, Result};
use crate::event::{Action, Decision};
use crate::machine::StateMachine;
use crate::partition;
use crate::source::{self, Difference, Fix, Source};

/// Fixes appended per frame.
const FIXES_PER_FRAME: usize = 1000;
/// Bytes of states per frame, far enough below [`crate::limits::FRAME_BYTES_MAX`] for a thousand
/// keys and notes beside them. One fix may be larger: it gets a frame of its own.
const FIX_BYTES_PER_FRAME: usize = 1024 * 1024;
/// Rounds before reconcile gives up on a source whose answers keep changing. A fix can release
/// waiting events, which can need another fix; every round of a steady source ends some of them.
const ROUNDS_MAX: usize = 1000;

impl<M: StateMachine> Inner<M> {
    /// The fixes that would make the rows of `keys` equal to what the source says now.
    fn differences(
        &self,
        source: &dyn Source<M::State>,
        keys: &[String],
    ) -> Result<Vec<Difference<M::State>>> {
        let live = self.live();
        let mut found = Vec::new();
        for key in keys {
            let row = live.key(key)?.and_then(|state| state.row);
            found.extend(source::compare(&source, key, row.as_ref())?);
        }
        Ok(found)
    }

    pub(crate) fn reconcile_preview(
        &self,
        source: &dyn Source<M::State>,
        keys: &[String],
    ) -> Result<Vec<Fix<M::State>>> {
        self.catch_up(&mut self.drive())?;
        let found = self.differences(source, &unique(keys))?;
        Ok(found.into_iter().map(|difference| difference.fix).collect())
    }

    pub(crate) fn reconcile(
        &self,
        source: &dyn Source<M::State>,
        keys: &[String],
        note: Option<&str>,
    ) -> Result<Vec<Fix<M::State>>> {
        let mut drive = self.drive();
        let mut fixes = Vec::new();
        let mut keys = unique(keys);
        for _ in 0..ROUNDS_MAX {
            self.catch_up(&mut drive)?;
            let found = self.differences(source, &keys)?;
            if found.is_empty() {
                return Ok(fixes);
            }
            self.append_fixes(&found, note)?;
            // A fix moves only its own key, so only these can differ again.
            keys = found
                .iter()
                .map(|difference| difference.fix.key.clone())
                .collect();
            fixes.extend(found.into_iter().map(|difference| difference.fix));
        }
        Err(Error::SourceUnavailable {
            reason: format!("its answers kept changing for {ROUNDS_MAX} rounds"),
        })
    }

    /// Appends a fix for each difference, in frames of bounded count and size.
    fn append_fixes(&self, found: &[Difference<M::State>], note: Option<&str>) -> Result<()> {
        let mut frame: Vec<(Decision, u32)> = Vec::new();
        let mut bytes = 0_usize;
        for difference in found {
            let more = difference.state_bytes();
            if frame.len() >= FIXES_PER_FRAME
                || (!frame.is_empty() && bytes.saturating_add(more) > FIX_BYTES_PER_FRAME)
            {
                self.log.append_decisions(&frame)?;
                frame.clear();
                bytes = 0;
            }
            bytes = bytes.saturating_add(more);
            frame.push(self.fix_decision(difference, note));
        }
        self.log.append_decisions(&frame).map(drop)
    }

    fn fix_decision(
        &self,
        difference: &Difference<M::State>,
        note: Option<&str>,
    ) -> (Decision, u32) {
        let key = difference.fix.key.clone();
        let hash = partition::hash(key.as_bytes());
        let (from, to) = (difference.from.clone(), Some(difference.to.clone()));
        let action = Action::Fix {
            key,
            from,
            to,
            revision: M::REVISION,
        };
        (self.decision(action, note.map(str::to_owned)), hash)
    }
}

/// Each key once, in the order given.
fn unique(keys: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    keys.iter()
        .filter(|key| seen.insert(key.as_str()))
        .cloned()
        .collect()
}
