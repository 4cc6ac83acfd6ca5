//! What is remembered of an upstream: how far it was read, and the last event of it.
#![expect(clippy::unwrap_used, reason = "tests")]

use foldlog::{Event, Ingested, Store};

fn event(id: &str) -> Event {
    // Large enough that a few of them fill a segment.
    Event::new(id, "key", 1, "kind").with_payload(vec![7; 600])
}

fn open(dir: &tempfile::TempDir, read_only: bool) -> Store {
    let options = Store::options().segment_bytes(4096).read_only(read_only);
    options.open(dir.path()).unwrap()
}

#[test]
fn the_last_event_of_an_upstream_is_found_over_segments_others_and_bare_positions() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, false);
    let append = |upstream: &str, position: u64, events: &[Event]| {
        let answer = store.append_from(upstream, position, events).unwrap();
        assert!(matches!(answer, Ingested::Stored(_)), "{answer:?}");
    };
    let last = |store: &Store, upstream: &str| {
        store.upstream_last(upstream).unwrap().map(|event| event.id)
    };
    assert_eq!(last(&store, "a"), None);
    store.append(&event("by itself")).unwrap();
    append("a", 10, &[event("a1"), event("a2")]);
    assert_eq!(last(&store, "a").as_deref(), Some("a2"));
    // A position that was not taken, and one without events, leave it as it is.
    let again = store.append_from("a", 10, &[event("a9")]).unwrap();
    assert_eq!(again, Ingested::AlreadyStored { position: 10 });
    append("a", 20, &[]);
    assert_eq!(store.upstream_position("a"), Some(20));
    assert_eq!(last(&store, "a").as_deref(), Some("a2"));
    // Several segments later, each of which starts with the table of all positions.
    for n in 1..=30 {
        append("b", n, &[event(&format!("b{n}"))]);
    }
    assert!(store.segments().len() > 3, "{:?}", store.segments());
    assert_eq!(last(&store, "a").as_deref(), Some("a2"));
    assert_eq!(last(&store, "b").as_deref(), Some("b30"));
    assert_eq!(last(&store, "c"), None);
    append("a", 30, &[event("a3")]);
    assert_eq!(last(&store, "a").as_deref(), Some("a3"));
    store.close().unwrap();
    for read_only in [false, true] {
        let store = open(&dir, read_only);
        assert_eq!(last(&store, "a").as_deref(), Some("a3"));
        assert_eq!(last(&store, "b").as_deref(), Some("b30"));
        assert_eq!(last(&store, "c"), None);
    }
}
