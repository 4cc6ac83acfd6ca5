//! `kill -9` at any moment of a `run`, and then the same command again.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::tool::{Tool, order, real_data};

const KILLS: u32 = 30;

/// Numbers to place kills with; the seed is printed, so that a failure can be repeated as far as
/// the machine's own timing lets it.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// An input as large as the real one, for clones that have none: early, double and unknown steps.
fn made_up(tool: &Tool) -> String {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut lines = Vec::new();
    for n in 0..6000 {
        let key = format!("order-{n}");
        let mut steps = vec![(1, "reserve"), (2, "pay"), (3, "fulfill")];
        match dice.below(10) {
            0 => steps.swap(0, 1),
            1 => steps.push((2, "pay")),
            2 => steps[1] = (2, "cancel"),
            3 => drop(steps.remove(0)),
            _ => {}
        }
        for (n, (version, kind)) in steps.into_iter().enumerate() {
            lines.push(order(&format!("{key}-{kind}-{n}"), &key, version, kind));
        }
    }
    tool.write("orders.jsonl", lines.join("\n") + "\n");
    tool.path("orders.jsonl").to_str().unwrap().to_owned()
}

#[test]
fn killed_runs_end_like_an_undisturbed_one() {
    let (undisturbed, disturbed) = (Tool::new(), Tool::new());
    let file = real_data("orders_lossy.jsonl").unwrap_or_else(|| made_up(&undisturbed));
    // Small batches, so that there are many moments to be killed at.
    let run = ["run", &file, "--batch", "50"];
    let started = Instant::now();
    undisturbed.run(&run).ended(0);
    let whole = started.elapsed();

    let seed = 0x5eed_0000_u64 + u64::from(std::process::id());
    println!("seed {seed}, an undisturbed run takes {whole:?}");
    let mut dice = Dice(seed);
    let (mut killed, mut cut_short, mut readable) = (0, 0, 0);
    while cut_short < KILLS {
        let mut command = disturbed.command(&run);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let micros = u64::try_from(whole.as_micros()).unwrap();
        // Early enough that there is still something to read after most of the kills.
        let limit = micros / [8, 16, 32][usize::try_from(killed % 3).unwrap()];
        std::thread::sleep(Duration::from_micros(dice.below(limit.max(1))));
        child.kill().unwrap();
        cut_short += u32::from(child.wait().unwrap().code().is_none());
        killed += 1;
        // Only those that hit a process count.
        assert!(killed < 10 * KILLS, "{cut_short} of {killed} came in time");
        // Whatever the kill left, it can be looked at, unless it left no store yet.
        let looked = disturbed.run(&["verify"]);
        assert!(
            looked.code < 2 || looked.err.contains("no store"),
            "{}",
            looked.err
        );
        readable += u32::from(looked.code < 2);
    }
    println!("{killed} kills, {cut_short} while it ran; {readable} left a store");

    // A torn write, if a kill left one, is a finding of the run that trims it.
    let last = disturbed.run(&run);
    assert!([0, 1].contains(&last.code), "{}", last.err);
    assert_eq!(
        disturbed.figures()["digest"],
        undisturbed.figures()["digest"]
    );
    assert_eq!(disturbed.figures(), undisturbed.figures());
    assert_eq!(
        disturbed.ids(),
        undisturbed.ids(),
        "no event lost, doubled or moved"
    );
    disturbed.run(&["verify", "--deep"]).ended(0);

    let once_more = disturbed.run(&run).ended(0);
    assert!(once_more.out.contains("nothing new"), "{}", once_more.out);
    assert_eq!(
        disturbed.figures(),
        undisturbed.figures(),
        "and it added nothing"
    );
}

/// Ctrl-C, by way of the system's `kill`: the standard library sends no signal but SIGKILL.
#[test]
fn an_interrupted_ingest_keeps_what_it_read_and_goes_on() {
    let tool = Tool::new();
    let lines: Vec<String> = (0..250)
        .map(|n| order(&format!("e{n}"), &format!("order-{n}"), 1, "reserve") + "\n")
        .collect();
    let args = ["ingest", "-", "--upstream", "feed", "--batch", "10"];
    let mut command = tool.command(&args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines[..100].concat().as_bytes()).unwrap();
    // A reader beside the writer sees what is durable.
    let deadline = Instant::now() + Duration::from_secs(60);
    let stored = || tool.run(&["log", "--json"]).out.lines().count();
    while stored() < 100 {
        assert!(
            Instant::now() < deadline,
            "the first lines were never stored"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let signal = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(signal.unwrap().success());
    std::thread::sleep(Duration::from_millis(300));
    // It stops at the line it reads next, or has stopped already.
    drop(stdin.write_all(lines[100..103].concat().as_bytes()));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("interrupted") && err.contains("same command"),
        "{err}"
    );

    tool.run_with(&args, lines.concat().as_bytes()).ended(0);
    let ids: Vec<String> = (0..250).map(|n| format!("e{n}")).collect();
    assert_eq!(tool.ids(), ids);
}
