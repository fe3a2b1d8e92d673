//! The page of the experiments in a real browser: no script fails, nothing is cut, all can be read by day and by night.

#[path = "common/chromium.rs"]
mod chromium;
#[path = "common/looked.rs"]
mod looked;

use chromium::{browser, opened};
use looked::{is_readable, looked_at};
use serde_json::{Value, json};
use tarn_report::evidence::{Results, page};

fn plot(title: &str, kind: &str, log: bool, series: Value) -> Value {
    json!({"title": title, "kind": kind, "x": {"label": "bytes of a request, of all that there are", "log": log},
        "y": {"label": "thousands of requests a second", "log": log}, "series": series})
}

/// Plots of all kinds with names as long as the experiments have them.
fn results() -> Results {
    let line = |name: &str, of: &str, by: f64| {
        let points: Vec<Value> = (0..6)
            .map(|n| {
                let (x, y) = (f64::from(4 << (2 * n)), by * f64::from(1 + n));
                json!([x, y, y * 0.8, y * 1.3])
            })
            .collect();
        json!({"name": name, "of": of, "points": points})
    };
    let lines = json!([
        line(
            "a queue pair, reading from anywhere, 8 partitions",
            "here",
            1.0
        ),
        line("plain", "peer", 123_456.0),
        line("Blue Gene/Q", "paper", 0.002),
        line("spent, Omni-Path, 2 switch(es)", "here", 17.0)
    ]);
    let names = [
        "write 1 MiB",
        "read 1 MiB, four processes",
        "a shared file by MPI-IO, writing",
        "read 4 KiB",
        "a file per process by MPI-IO, reading",
        "32 bytes",
    ];
    let bar = |name: &str, of: &str| {
        let points: Vec<Value> = names
            .iter()
            .map(|n| json!([n, 120.0, 100.0, 180.0]))
            .collect();
        json!({"name": name, "of": of, "points": points})
    };
    let bars = json!([
        bar("here", "here"),
        bar("the plain tool's", "peer"),
        bar("published", "paper")
    ]);
    let job = |n: u32| {
        let begin = f64::from(n % 4) * 100.0;
        // From one that is a sliver to one that is wide; each on nodes of its own.
        let end = begin + 2.0 + f64::from(n) * 30.0;
        let points: Vec<Value> = (3 * n..3 * n + 1 + n % 3)
            .map(|node| json!([node, begin, end]))
            .collect();
        json!({"name": format!("Job {n}"), "of": if n.is_multiple_of(2) { "here" } else { "peer" }, "points": points})
    };
    let gantt = Value::Array((0..10).map(job).collect());
    let experiment = json!({
        "schema": 1, "experiment": "played", "title": "All that a page may have", "source": "Nobody 2026, Table 1", "rounds": 3, "seconds": 12,
        "emulated": ["A store of 100 MB/s."], "differs": ["It is played."],
        "tables": [{"title": "Seconds", "columns": ["", "here", "paper, a machine with a long name"],
            "rows": [["writing", {"value": 1.5, "low": 1.0, "high": 2.0, "paper": 3.25}, "a text"], ["reading", {"value": 1e7}, 12]]}],
        "plots": [plot("lines", "lines", true, lines.clone()), plot("lines from 0", "lines", false, lines), plot("bars", "bars", false, bars), plot("gantt", "gantt", false, gantt)],
        "claims": [
            {"claim": "the one is faster than the other", "paper": "2 times", "here": "3 times", "verdict": "holds"},
            {"claim": "it is simulated", "paper": "2 times", "here": "1 time", "verdict": "fails", "how": ["simulated"]},
            {"claim": "nobody knows", "paper": "2 times", "here": "1 to 3 times", "verdict": "unclear"}],
    });
    let all = json!({
        "schema": 1, "machine": {"cpu": "a processor", "cores": 2}, "tarn": "0.1.0", "date": 1_700_000_000, "quick": true,
        "experiments": [experiment, {"schema": 1, "experiment": "other", "title": "Other", "source": "", "not_run": "needs what is not there"}],
    });
    Results::parse(all.to_string().as_bytes()).unwrap()
}

#[test]
fn the_page_is_whole_and_readable_on_any_screen_and_on_paper() {
    let Some(browser) = browser() else { return };
    let page = page(&results(), Some("results.json"));
    is_readable(browser, &page);
}

#[test]
fn figures_show_their_data_on_honest_scales() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.html");
    std::fs::write(&file, page(&results(), None)).unwrap();
    let dom = opened(browser, &file);
    // Bars: of each of three series one for each of six names, the paper's hollow, and the axis begins at 0.
    assert_eq!(dom.matches("class=\"tower").count(), 18);
    assert_eq!(dom.matches("class=\"tower hollow\"").count(), 6);
    assert!(dom.contains(">published (paper)</span>"));
    assert!(dom.contains(">thousands of requests a second, logarithmic scale</text>"));
    let plot = |n: usize| {
        let from = dom.split(&format!("id=\"plot-{n}\"")).nth(1).unwrap();
        from.split("</figure>").next().unwrap()
    };
    assert!(plot(0).contains("logarithmic") && !plot(2).contains("logarithmic"));
    assert!(plot(1).contains(">0</text>") && plot(2).contains(">0</text>"));
    // Every line has a mark at each of its points, and the spread of repetitions.
    assert_eq!(plot(0).matches("<line class=\"spread").count(), 4 * 6);
    // A job is one box over its nodes.
    assert_eq!(plot(3).matches("class=\"job ").count(), 10);
}

/// The looks find what they look for.
#[test]
fn what_is_wrong_with_a_page_is_found() {
    let Some(browser) = browser() else { return };
    let broken = page(&results(), None)
        .replace(
            ".fine {",
            ".fine { color: var(--card) !important; } .fine {",
        )
        .replace(
            "<main>",
            "<main><script>nothing();</script><img src=\"http://127.0.0.1:9/x\">\
             <figure><svg viewBox=\"0 0 90 20\"><text x=\"700\" y=\"12\">away</text></svg></figure>\
             <pre style=\"width: 50px; white-space: pre\">a text that is wider than its box</pre>",
        );
    let (wrong, _) = looked_at(browser, &broken, 1300, false);
    for what in [
        "script: ",
        "loads ",
        "leaves its picture: ",
        "cannot be read: ",
        "is cut: ",
    ] {
        assert!(wrong.iter().any(|w| w.contains(what)), "{what}: {wrong:#?}");
    }
}
