//! A machine that needs no code: any kind is good, in the order of its versions.

use crate::event::Event;
use crate::machine::{Poison, StateMachine};

/// Keeps the kind of each key's last event, and nothing else: useful to hold events back until
/// their predecessors are there, and to see where a key stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence;

impl StateMachine for Sequence {
    type State = String;

    const REVISION: u32 = 1;

    fn apply(&self, _state: Option<&String>, event: &Event) -> Result<String, Poison> {
        Ok(event.kind.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_the_kind_of_the_last_event() {
        let state = String::from("before");
        let event = Event::new("e", "k", 7, "after").with_payload(*b"ignored");
        assert_eq!(Sequence.check(&event), Ok(()));
        assert_eq!(Sequence.apply(Some(&state), &event).as_deref(), Ok("after"));
        assert_eq!(Sequence.apply(None, &event).as_deref(), Ok("after"));
    }
}
