//! One line of a vector file in, one computed line out. The types have no place for the expected
//! members, so they cannot be read.

use std::collections::BTreeMap;
use std::error::Error;

use foldlog::orders::{OrderStatus, Orders};
use foldlog::{Class, Event, Fix, Fold, MapSource, Outcome};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Scenario {
    name: String,
    max_attempts: i64,
    ops: Vec<Op>,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Op {
    Handle {
        event: OrderEvent,
        attempt: u32,
    },
    Reconcile {
        #[serde(default)]
        source: BTreeMap<String, Order<OrderStatus>>,
        #[serde(default)]
        order_ids: Vec<String>,
    },
}

#[derive(Clone, Deserialize, Serialize)]
struct OrderEvent {
    id: String,
    order_id: String,
    version: i64,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize, Serialize)]
struct Order<S> {
    version: i64,
    status: S,
}

#[derive(Serialize)]
struct Computed {
    name: String,
    outcomes: Vec<Answer>,
    orders: BTreeMap<String, Order<OrderStatus>>,
    applied: u64,
    dlq: Vec<Dead>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Outcome(Outcome),
    Fixes(Vec<OrderFix>),
}

#[derive(Serialize)]
struct OrderFix {
    order_id: String,
    from: Order<String>,
    to: Order<OrderStatus>,
}

#[derive(Serialize)]
struct Dead {
    event: OrderEvent,
    attempts: u32,
    class: Class,
}

/// Runs one scenario; the JSON line of what came out.
pub(crate) fn handle_line(line: &str) -> Result<String, Box<dyn Error>> {
    let scenario: Scenario = serde_json::from_str(line)?;
    // A negative budget means what 0 means: the default.
    let max_attempts = u32::try_from(scenario.max_attempts.max(0))?;
    let mut fold = Fold::new(Orders, max_attempts);
    let mut outcomes = Vec::new();
    let mut dlq = Vec::new();
    for op in scenario.ops {
        outcomes.push(match op {
            Op::Handle { event, attempt } => {
                let outcome = fold.handle(&to_event(&event), attempt)?;
                if let (Outcome::Dead, Some(letter)) = (outcome, fold.dead_letters().last()) {
                    dlq.push(Dead {
                        event,
                        attempts: letter.attempts(),
                        class: letter.class(),
                    });
                }
                Answer::Outcome(outcome)
            }
            Op::Reconcile { source, order_ids } => {
                let source: MapSource<OrderStatus> = source
                    .into_iter()
                    .map(|(key, order)| (key, order.version, order.status))
                    .collect();
                let fixes = fold.reconcile(&source, order_ids)?;
                Answer::Fixes(fixes.into_iter().map(to_fix).collect())
            }
        });
    }
    let mut orders = BTreeMap::new();
    for row in fold.rows() {
        let (key, row) = row?;
        let status = row.state.ok_or("a row of an order without a status")?;
        let version = row.version;
        orders.insert(key.to_owned(), Order { version, status });
    }
    Ok(serde_json::to_string(&Computed {
        name: scenario.name,
        outcomes,
        orders,
        applied: fold.applied(),
        dlq,
    })?)
}

fn to_event(event: &OrderEvent) -> Event {
    Event::new(&event.id, &event.order_id, event.version, &event.kind)
}

/// In the vectors, version 0 without a status stands for "no row".
fn to_fix(fix: Fix<OrderStatus>) -> OrderFix {
    let (version, status) = fix.from.unwrap_or((0, None));
    OrderFix {
        order_id: fix.key,
        from: Order {
            version,
            status: status.map(|status| status.to_string()).unwrap_or_default(),
        },
        to: Order {
            version: fix.to.0,
            status: fix.to.1,
        },
    }
}

#[derive(Deserialize)]
struct Placed {
    key: String,
    partitions: i64,
}

/// The partition for one line.
pub(crate) fn partition_line(line: &str) -> Result<String, Box<dyn Error>> {
    let placed: Placed = serde_json::from_str(line)?;
    // A negative number of partitions counts as none.
    let partitions = u32::try_from(placed.partitions.max(0))?;
    Ok(foldlog::partition(&placed.key, partitions).to_string())
}
