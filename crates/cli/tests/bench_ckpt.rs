//! `tarn bench ckpt` by the real binary, on little.

mod common;

use common::Site;

#[test]
fn copies_are_measured_beside_memcpy_and_nothing_is_left() {
    let site = Site::new("");
    let dir = site.path("medium");
    std::fs::create_dir(&dir).unwrap();
    let dir = dir.to_string_lossy().into_owned();
    let mut args = vec!["bench", "ckpt", "--json", "--mib", "3", "--rounds", "1"];
    args.extend(["--threads", "3", "--dir", &dir]);
    args.extend(["--case", "copy", "--case", "commit"]);
    let value = site.tarn(&args).exits(0).summary();
    assert_eq!(value["bench"], "ckpt");
    let results = value["results"].as_array().expect("results");
    // Copies and back; a commit, a restart into memory that was touched, and one that was not.
    assert_eq!(results.len(), 5);
    for result in results {
        assert_eq!(result["against"]["name"], "memcpy", "{result}");
        assert!(result["ratio"].as_f64() > Some(0.0), "{result}");
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}
