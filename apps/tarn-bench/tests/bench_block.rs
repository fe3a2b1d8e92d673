//! `tarn bench block`, small.

#[path = "../../tarn/tests/nbd/mod.rs"]
mod nbd;
#[path = "../../tarn/tests/common/program.rs"]
mod program;

use nbd::Fixture;
use serde_json::Value;
use std::process::Command;

#[test]
fn a_device_is_measured_beside_nbdkits_memory_and_nothing_is_left() {
    let Some(fixture) = Fixture::new(&["fio"]) else {
        return;
    };
    let folder = fixture.path("tier");
    std::fs::create_dir(&folder).unwrap();
    let text = nbd::output_of(
        Command::new(program::tarn())
            .args(["bench", "block", "--json", "--rounds", "1", "--mib", "4"])
            .args(["--requests", "64", "--dir"])
            .arg(&folder),
    );
    let report: Value = serde_json::from_str(&text).unwrap();
    let results = report["results"].as_array().unwrap();
    let names = ["depth1", "depth1", "depth32", "depth32", "seq-1m", "seq-1m"];
    assert_eq!(results.len(), names.len());
    for (result, name) in results.iter().zip(names) {
        assert!(
            result["name"].as_str().unwrap().starts_with(name),
            "{result}"
        );
        assert!(result["ratio"].as_f64().unwrap() > 0.0, "{result}");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}
