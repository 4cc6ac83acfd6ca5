//! What a consumer looks like now: the figures of `status` and of the summary after `run`.

use serde_json::{Map, Value, json};

use super::output::{Answer, Out, table};
use super::survey::{Example, Survey};
use super::text::{count, counted, cut, escape};
use super::{Render, Tool};
use crate::consumer::Consumer;
use crate::fold::counters::Counters;
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::store::Store;

/// Longest key shown in a table, in characters.
const KEY_SHOWN: usize = 32;
/// States, reasons and holders shown; all are in the JSON.
const SHOWN: usize = 12;

/// See the module.
pub(super) struct Picture {
    counters: Counters,
    survey: Survey,
    checkpoint: Offset,
    durable_end: Offset,
    head: Map<String, Value>,
    command: String,
}

impl Picture {
    /// Takes it.
    pub(super) fn take<M: StateMachine, R: Render<M::State>>(
        tool: &Tool<R>,
        store: &Store,
        consumer: &Consumer<M>,
    ) -> Answer<Self> {
        let survey = Survey::take(consumer, &tool.render)?;
        let (counters, checkpoint) = (consumer.counters(), consumer.checkpoint());
        let durable_end = store.durable_end();
        let mut head = Map::new();
        let fields = [
            ("store", json!(store.path().display().to_string())),
            ("consumer", json!(consumer.name())),
            ("checkpoint", json!(checkpoint)),
            ("durable_end", json!(durable_end)),
            ("lag", json!(durable_end.since(checkpoint))),
            ("digest", json!(consumer.digest().to_string())),
            ("max_attempts", json!(consumer.max_attempts())),
        ];
        head.extend(fields.map(|(name, value)| (name.to_owned(), value)));
        Ok(Self {
            counters,
            survey,
            checkpoint,
            durable_end,
            head,
            command: tool.command(),
        })
    }

    /// As JSON, one level of plain names.
    pub(super) fn json(&self) -> Map<String, Value> {
        let mut all = self.head.clone();
        if let Ok(Value::Object(counters)) = serde_json::to_value(self.counters) {
            all.extend(counters);
        }
        let fields = [
            ("rows_by_state", self.survey.states_json()),
            ("rows_other", json!(self.survey.states.others)),
            ("dead_by_class", self.survey.classes_json()),
            ("dead_by_reason", self.survey.reasons_json()),
            ("dead_other", json!(self.survey.reasons.others)),
            ("letters_that_hold", json!(self.survey.holding)),
            ("holds_most", self.survey.holders_json()),
        ];
        all.extend(fields.map(|(name, value)| (name.to_owned(), value)));
        all
    }

    /// For a person.
    pub(super) fn print(&self, out: &mut Out) -> Answer<()> {
        self.print_events(out)?;
        self.print_rows(out)?;
        self.print_dead(out)?;
        self.print_holders(out)?;
        self.print_next(out)
    }

    fn print_events(&self, out: &mut Out) -> Answer<()> {
        let c = &self.counters;
        let text = |name: &str| {
            self.head
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        out.line(format_args!(
            "{} folded by {}, digest {}",
            counted(c.events, "event", "events"),
            text("consumer"),
            text("digest")
        ))?;
        if self.checkpoint < self.durable_end {
            let behind = self.durable_end.since(self.checkpoint);
            out.line(format_args!(
                "{} not folded yet",
                counted(behind, "record", "records")
            ))?;
        }
        let held = match c.held {
            0 => "came too early".to_owned(),
            held => format!("came too early; {} held by an earlier one", count(held)),
        };
        let all = [
            ("applied", c.applied, "moved a row"),
            ("duplicate", c.duplicate, "the row had that version already"),
            ("merged", c.merged, "repeats of an event that waited"),
            ("waiting", c.waiting, held.as_str()),
            ("dead", c.dead, "set aside: open dead letters"),
            ("discarded", c.discarded, "dead letters given up"),
            (
                "skipped",
                c.skipped,
                "dead letters given up, their keys moved on",
            ),
        ];
        let rows = all
            .into_iter()
            .filter(|(name, n, _)| *n > 0 || matches!(*name, "applied" | "waiting" | "dead"))
            .map(|(name, n, what)| vec![name.to_owned(), count(n), what.to_owned()])
            .collect();
        out.line(table(&["outcome", "events", ""], &[1], rows))?;
        let fixes = [
            ("fixes applied", c.fixes),
            ("fixes that came too late", c.stale_fixes),
            ("fixes that cannot be read", c.unreadable_fixes),
        ];
        let some: Vec<String> = fixes
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| format!("{name}: {}", count(n)))
            .collect();
        if some.is_empty() {
            Ok(())
        } else {
            out.line(format_args!(" {}", some.join(", ")))
        }
    }

