//! One pass over a consumer's state: rows by state, dead letters by reason, and what they hold.
//!
//! Memory is bounded whatever the state: at most [`GROUPS_MAX`] groups of each kind are told apart,
//! the rest is counted together, and nothing is left out of the counts
//! (`more_groups_than_are_told_apart_are_counted_together`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Render;
use super::output::Answer;
use crate::consumer::Consumer;
use crate::fold::letter::{Class, DeadLetter};
use crate::machine::StateMachine;
use crate::offset::Offset;

/// Most groups told apart.
const GROUPS_MAX: usize = 100;
/// Examples kept of each reason.
const EXAMPLES: usize = 3;
/// Letters shown of those that hold most.
const HOLDERS: usize = 10;
/// The name of rows without a state: their first version was skipped.
pub(super) const NO_STATE: &str = "(none)";

/// Counts by name, of a bounded number of names.
#[derive(Debug)]
pub(super) struct Groups<T> {
    pub(super) named: BTreeMap<T, Group>,
    /// How many fell into no group of their own.
    pub(super) others: u64,
}

// Derived, it would ask for names to have a default.
impl<T> Default for Groups<T> {
    fn default() -> Self {
        Self {
            named: BTreeMap::new(),
            others: 0,
        }
    }
}

/// One group.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) count: u64,
    pub(super) examples: Vec<Example>,
}

/// A letter that stands for its group.
#[derive(Clone, Debug)]
pub(super) struct Example {
    pub(super) offset: Offset,
    pub(super) reason: String,
}

impl<T: Ord + Clone> Groups<T> {
    fn add(&mut self, name: T) -> Option<&mut Group> {
        if !self.named.contains_key(&name) && self.named.len() >= GROUPS_MAX {
            self.others = self.others.saturating_add(1);
            return None;
        }
        let group = self.named.entry(name).or_default();
        group.count = group.count.saturating_add(1);
        Some(group)
    }

    /// The groups, the largest first.
    pub(super) fn largest_first(&self) -> Vec<(&T, &Group)> {
        let mut groups: Vec<_> = self.named.iter().collect();
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
        groups
    }
}

/// An open letter and what it holds.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) letter: Offset,
    pub(super) key: String,
    pub(super) held: u64,
    pub(super) since: Offset,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Rows by the text of their state.
    pub(super) states: Groups<String>,
    /// Open letters by class and reason, numbers in the reason aside.
    pub(super) reasons: Groups<(Class, String)>,
    /// Open letters by class.
    pub(super) classes: BTreeMap<Class, u64>,
    /// The letters that hold most, most first.
    pub(super) holders: Vec<Holder>,
    /// Letters that hold something.
    pub(super) holding: u64,
    /// Events that they hold together.
    pub(super) held: u64,
}

impl Survey {
    /// Looks at all rows and letters.
    pub(super) fn take<M: StateMachine, R: Render<M::State>>(
        consumer: &Consumer<M>,
        render: &R,
    ) -> Answer<Self> {
        let mut survey = Self::default();
        for row in consumer.rows() {
            let (_, row) = row?;
            let state = row
                .state
                .as_ref()
                .map_or_else(|| NO_STATE.to_owned(), |s| render.text(s));
            survey.states.add(state);
        }
        for letter in consumer.dead_letters() {
            let letter = letter?;
            if letter.is_open() {
                let held = held(consumer, &letter)?;
                survey.letter(&letter, held);
            }
        }
        Ok(survey)
    }

    fn letter(&mut self, letter: &DeadLetter, held: Option<(u64, Offset)>) {
        let count = self.classes.entry(letter.class()).or_default();
        *count = count.saturating_add(1);
        if let Some(group) = self.reasons.add((letter.class(), shape(letter.reason())))
            && group.examples.len() < EXAMPLES
        {
            let (offset, reason) = (letter.offset, letter.reason().to_owned());
            group.examples.push(Example { offset, reason });
        }
        let Some((held, since)) = held else { return };
        self.holding = self.holding.saturating_add(1);
        self.held = self.held.saturating_add(held);
        let place = self.holders.partition_point(|holder| holder.held >= held);
        if place < HOLDERS {
            let holder = Holder {
                letter: letter.offset,
                key: letter.key.clone(),
                held,
                since,
            };
            self.holders.insert(place, holder);
            self.holders.truncate(HOLDERS);
        }
    }

    /// Rows by state, as JSON: the largest first.
    pub(super) fn states_json(&self) -> Value {
        let states = self.states.largest_first();
        states
            .into_iter()
            .map(|(state, group)| (state.clone(), Value::from(group.count)))
            .collect()
    }

    /// Open letters by class, as JSON.
    pub(super) fn classes_json(&self) -> Value {
        let classes = [Class::Poison, Class::Conflict, Class::Crashed];
        let count = |class| self.classes.get(&class).copied().unwrap_or(0);
        classes
            .into_iter()
            .map(|class| (class.to_string(), Value::from(count(class))))
            .collect()
    }

    /// Open letters by reason, as JSON: the largest group first.
    pub(super) fn reasons_json(&self) -> Value {
        let reasons = self.reasons.largest_first();
        reasons
            .into_iter()
            .map(|((class, _), group)| {
                let reason = group
                    .examples
                    .first()
                    .map(|example| example.reason.as_str());
                let offsets: Vec<u64> = group.examples.iter().map(|e| e.offset.get()).collect();
                let count = group.count;
                json!({ "class": class, "reason": reason, "count": count, "offsets": offsets })
            })
            .collect()
    }

    /// The letters that hold most, as JSON.
    pub(super) fn holders_json(&self) -> Value {
        let holder = |h: &Holder| {
            json!({
                "letter": h.letter, "key": h.key, "held": h.held, "since": h.since,
            })
        };
        self.holders.iter().map(holder).collect()
    }
}

/// How many events an open letter holds and since when, if it is the one that blocks its key.
pub(super) fn held<M: StateMachine>(
    consumer: &Consumer<M>,
    letter: &DeadLetter,
) -> Answer<Option<(u64, Offset)>> {
    let blocked = consumer.blocked(&letter.key)?;
    Ok(blocked
        .filter(|blocked| blocked.letter == Some(letter.offset) && blocked.held > 0)
        .map(|blocked| (blocked.held, blocked.since)))
}

/// A reason with its numbers taken out: what two events of one cause have in common.
fn shape(reason: &str) -> String {
    let mut shape = String::with_capacity(reason.len());
    let mut in_number = false;
    for char in reason.chars() {
        let digit = char.is_ascii_digit();
        if !digit {
            shape.push(char);
        } else if !in_number {
            shape.push('#');
        }
        in_number = digit;
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_groups_than_are_told_apart_are_counted_together() {
        let mut groups = Groups::default();
        for n in 0..GROUPS_MAX + 7 {
            groups.add(n);
            groups.add(n);
        }
        let counted: u64 = groups.named.values().map(|group| group.count).sum();
        assert_eq!(
            (groups.named.len(), counted, groups.others),
            (GROUPS_MAX, 200, 14)
        );
        groups.add(5);
        assert_eq!(groups.largest_first()[0].0, &5);
    }

    #[test]
    fn reasons_that_differ_in_numbers_only_have_one_shape() {
        assert_eq!(shape("version 12 of 7, k-9"), "version # of #, k-#");
        assert_eq!(shape("no number"), "no number");
    }
}
