//! No exported function is forgotten: each is called by a program that is swept, or is known to write nothing.

use crate::linked::{library, source};
use std::collections::BTreeSet;
use std::process::Command;

/// Those that change no file, neither by themselves nor by a tarnd, whether they succeed or not.
const WRITES_NOTHING: [&str; 10] = [
    // It lists.
    "dsa_list",
    // Regions of a queue pair, in memory; and its descriptor.
    "dsa_fd",
    "dsa_open_cyclic",
    "dsa_unregister",
    // Texts and codes.
    "phx_code_text",
    "phx_fail",
    "phx_get_obj",
    "tarn_version",
    // They ask.
    "tarn_connect_job",
    "tarn_status",
];

/// The functions that a text calls.
fn called(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.match_indices('(').map(|(at, _)| {
        let before = &text[..at];
        let begin = before.rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
        before[begin..].to_owned()
    });
    words.collect()
}

fn is_ours(name: &str) -> bool {
    ["dsa_", "phx_", "tarn_"]
        .iter()
        .any(|p| name.starts_with(p))
}

/// The functions that headers declare, functions of their own left out.
fn declared() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for header in ["dsa.h", "phx.h", "tarn.h", "tarn_objects.h"] {
        let text = std::fs::read_to_string(source("include").join(header)).unwrap();
        let outside = text.lines().filter(|line| {
            let within = [' ', '/', '#', '}'].iter().any(|c| line.starts_with(*c));
            !within && !line.starts_with("static ")
        });
        found.extend(outside.flat_map(called).filter(|name| is_ours(name)));
    }
    found
}

#[test]
fn every_exported_function_is_swept_or_writes_nothing() {
    let declared = declared();
    assert!(declared.len() > 70, "{declared:?}");
    let symbols = Command::new("nm")
        .args(["-D", "--defined-only", "--format=just-symbols"])
        .arg(library().join("libtarn.so"))
        .output()
        .unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let symbols: BTreeSet<String> = symbols.lines().map(str::to_owned).collect();
    let exported: BTreeSet<String> = symbols.into_iter().filter(|name| is_ours(name)).collect();
    assert_eq!(exported, declared, "headers have what the library has");
    let mut swept = BTreeSet::new();
    for file in std::fs::read_dir(source("tests")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if name.starts_with("inject") {
            swept.extend(called(&std::fs::read_to_string(&path).unwrap()));
        }
    }
    let known: BTreeSet<String> = WRITES_NOTHING.map(str::to_owned).into();
    let forgotten: Vec<_> = declared
        .iter()
        .filter(|name| !swept.contains(*name) && !known.contains(*name))
        .collect();
    assert!(
        forgotten.is_empty(),
        "call them in a program that is swept (bindings/c/tests/inject_*.c), or say that they write nothing: {forgotten:?}"
    );
    let stale: Vec<_> = known
        .iter()
        .filter(|name| swept.contains(*name) || !declared.contains(*name))
        .collect();
    assert!(stale.is_empty(), "called, or gone: {stale:?}");
}
