//! examples/analysis: xarray and dask on the nodes that store a simulation's output give the same as without tarn, to the last
//! byte.

mod common;

use common::{Site, files};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Points along an edge, and times: small, so that the test is quick.
const SIZE: (&str, &str) = ("32", "16");
/// Bytes of all members' fields: three, of 8 bytes a point.
const FIELDS: u64 = 8 * 3 * 8 * 32 * 32 * 16;

/// The step that reads the fields.
const REDUCE: u64 = 1;

fn is_here() -> bool {
    let output = Command::new("/usr/bin/python3")
        .args(["-c", "import dask, numpy, xarray, zarr"])
        .output();
    let here = output.is_ok_and(|a| a.status.success());
    if !here {
        eprintln!("SKIPPED: no xarray, dask or zarr here: scripts/deps.sh test installs them");
    }
    here
}

/// Every file below a folder, by its path there.
fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut paths = Vec::new();
    files(folder, &mut paths);
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path.strip_prefix(folder).expect("it is below it");
        let bytes = fs::read(path).expect("a file");
        (name.display().to_string(), bytes)
    };
    paths.iter().map(read).collect()
}

#[test]
fn an_analysis_begins_where_the_simulation_has_left_its_output() {
    if !is_here() {
        return;
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/analysis");
    let text = fs::read_to_string(example.join("workflow.toml")).expect("the workflow");
    let small = text
        .replace("GRID = \"128\"", &format!("GRID = \"{}\"", SIZE.0))
        .replace("FRAMES = \"64\"", &format!("FRAMES = \"{}\"", SIZE.1));
    assert_ne!(small, text);
    let site = Site::new(&small).with(&["--nodes", "2", "--oversubscribe"]);
    for program in ["simulate.py", "reduce.py", "combine.py"] {
        fs::copy(example.join(program), site.path(program)).expect("a program of the example");
    }
    site.run().exits(0);
    let moved = site.moved();
    let of = |kind: &str, step| moved.get(&(kind.to_owned(), step)).copied().unwrap_or(0);
    // Nothing came from outside, and nothing but the statistics went there.
    let result = content(&site.path("result"));
    let bytes: usize = result.iter().map(|(_, content)| content.len()).sum();
    assert!(
        moved
            .keys()
            .all(|(kind, _)| kind == "peer" || kind == "external-out"),
        "{moved:?}"
    );
    assert_eq!(of("external-out", u64::MAX), bytes as u64, "{moved:?}");
    // Most members were reduced where they lay: where one node has made more of them than the other, some move.
    assert!(of("peer", REDUCE) < FIELDS / 2, "{moved:?}");

    let plain = Command::new(example.join("plain.sh"))
        .args([site.path("plain"), site.path("plain-result")])
        .envs([("GRID", SIZE.0), ("FRAMES", SIZE.1)])
        .status();
    assert!(plain.expect("plain.sh runs").success());
    assert!(result.iter().any(|(name, _)| name == "statistics.txt"));
    assert!(result == content(&site.path("plain-result")));
}
