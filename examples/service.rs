//! A small single-node service that links foldlog: HTTP in front, the log behind, the consumer in
//! the background.
//!
//! `cargo run --example service -- DIR [ADDRESS]` (default address 127.0.0.1:8000; port 0 picks a
//! free one). It prints `listening on ADDRESS` and then serves:
//!
//! | request | answer |
//! |---|---|
//! | `POST /events` with `{"id","key","version","type"}` | 201 and `{"offset":N}` once the event is on disk |
//! | `GET /keys/KEY` | the row, and what blocks it |
//! | `GET /dead` | open dead letters |
//! | `GET /status` | counters, checkpoint, durable end, digest |
//! | `POST /rebuild` | `{"before","after"}`: digests before and after a rebuild |
//!
//! An acknowledged event is never lost, also by `kill -9`: `tests/service.rs` shows it.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example is read by people; its numbers are small"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foldlog::orders::Orders;
use foldlog::{Consumer, Event, Store};
use serde_json::{Value, json};
use tiny_http::{Header, Method, Request, Response, Server};

/// Requests are answered side by side, so that concurrent appends share one sync.
const WORKERS: usize = 8;
/// The longest request body read.
const BODY_BYTES_MAX: u64 = 1024 * 1024;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
struct Service {
    store: Store,
    orders: Consumer<Orders>,
}

impl Service {
    fn answer(&self, request: &mut Request) -> Result<(u16, Value), Failure> {
        let (method, url) = (request.method().clone(), request.url().to_owned());
        match (&method, url.as_str()) {
            (Method::Post, "/events") => self.append(request),
            (Method::Get, "/status") => Ok((200, self.status())),
            (Method::Get, "/dead") => Ok((200, self.dead()?)),
            (Method::Post, "/rebuild") => {
                let done = self.orders.rebuild()?;
                let (before, after) = (done.before.to_string(), done.after.to_string());
                Ok((200, json!({ "before": before, "after": after })))
            }
            (Method::Get, path) => match path.strip_prefix("/keys/") {
                Some(key) => self.key(key),
                None => Ok((404, json!({ "error": "no such page" }))),
            },
            _ => Ok((405, json!({ "error": "no such method here" }))),
        }
    }

    fn append(&self, request: &mut Request) -> Result<(u16, Value), Failure> {
        let mut body = Vec::new();
        std::io::Read::read_to_end(
            &mut std::io::Read::take(request.as_reader(), BODY_BYTES_MAX),
            &mut body,
        )?;
        let Some(event) = event(&body) else {
            return Ok((
                400,
                json!({ "error": "id, key, version and type are needed" }),
            ));
        };
        match self.store.append(&event) {
            Ok(offset) => Ok((201, json!({ "offset": offset }))),
            Err(foldlog::Error::Empty { what }) => {
                Ok((400, json!({ "error": format!("{what} is empty") })))
            }
            // The client must not take this for a yes: it asks again, and a duplicate is harmless.
            Err(error) => Ok((503, json!({ "error": error.to_string() }))),
        }
    }

    fn status(&self) -> Value {
        json!({
            "counters": self.orders.counters(),
            "checkpoint": self.orders.checkpoint(),
            "durable_end": self.store.durable_end(),
            "digest": self.orders.digest().to_string(),
        })
    }

    fn dead(&self) -> Result<Value, Failure> {
        let mut open = Vec::new();
        for letter in self.orders.dead_letters() {
            let letter = letter?;
            if letter.is_open() {
                open.push(json!({
                    "offset": letter.offset,
                    "id": letter.id,
                    "key": letter.key,
                    "reason": letter.reason(),
                }));
            }
        }
        Ok(json!(open))
    }

    fn key(&self, key: &str) -> Result<(u16, Value), Failure> {
        let blocked = self.orders.blocked(key)?.map(|blocked| {
            json!({ "next": blocked.next, "letter": blocked.letter, "waiting": blocked.waiting })
        });
        match self.orders.get(key)? {
            None if blocked.is_none() => Ok((404, json!({ "error": "no such key" }))),
            row => Ok((
                200,
                json!({
                    "version": row.as_ref().map_or(0, |row| row.version),
                    "state": row.and_then(|row| row.state),
                    "blocked": blocked,
                }),
            )),
        }
    }
}

fn event(body: &[u8]) -> Option<Event> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
    Some(Event::new(
        text("id")?,
        text("key")?,
        value.get("version")?.as_i64()?,
        text("type")?,
    ))
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: service DIR [ADDRESS]")?;
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:8000".to_owned());

    let store = Store::open(dir)?;
    let orders = store.consumer("orders", Orders)?;
    let service = Service { store, orders };

    let stop = Arc::new(AtomicBool::new(false));
    let fold = {
        let (orders, stop) = (service.orders.clone(), Arc::clone(&stop));
        std::thread::spawn(move || orders.run(&stop))
    };

    let server = Arc::new(Server::http(address)?);
    println!("listening on {}", server.server_addr());
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (server, service, stop) = (Arc::clone(&server), service.clone(), Arc::clone(&stop));
            std::thread::spawn(move || serve(&server, &service, &stop))
        })
        .collect();
    for worker in workers {
        worker.join().map_err(|_| "a worker panicked")?;
    }
    stop.store(true, Ordering::Release);
    fold.join().map_err(|_| "the fold panicked")??;
    Ok(())
}

fn serve(server: &Server, service: &Service, stop: &AtomicBool) {
    let json = Header::from_bytes("Content-Type", "application/json");
    while !stop.load(Ordering::Acquire) {
        let request = server.recv_timeout(Duration::from_millis(100));
        let Ok(Some(mut request)) = request else {
            continue;
        };
        let (status, body) = service
            .answer(&mut request)
            .unwrap_or_else(|error| (500, json!({ "error": error.to_string() })));
        let mut response = Response::from_string(body.to_string()).with_status_code(status);
        if let Ok(json) = &json {
            response.add_header(json.clone());
        }
        // A client that went away is no concern of ours: its event is on disk.
        if let Err(error) = request.respond(response) {
            eprintln!("answer not delivered: {error}");
        }
    }
}
