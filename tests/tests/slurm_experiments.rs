//! The experiments on a real Slurm with an external store, small: `tarn reproduce weiland-slurm` and `slurm-mixed-day`.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tarn_tests::programs;

/// Runs an experiment with options of its own; its results. `None`, with a message, where it cannot run.
fn measured(name: &str, options: &[&str]) -> Option<Value> {
    // The nodes of a cluster have a /tmp of their own.
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let results = folder.path().join("results.json");
    let bench = programs::built("tarn-bench").unwrap_or_else(|e| panic!("{e:#}"));
    for program in ["tarn", "tarnd"] {
        programs::built(program).unwrap_or_else(|e| panic!("{e:#}"));
    }
    let ended = Command::new(bench)
        .args(["reproduce", name, "--quick", "--dir"])
        .arg(folder.path())
        .args(["--report", "page.html", "--results", "results.json", "--"])
        .args(options)
        .current_dir(folder.path())
        .output()
        .expect("tarn-bench");
    let words = String::from_utf8_lossy(&ended.stderr).into_owned();
    let text = std::fs::read(&results).unwrap_or_else(|e| panic!("{e}: {words}"));
    let text: Value = serde_json::from_slice(&text).expect("results");
    let experiment = text["experiments"][0].clone();
    match experiment["not_run"].as_str() {
        Some(why) if why.starts_with("needs ") => {
            eprintln!("SKIPPED: {name} {why}");
            return None;
        }
        Some(why) => panic!("{name}: {why}\n{words}"),
        None => {}
    }
    assert!(ended.status.success(), "{words}");
    assert_eq!(entries_of(folder.path()), ["page.html", "results.json"]);
    Some(experiment)
}

/// The names of the entries of a folder, in order.
fn entries_of(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().expect("the folder").flatten();
    let mut names: Vec<String> = entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The value of a cell by the beginnings of its table's title, its row and its column.
fn value(experiment: &Value, title: &str, row: &str, column: &str) -> f64 {
    let begins = |value: &Value, text: &str| value.as_str().is_some_and(|v| v.starts_with(text));
    let mut tables = experiment["tables"].as_array().expect("tables").iter();
    let table = tables.find(|t| begins(&t["title"], title)).expect(title);
    let mut columns = table["columns"].as_array().expect("columns").iter();
    let at = columns.position(|c| begins(c, column)).expect(column);
    let mut rows = table["rows"].as_array().expect("rows").iter();
    let cells = rows.find(|r| begins(&r[0], row)).expect(row);
    let cell = &cells[at];
    let value = cell.as_f64().or_else(|| cell["value"].as_f64());
    value.unwrap_or_else(|| panic!("{title}, {row}, {column}: {cell}"))
}

/// The claims on how near the simulated Slurm is, each with a factor.
fn claims_of_predictions(experiment: &Value) -> usize {
    let claims = experiment["claims"].as_array().expect("claims");
    let text = |claim: &Value, key: &str| claim[key].as_str().unwrap_or_default().to_owned();
    let near = claims
        .iter()
        .filter(|claim| text(claim, "claim").ends_with("% of the prediction"));
    near.filter(|claim| text(claim, "here").ends_with(" times"))
        .count()
}

#[test]
fn the_workflow_of_table_4_keeps_its_data_on_four_nodes_of_a_slurm() {
    let options = "--only-workflow --scale 0.05 --rounds 1 --modes backfill,advise";
    let options: Vec<&str> = options.split(' ').collect();
    let Some(found) = measured("weiland-slurm", &options) else {
        return;
    };
    let whole = |column| {
        let row = "the workflow, 1, 7 and 9";
        value(&found, "Seconds of the paper", row, column)
    };
    // No data arrives sooner than the store gives it: 90 s, 330 s and 50 s.
    assert!(whole("Slurm alone") >= 450.0, "{found:#}");
    assert!((whole("simulated, easy") - 470.0).abs() < 5.0, "{found:#}");
    assert!((whole("simulated, data") - 280.0).abs() < 5.0, "{found:#}");
    // The same with the latencies of Slurm and tarn: the 280 s, and what three jobs need besides.
    let (predicted, planned) = (whole("simulated: tarn, advise"), whole("simulated, data"));
    assert!(predicted > planned + 10.0, "{found:#}");
    assert!(predicted < whole("simulated: Slurm alone"), "{found:#}");
    assert_eq!(claims_of_predictions(&found), 4);
    let commands = |column| {
        let title = "Where the workflow's time goes";
        value(&found, title, "job7: its commands", column)
    };
    // Reading and writing are 150 s of its 330 s.
    let (alone, local) = (commands("Slurm alone"), commands("tarn, advise"));
    assert!(alone >= 320.0 && local >= 180.0, "{found:#}");
    assert!(local < 0.8 * alone, "{found:#}");
}

#[test]
fn a_small_mixed_day_is_measured_beside_its_simulation() {
    let options = "--nodes 4 --jobs 6 --workflows 1 --scale 0.002 --days 1 --modes backfill,advise";
    let options: Vec<&str> = options.split(' ').collect();
    let Some(found) = measured("slurm-mixed-day", &options) else {
        return;
    };
    let predicted = ["simulated: Slurm alone", "simulated: tarn, advise"];
    for column in [["Slurm alone", "tarn, advise"], predicted].concat() {
        let figure = |row| value(&found, "A day", row, column);
        assert!(figure("workflows: mean time") > 0.0, "{found:#}");
        assert!(figure("ordinary jobs: mean bounded") >= 1.0, "{found:#}");
        let used = figure("share of the nodes in use");
        assert!(used > 0.0 && used <= 1.0, "{found:#}");
    }
    // Starting a job takes time on a simulated Slurm, and none for the planner alone.
    let gate = |column| value(&found, "Where", "workflows, mean: from then", column);
    assert!(predicted.iter().all(|of| gate(of) > 0.1), "{found:#}");
    assert_eq!(gate("simulated, data"), 0.0);
    assert_eq!(claims_of_predictions(&found), 4);
}
