//! `tarn bench plan`, small.

#[path = "../../tarn/tests/common/mod.rs"]
mod common;

use common::Site;

#[test]
fn the_planners_bench_prints_its_figures() {
    let site = Site::new("");
    let ran = site.tarn(&[
        "bench",
        "plan",
        "--json",
        "--nodes",
        "4",
        "--waiting",
        "100",
        "--jobs",
        "1000",
    ]);
    let value = ran.exits(0).summary();
    assert_eq!(
        (&value["schema"], &value["bench"]),
        (&1.into(), &"plan".into())
    );
    let results = value["results"].as_array().expect("results");
    for name in ["step-p99-ms", "step-max-ms", "sim-1k-s"] {
        let found = results
            .iter()
            .find(|r| r["name"] == name)
            .unwrap_or_else(|| panic!("{name}"));
        assert!(found["value"].as_f64() > Some(0.0));
    }
}
