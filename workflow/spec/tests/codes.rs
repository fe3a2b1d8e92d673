//! The code part of a step's identity, and the needs of `stage-through`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tarn_spec::{code_hash, needs_external, parse};
use tarn_types::hash::Hash;

const BASE: &str = r#"
name = "w"
[data.x]
source = "x"
scatter = "p{rank}"
[data.y]
dest = "y"
[[step]]
name = "a"
run = "./make.sh --config=solver.cfg $TARN_x"
prelude = "module load gcc"
env = { THREADS = "4" }
nodes = 2
tasks = 4
in = ["x:scatter"]
out = ["y:single"]
"#;

fn code(text: &str, files: &BTreeMap<PathBuf, &[u8]>) -> Hash {
    let mut parsed = parse("w.toml", text, Path::new("/flow")).unwrap_or_else(|e| panic!("{e:?}"));
    let read = |path: &Path| files.get(path).map(|b| b.to_vec());
    let direct = code_hash(&parsed.workflow, &parsed.workflow.steps[0], &read);
    parsed.finish_codes(&read);
    assert_eq!(parsed.workflow.steps[0].code, direct, "both ways agree");
    direct
}

#[test]
fn what_decides_the_result_changes_the_code() {
    let none = BTreeMap::new();
    let base = code(BASE, &none);
    for (from, to) in [
        ("$TARN_x\"", "$TARN_x -v\""),
        ("gcc", "clang"),
        ("nodes = 2", "shell = \"sh\"\nnodes = 2"),
        ("name = \"w\"", "name = \"w\"\nshell = \"sh\""),
        ("THREADS = \"4\"", "THREADS = \"8\""),
        ("THREADS", "OTHERS"),
        ("nodes = 2", "nodes = 3"),
        ("tasks = 4", "tasks = 8"),
        ("y:single", "y:broadcast"),
        ("p{rank}", "q{rank}"),
        ("in = [\"x:scatter\"]", "in = [\"x:gather\"]"),
        ("in = [\"x:scatter\"]", "in = [\"x/one\"]"),
        ("in = [\"x:scatter\"]", "in = [\"x/two\"]"),
    ] {
        let changed = BASE.replace(from, to);
        assert_ne!(changed, BASE, "{from}");
        assert_ne!(code(&changed, &none), base, "{from} -> {to}");
    }
    // Another reader that selects entries divides the step's output.
    let reader = "[[step]]\nname = \"b\"\nrun = \"b\"\nin = [\"y/one\"]\n";
    assert_ne!(code(&format!("{BASE}{reader}"), &none), base);
    // Whether there is a foreach counts.
    let plain = BASE.replace("nodes = 2", "").replace("tasks = 4", "");
    assert_ne!(
        code(&format!("{plain}foreach = [\"a\"]\n"), &none),
        code(&plain, &none)
    );
}

#[test]
fn what_does_not_decide_the_result_does_not() {
    let none = BTreeMap::new();
    let base = code(BASE, &none);
    for more in [
        "cores = 2",
        "memory = \"1 GiB\"",
        "gpus = 1",
        "time = \"1h\"",
        "retries = 3",
        "tier = \"disk\"",
    ] {
        assert_eq!(code(&format!("{BASE}{more}\n"), &none), base, "{more}");
    }
    assert_eq!(
        code(&BASE.replace("name = \"a\"", "name = \"renamed\""), &none),
        base
    );
    assert_eq!(
        code(&BASE.replace("name = \"w\"", "name = \"renamed\""), &none),
        base
    );
    let values = |list: &str| {
        let plain = BASE.replace("nodes = 2", "").replace("tasks = 4", "");
        code(&format!("{plain}foreach = {list}\n"), &none)
    };
    assert_eq!(
        values("[\"a\"]"),
        values("[\"a\", \"b\"]"),
        "a further value does not touch the others"
    );
}

#[test]
fn scripts_count_by_their_bytes() {
    let file = |name: &str, bytes: &'static [u8]| (PathBuf::from("/flow").join(name), bytes);
    let none = code(BASE, &BTreeMap::new());
    let first = code(BASE, &BTreeMap::from([file("./make.sh", b"one")]));
    let second = code(BASE, &BTreeMap::from([file("./make.sh", b"two")]));
    let config = code(
        BASE,
        &BTreeMap::from([file("./make.sh", b"two"), file("solver.cfg", b"x")]),
    );
    let other = code(
        BASE,
        &BTreeMap::from([
            file("./make.sh", b"two"),
            file("solver.cfg", b"x"),
            file("unnamed", b"x"),
        ]),
    );
    assert!(none != first && first != second && second != config);
    assert_eq!(config, other, "a file that nothing names does not count");
}

#[test]
fn a_script_of_many_steps_is_read_once() {
    let mut text = String::from("name = \"w\"\n");
    for i in 0..50 {
        text.push_str(&format!(
            "[[step]]\nname = \"s{i}\"\nrun = \"run.sh {i}\"\n"
        ));
    }
    let mut parsed = parse("w.toml", &text, Path::new("/flow")).unwrap_or_else(|e| panic!("{e:?}"));
    let requested = RefCell::new(Vec::new());
    parsed.finish_codes(&|path| {
        requested.borrow_mut().push(path.to_owned());
        Some(b"#!/bin/sh".to_vec())
    });
    let scripts = requested
        .borrow()
        .iter()
        .filter(|p| p.ends_with("run.sh"))
        .count();
    assert_eq!(scripts, 1);
    let codes: std::collections::BTreeSet<_> =
        parsed.workflow.steps.iter().map(|s| s.code).collect();
    assert_eq!(codes.len(), 50);
}

#[test]
fn stage_through_needs_a_place_for_what_dest_does_not_take() {
    let text = r#"
        name = "w"
        [data.raw]
        source = "raw"
        [data.between]
        [data.once]
        dest = "once"
        [data.twice]
        dest = "twice"
        [[step]]
        name = "a"
        run = "a"
        in = ["raw"]
        out = ["between", "once", "twice"]
        [[step]]
        name = "b"
        run = "b"
        in = ["between"]
        inout = ["twice"]
    "#;
    let parsed = parse("w.toml", text, Path::new("/flow")).unwrap_or_else(|e| panic!("{e:?}"));
    let names: Vec<_> = needs_external(&parsed.workflow)
        .iter()
        .map(|d| &parsed.workflow.dataset(*d).name)
        .collect();
    assert_eq!(names, ["between", "twice"]);
}
