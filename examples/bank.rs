//! A state machine of another domain: bank accounts. Nothing in foldlog's core knows orders.
//!
//! Run with `cargo run --example bank`. It shows an overdraft that becomes a dead letter, the later
//! events it holds, a redrive after the cause is gone, and a rebuild that comes to the same state.
#![expect(
    clippy::print_stdout,
    clippy::arithmetic_side_effects,
    reason = "an example is read by people; its numbers are small"
)]

use foldlog::{Event, Filter, Poison, StateMachine, Store};
use serde::{Deserialize, Serialize};

/// What we keep of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Account {
    cents: i64,
    movements: u32,
}

struct Bank;

impl StateMachine for Bank {
    type State = Account;
    const REVISION: u32 = 1;

    fn check(&self, event: &Event) -> Result<(), Poison> {
        match event.kind.as_str() {
            "deposit" | "withdraw" => amount(event).map(drop),
            kind => Err(Poison::new(format!("unknown kind {kind:?}"))),
        }
    }

    fn apply(&self, account: Option<&Account>, event: &Event) -> Result<Account, Poison> {
        let mut account = account.cloned().unwrap_or_default();
        let amount = amount(event)?;
        let signed = if event.kind == "withdraw" {
            -amount
        } else {
            amount
        };
        account.cents = account
            .cents
            .checked_add(signed)
            .filter(|cents| *cents >= 0)
            .ok_or_else(|| Poison::new(format!("{signed} on a balance of {}", account.cents)))?;
        account.movements += 1;
        Ok(account)
    }
}

/// The payload is an amount in cents, as decimal text.
fn amount(event: &Event) -> Result<i64, Poison> {
    std::str::from_utf8(&event.payload)
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|amount| *amount > 0)
        .ok_or_else(|| Poison::new("the payload is not a positive amount in cents"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let store = Store::open(dir.path())?;
    let movement = |key: &str, version, kind: &str, cents: &str| {
        Event::new(format!("{key}-{version}"), key, version, kind).with_payload(cents)
    };
    store.append_batch(&[
        movement("alice", 1, "deposit", "5000"),
        movement("bob", 1, "deposit", "1000"),
        movement("bob", 2, "withdraw", "2500"), // not covered: a dead letter
        movement("bob", 3, "deposit", "4000"),  // held behind it
        movement("alice", 2, "withdraw", "1500"),
    ])?;

    let bank = store.consumer("bank", Bank)?;
    println!("alice: {:?}", bank.get("alice")?.and_then(|row| row.state));
    println!("bob:   {:?}", bank.get("bob")?.and_then(|row| row.state));
    for letter in bank.dead_letters() {
        let letter = letter?;
        println!("dead:  {} ({}): {}", letter.id, letter.key, letter.reason());
    }
    println!("bob is blocked: {:?}", bank.blocked("bob")?);

    // The withdrawal is given up: bob's account goes on at version 3.
    let skipped = bank.skip_all(
        &Filter::all().key("bob"),
        1,
        Some("not covered, customer told"),
    )?;
    println!(
        "skipped {} letter, bob: {:?}",
        skipped.len(),
        bank.get("bob")?.and_then(|r| r.state)
    );

    let rebuilt = bank.rebuild()?;
    assert_eq!(
        rebuilt.before, rebuilt.after,
        "a rebuild comes to the same state"
    );
    println!(
        "rebuilt from {} records, digest {}",
        rebuilt.records, rebuilt.after
    );
    Ok(())
}
