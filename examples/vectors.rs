//! Computes what the files in `tests/vectors` expect, without reading what they expect.
//!
//! ```text
//! cargo run --example vectors -- handle tests/vectors/handle_and_reconcile.jsonl
//! cargo run --example vectors -- partition tests/vectors/partition.jsonl
//! ```
//!
//! `handle` prints, for each line, one JSON line with what became of every operation, and the state
//! after the last. `partition` prints the partition for each line.

use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

#[path = "vectors/compute.rs"]
mod compute;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough, as with `| head`.
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            // If even this cannot be said, the exit status still tells.
            let _unsaid = writeln!(io::stderr(), "vectors: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(what), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: vectors handle FILE | vectors partition FILE".into());
    };
    let compute = match what.as_str() {
        "handle" => compute::handle_line,
        "partition" => compute::partition_line,
        other => return Err(format!("unknown command {other:?}").into()),
    };
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let mut out = BufWriter::new(io::stdout().lock());
    for (line, number) in text.lines().zip(1_u64..) {
        let computed = compute(line).map_err(|error| format!("{file}, line {number}: {error}"))?;
        writeln!(out, "{computed}")?;
    }
    out.flush()?;
    Ok(())
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
