//! `tarn bench policies` and `tarn bench mixed` by the real binary, on workflows and a trace from a seed: properties of
//! every figure, whatever the workload.

#[path = "../../../workflow/report/tests/common/chromium.rs"]
mod chromium;
#[path = "../../tarn/tests/common/mod.rs"]
mod common;

use chromium::{browser, opened};
use common::Site;
use serde_json::{Value, json};
use std::fmt::Write;
use tarn_types::random::Random;

/// A workflow in WfFormat 1.5 while it is written.
#[derive(Default)]
struct Instance {
    tasks: Vec<Value>,
    executed: Vec<Value>,
    files: Vec<Value>,
}

impl Instance {
    fn file(&mut self, id: &str, bytes: u64) -> String {
        self.files.push(json!({"id": id, "sizeInBytes": bytes}));
        id.to_owned()
    }

    fn task(&mut self, id: &str, seconds: u64, inputs: &[String], outputs: &[String]) {
        self.tasks.push(json!({
            "name": id, "id": id, "parents": [], "children": [], "inputFiles": inputs, "outputFiles": outputs,
        }));
        self.executed
            .push(json!({"id": id, "runtimeInSeconds": seconds, "coreCount": 1}));
    }

    fn text(&self) -> String {
        json!({
            "name": "made", "schemaVersion": "1.5",
            "workflow": {
                "specification": {"tasks": self.tasks, "files": self.files},
                "execution": {"makespanInSeconds": 1, "executedAt": "2026-01-01", "tasks": self.executed},
            },
        })
        .to_string()
    }
}

/// One task divides, `width` tasks work on a piece each in two rounds, one gathers: the shape of montage and epigenomics.
fn fan(seed: u64, width: u64) -> String {
    let mut random = Random::new(seed);
    let mut made = Instance::default();
    let raw = made.file("raw", random.within(500..2000) * 1_000_000);
    let mut pieces = Vec::new();
    for n in 0..width {
        pieces.push(made.file(&format!("piece-{n}"), random.within(50..200) * 1_000_000));
    }
    made.task("divide", 5, &[raw], &pieces);
    let mut results = Vec::new();
    for (n, piece) in pieces.iter().enumerate() {
        let half = made.file(&format!("half-{n}"), random.within(50..200) * 1_000_000);
        let whole = made.file(&format!("whole-{n}"), random.within(5..50) * 1_000_000);
        let work = |random: &mut Random| random.within(10..40);
        made.task(
            &format!("first-{n}"),
            work(&mut random),
            std::slice::from_ref(piece),
            std::slice::from_ref(&half),
        );
        made.task(
            &format!("second-{n}"),
            work(&mut random),
            &[half],
            std::slice::from_ref(&whole),
        );
        results.push(whole);
    }
    let picture = made.file("picture", 100_000_000);
    made.task("gather", 5, &results, &[picture]);
    made.text()
}

/// Bytes that many tasks read.
const BASE: f64 = 2e9;

/// Many tasks that read one large file from outside: the shape of blast and 1000genome.
fn shared_input(seed: u64, width: u64) -> String {
    let mut random = Random::new(seed);
    let mut made = Instance::default();
    let base = made.file("base", BASE as u64);
    let mut results = Vec::new();
    for n in 0..width {
        let result = made.file(&format!("result-{n}"), random.within(1..20) * 1_000_000);
        made.task(
            &format!("search-{n}"),
            random.within(10..40),
            std::slice::from_ref(&base),
            std::slice::from_ref(&result),
        );
        results.push(result);
    }
    let report = made.file("report", 1_000_000);
    made.task("report", 5, &results, &[report]);
    made.text()
}

/// Jobs of a batch system in the Standard Workload Format.
fn trace(seed: u64, jobs: u64) -> String {
    let mut random = Random::new(seed);
    let mut text = "; UnixStartTime: 0\n".to_owned();
    let mut now = 0;
    for n in 1..=jobs {
        now += random.within(0..120);
        let (nodes, run) = (1 << random.within(0..4), random.within(30..1500));
        let requested = run * random.within(1..4);
        let _ = writeln!(
            text,
            "{n} {now} -1 {run} {nodes} -1 -1 {nodes} {requested} -1 1 1 1 1 1 1 -1 -1"
        );
    }
    text
}

fn workflows() -> Site {
    let site = Site::new("");
    site.write("fan-small-1.json", &fan(1, 6));
    site.write("fan-wide-2.json", &fan(2, 40));
    site.write("base-1.json", &shared_input(3, 30));
    site
}