    fn print_rows(&self, out: &mut Out) -> Answer<()> {
        let states = &self.survey.states;
        if states.named.is_empty() {
            return Ok(());
        }
        let mut rows: Vec<Vec<String>> = states
            .largest_first()
            .into_iter()
            .take(SHOWN)
            .map(|(state, group)| vec![cut(state, 50), count(group.count)])
            .collect();
        let shown: u64 = states
            .largest_first()
            .iter()
            .take(SHOWN)
            .map(|(_, g)| g.count)
            .sum();
        let rest = self.counters.rows.saturating_sub(shown);
        if rest > 0 {
            rows.push(vec!["(other states)".to_owned(), count(rest)]);
        }
        out.line("")?;
        out.line(counted(self.counters.rows, "row", "rows"))?;
        out.line(table(&["state", "rows"], &[1], rows))
    }

    fn print_dead(&self, out: &mut Out) -> Answer<()> {
        let reasons = &self.survey.reasons;
        if self.counters.dead == 0 {
            return Ok(());
        }
        let example = |e: &Example| e.offset.to_string();
        let row = |class: String, n: u64, examples: &[Example]| {
            let reason = examples
                .first()
                .map(|e| cut(&e.reason, 60))
                .unwrap_or_default();
            let offsets: Vec<String> = examples.iter().map(example).collect();
            vec![count(n), class, reason, offsets.join(" ")]
        };
        let groups = reasons.largest_first();
        let mut rows: Vec<Vec<String>> = groups
            .iter()
            .take(SHOWN)
            .map(|((class, _), group)| row(class.to_string(), group.count, &group.examples))
            .collect();
        let shown: u64 = groups
            .iter()
            .take(SHOWN)
            .map(|(_, group)| group.count)
            .sum();
        let rest = self.counters.dead.saturating_sub(shown);
        if rest > 0 {
            rows.push(vec![
                count(rest),
                String::new(),
                "(other reasons)".to_owned(),
                String::new(),
            ]);
        }
        out.line("")?;
        out.line(counted(self.counters.dead, "dead letter", "dead letters"))?;
        out.line(table(
            &["letters", "class", "why", "offsets, e.g."],
            &[0],
            rows,
        ))
    }

    fn print_holders(&self, out: &mut Out) -> Answer<()> {
        let survey = &self.survey;
        if survey.holders.is_empty() {
            return Ok(());
        }
        let rows = survey
            .holders
            .iter()
            .map(|h| {
                let key = cut(&h.key, KEY_SHOWN);
                vec![
                    h.letter.to_string(),
                    key,
                    count(h.held),
                    h.since.to_string(),
                ]
            })
            .collect();
        out.line("")?;
        out.line(format_args!(
            "{} held behind {}",
            counted(survey.held, "event", "events"),
            counted(survey.holding, "dead letter", "dead letters"),
        ))?;
        out.line(table(
            &["letter", "key", "holds", "since"],
            &[0, 2, 3],
            rows,
        ))
    }

    /// What to type next.
    fn print_next(&self, out: &mut Out) -> Answer<()> {
        let command = escape(&self.command);
        let holder = self.survey.holders.first().map(|holder| holder.letter);
        let letter = holder.or_else(|| {
            let groups = self.survey.reasons.largest_first();
            groups
                .first()
                .and_then(|(_, group)| group.examples.first())
                .map(|e| e.offset)
        });
        let mut next = Vec::new();
        if let Some(letter) = letter {
            next.push((
                format!("dead show {letter}"),
                "the event, why it died, what it holds",
            ));
            next.push(("dead list".to_owned(), "all of them"));
            next.push((
                format!("dead redrive {letter}"),
                "judge it again (or discard, skip)",
            ));
        }
        if self.counters.waiting > self.counters.held {
            next.push((
                "run".to_owned(),
                "give the waiting events their next attempts",
            ));
        }
        next.push((
            "reconcile --source FILE".to_owned(),
            "compare the rows with the truth",
        ));
        if letter.is_none() {
            next.push((
                "verify --deep".to_owned(),
                "check the log, and the state against it",
            ));
        }
        out.line("")?;
        out.line("next")?;
        let next = next
            .into_iter()
            .map(|(what, why)| (format!("{command} {what}"), why));
        let next: Vec<(String, &str)> = next.collect();
        let width = next
            .iter()
            .map(|(what, _)| what.chars().count())
            .max()
            .unwrap_or(0);
        for (what, why) in next {
            out.line(format_args!("  {what:<width$}  {why}"))?;
        }
        Ok(())
    }
}
