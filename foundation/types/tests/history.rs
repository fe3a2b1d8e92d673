//! The read model, as derived from records.

use serde_json::{Value, json};
use tarn_types::action::Action;
use tarn_types::event::Event;
use tarn_types::history::History;
use tarn_types::id::{DataId, InstanceId, StepId};
use tarn_types::part::Place;

fn event(value: Value) -> Event {
    serde_json::from_value(value).expect("an event")
}

fn actions(value: Value) -> Vec<Action> {
    serde_json::from_value(value).expect("actions")
}

/// One instance of `each` for each text of `raw` makes a part of `made`.
fn begun() -> History {
    let link = json!({"read": 1, "write": 1, "latency": 0, "streams": 1, "emulated": false});
    let dataset = |name: &str, source: Option<&str>, dest: Option<&str>| {
        json!({"name": name, "source": source, "dest": dest, "size": null, "scatter": null, "keep": "forever",
               "copies": 1, "on_failure": "discard", "tier": null, "partition": "entries"})
    };
    let step = json!({
        "name": "each", "run": "true", "prelude": null, "env": {}, "nodes": 1, "tasks": 1, "cores": 1, "memory": 0,
        "gpus": 0, "time": null, "retries": 0, "tier": null, "after": [],
        "foreach": {"entries": {"data": 0, "version": 0, "pattern": "*.txt", "max": 9}},
        "uses": [{"data": 0, "role": "in", "distribution": "single", "entry": "{item}", "reads": 0, "makes": null},
                 {"data": 1, "role": "out", "distribution": "single", "entry": null, "reads": null, "makes": 1}],
        "code": "00000000000000000000000000000000"
    });
    let started = json!({
        "event": "started", "run": "w-1", "workspace": "w", "wall": 0,
        "workflow": {"name": "w", "external": null, "folder": "/", "steps": [step],
                     "data": [dataset("raw", Some("/raw"), None), dataset("made", None, Some("/out"))]},
        "cluster": {"hosts": [], "nodes": [], "external": link, "peer": link},
        "options": {"policy": "data", "verify": "copy"}, "prior": [], "prior_dest": []
    });
    let mut history = History::new();
    history.apply(0, &event(started), &[]);
    history
}

fn part(seq: u32, class: &Value) -> Value {
    json!({"seq": seq, "class": class, "bytes": 1, "stored": 1, "files": 1, "hash": null, "key": format!("k{seq}")})
}

fn listed(names: &[&str]) -> Event {
    let parts = (0u32..).zip(names);
    let parts: Vec<Value> = parts
        .map(|(seq, name)| part(seq, &json!({"entry": name})))
        .collect();
    event(json!({"event": "source-listed", "data": 0, "parts": parts}))
}

fn noted(index: u32) -> Vec<Action> {
    let about = json!({"instance": {"step": 0, "index": index}});
    actions(json!([{"do": "note", "about": about, "why": {"reason": "ready"}}]))
}

fn committed(index: u32) -> Event {
    let output = json!({"data": 1, "version": 1, "parts": [[part(0, &json!("whole")), []]]});
    event(json!({
        "event": "ended", "instance": {"step": 0, "index": index}, "attempt": 1,
        "ended": {"how": "committed", "outputs": [output], "undeclared": {"files": 0, "bytes": 0, "names": []}},
        "usage": {"wall": 0, "user": 0, "system": 0, "read": 0, "written": 0, "memory": 0, "prepare": 0, "commit": 0}
    }))
}

#[test]
fn elements_are_the_sorted_entries_that_match() {
    let mut history = begun();
    let name = |h: &History, index| {
        h.instance_name(InstanceId {
            step: StepId(0),
            index,
        })
    };
    history.apply(1, &listed(&["b.txt", "notes", "a.txt"]), &[]);
    assert_eq!(name(&history, 1), "each[1]", "nothing is decided yet");
    history.apply(2, &Event::Timer, &noted(0));
    assert_eq!(
        (name(&history, 0), name(&history, 1)),
        ("each[a.txt]".into(), "each[b.txt]".into())
    );
    assert_eq!(name(&history, 2), "each[2]", "there is no third");
    // Listed again, with another entry: the old elements are forgotten.
    history.apply(3, &listed(&["b.txt", "c.txt", "a.txt"]), &noted(0));
    assert_eq!(name(&history, 2), "each[c.txt]");
}

#[test]
fn a_version_is_sealed_when_every_instance_is_done() {
    let mut history = begun();
    let (raw, made) = (DataId(0), DataId(1));
    assert!(!history.is_sealed(raw, 0) && !history.is_sealed(made, 1));
    history.apply(1, &listed(&["a.txt", "b.txt"]), &noted(0));
    assert!(history.is_sealed(raw, 0));
    assert_eq!(history.makers(made, 1), (0, Some(2)));
    for index in 0..2 {
        assert!(!history.is_sealed(made, 1));
        history.apply(2, &committed(index), &[]);
    }
    assert!(history.is_sealed(made, 1));
}

/// The first two parts of `made` are ordered to move.
fn ordered(id: u64, from: &Value, to: &Value, kind: &str) -> Vec<Action> {
    let part = |origin: u32| json!({"data": 1, "version": 1, "origin": origin, "seq": 0});
    let parts = [0, 1].map(|origin| json!({"part": part(origin), "from": from}));
    actions(
        json!([{"do": "transfer", "id": id, "data": 1, "version": 1, "parts": parts, "to": to, "kind": kind,
                    "verify": "copy", "priority": 0, "why": {"reason": "deliver"}}]),
    )
}

#[test]
fn what_is_found_damaged_at_a_dest_lies_there_no_more_and_is_no_delivery() {
    let mut history = begun();
    history.apply(1, &listed(&["a.txt", "b.txt"]), &noted(0));
    for index in 0..2 {
        history.apply(2, &committed(index), &[]);
    }
    let made = DataId(1);
    let (node, dest) = (
        json!({"node": {"node": 0, "tier": 0}}),
        json!({"external": "/out"}),
    );
    let there = |h: &History| {
        let parts = h.parts_of(made, 1).map(|(part, _)| h.places(part).count());
        parts.collect::<Vec<_>>()
    };
    history.apply(3, &Event::Timer, &ordered(0, &node, &dest, "external-out"));
    let hash = "00000000000000000000000000000001";
    let done = json!({"event": "transfer-done", "id": 0, "bytes": 2, "hashes": [hash, hash], "stored": [1, 1], "took": 1});
    history.apply(4, &event(done), &ordered(1, &dest, &node, "external-in"));
    assert_eq!((there(&history), history.delivered.len()), (vec![1, 1], 1));
    let damaged = json!({"data": 1, "version": 1, "origin": 1, "seq": 0});
    let failed = json!({"event": "transfer-failed", "id": 1, "failure": {"kind": "corrupt", "message": "a byte"}, "damaged": damaged});
    history.apply(5, &event(failed), &[]);
    assert_eq!((there(&history), history.delivered.len()), (vec![1, 0], 0));
    let key = history.parts_of(made, 1).last().map(|(_, i)| i.key.clone());
    let gone = (key.expect("it was made"), Place::External("/out".into()));
    assert_eq!(history.removed.get(&gone), Some(&5));
}