const FILES: [&str; 3] = ["fan-small-1.json", "fan-wide-2.json", "base-1.json"];

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn policies_are_compared_at_the_wanted_share() {
    let site = workflows();
    let more = ["--shares", "20,50,75", "--json", "--report", "page.html"];
    let ran = site.tarn(&[&["bench", "policies"], &FILES[..], &more].concat());
    let value = ran.summary();
    assert_eq!(
        (&value["schema"], &value["bench"]),
        (&json!(1), &json!("policies"))
    );
    let points = value["points"].as_array().expect("points");
    assert_eq!(points.len(), 9);
    for point in points {
        let wanted = number(&point["wanted_share"]);
        let found = number(&point["shares"]["time_to_solution"]);
        assert!((found - wanted).abs() < 0.03, "{point}");
        let node_time = number(&point["shares"]["node_time"]);
        assert!(node_time > 0.0 && node_time < 1.0, "{point}");
        let runs = point["runs"].as_array().expect("runs");
        let run = |name: &str| runs.iter().find(|r| r["policy"] == name).expect("ran");
        let makespan = |name: &str| number(&run(name)["makespan_s"]);
        assert!(makespan("data") <= 1.02 * makespan("easy"), "{point}");
        assert!(makespan("data") <= 1.02 * makespan("heft+cache"), "{point}");
        let bound = number(&point["lower_bound_s"]);
        assert!(bound > 0.0, "{point}");
        for run in runs {
            let moved = number(&run["external_bytes"]);
            assert!(number(&run["makespan_s"]) >= bound * 0.999_999, "{point}");
            assert!(moved >= number(&point["unavoidable_bytes"]), "{point}");
            assert!(moved <= number(&point["stage_through_bytes"]), "{point}");
        }
        assert_eq!(
            run("easy")["external_bytes"],
            point["stage_through_bytes"],
            "each job reads and writes outside"
        );
        let again = number(&run("data")["external_bytes"]) - number(&point["unavoidable_bytes"]);
        match point["family"].as_str() {
            Some("fan") => assert_eq!(
                again, 0.0,
                "what one task makes never comes from outside: {point}"
            ),
            _ => assert!(
                again <= 7.0 * BASE,
                "at most once for each of eight nodes: {point}"
            ),
        }
    }
    let families = value["families"].as_array().expect("families");
    assert_eq!(families.len(), 6, "two families at three shares");
    let instances = |family: &Value| {
        let of_family = points.iter().filter(|p| p["family"] == family["family"]);
        of_family.count() / 3
    };
    assert!(families.iter().all(|f| f["instances"] == instances(f)));
    if let Some(browser) = browser() {
        let page = opened(browser, &site.path("page.html"));
        assert_eq!(
            page.matches("<g class=\"tone").count(),
            2 * 4,
            "four curves a family"
        );
        assert!(page.contains("fan-wide-2"));
    }
}

#[test]
fn the_same_files_give_the_same_figures() {
    let site = workflows();
    let twice = [(); 2].map(|()| {
        let more = [
            "--shares",
            "40",
            "--share-of",
            "node-time",
            "--unchecked",
            "--json",
        ];
        let ran = site.tarn(&[&["bench", "policies"], &FILES[..], &more].concat());
        ran.summary()["points"].clone()
    });
    assert_eq!(twice[0], twice[1]);
    for point in twice[0].as_array().expect("points") {
        let found = number(&point["shares"]["node_time"]);
        assert!((found - 0.4).abs() < 0.03, "{point}");
    }
}

#[test]
fn what_has_no_share_is_refused() {
    let site = workflows();
    let mut dry = Instance::default();
    dry.task("think", 10, &[], &[]);
    site.write("dry.json", &dry.text());
    let mut wide = Instance::default();
    let file = wide.file("x", 1_000_000_000);
    wide.task("wide", 10, &[file], &[]);
    site.write(
        "wide.json",
        &wide.text().replace("\"coreCount\":1", "\"coreCount\":99"),
    );
    site.write("trace.swf", &trace(1, 5));
    for (file, code, part) in [
        ("dry.json", 3, "read and write nothing"),
        ("wide.json", 3, "can never run"),
        ("trace.swf", 3, "one workflow is expected"),
        ("missing.json", 7, "missing.json"),
    ] {
        let ran = site.tarn(&["bench", "policies", file]);
        assert!(ran.err.contains(part), "{file}: {}", ran.err);
        assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{file}");
    }
    let ran = site.tarn(&["bench", "policies", "base-1.json", "--shares", "0"]);
    assert!(ran.err.contains("percent"), "{}", ran.err);
}

#[test]
fn workflows_gain_and_others_are_not_hurt() {
    let site = workflows();
    site.write("trace.swf", &trace(7, 400));
    site.write(
        "cluster.toml",
        "name = \"small\"\n[external]\nread = \"400 MB/s\"\nwrite = \"400 MB/s\"\nsaturates = 2\n[[island]]\nnodes = 16\n\
         cores = 4\nlink = { read = \"5 GB/s\", write = \"5 GB/s\" }\n[[island.tier]]\nname = \"nvme\"\ncapacity = \"1 TB\"\n",
    );
    let command = [
        "bench",
        "mixed",
        "--swf",
        "trace.swf",
        "--workflow",
        "fan-small-1.json",
        "base-1.json",
        "--cluster",
        "cluster.toml",
        "--count",
        "4",
        "--seeds",
        "2",
        "--json",
    ];
    let value = site.tarn(&command).summary();
    let seeds = value["seeds"].as_array().expect("seeds");
    assert_eq!(seeds.len(), 6, "three policies with two seeds");
    for outcome in seeds {
        assert_eq!(outcome["ordinary_jobs"], 400, "{outcome}");
        assert_eq!(outcome["workflows"], 8, "{outcome}");
        assert!(number(&outcome["slow_down"]) >= 1.0, "{outcome}");
    }
    let different = |policy: &str| {
        let of_policy = seeds.iter().filter(|o| o["policy"] == policy);
        let times: Vec<f64> = of_policy.map(|o| number(&o["flow_mean_s"])).collect();
        times[0] != times[1]
    };
    assert!(different("easy") && different("data"), "seeds differ");
    let medians = value["medians"].as_array().expect("medians");
    assert_eq!(medians.len(), 12, "four figures of three policies");
    let ratio = |policy: &str, measure: &str| {
        let found = medians
            .iter()
            .find(|m| m["policy"] == policy && m["measure"] == measure);
        number(&found.expect("measured")["ratio"])
    };
    assert_eq!(ratio("easy", "slow-down"), 1.0);
    assert!(ratio("data", "workflows median") < 1.0, "{value}");
    let again = site.tarn(&command).summary();
    assert_eq!(again["seeds"], value["seeds"]);
}
