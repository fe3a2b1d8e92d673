//! `tarn sim` by the real binary: its output, and its refusals.

#[path = "../../../workflow/report/tests/common/chromium.rs"]
mod chromium;
mod common;

use chromium::{browser, opened};
use common::{Ran, Site};
use serde_json::Value;
use std::path::PathBuf;

/// Two islands, of which one has a tier and can change its memory mode.
const CLUSTER: &str = r#"
name = "two"
[external]
read = "1 GB/s"
write = "500 MB/s"
client-read = "400 MB/s"
client-write = "400 MB/s"
saturates = 2
[[island]]
name = "near"
nodes = 4
cores = 8
memory = "64 GiB"
link = { read = "2 GB/s", write = "2 GB/s" }
power = { idle = "100 W", busy = "300 W", asleep = "10 W", boot = "200 W", wake = "20s" }
[[island.tier]]
name = "pmem"
capacity = "60 GB"
read = "5 GB/s"
write = "2 GB/s"
[[island]]
name = "far"
nodes = 2
cores = 8
memory = "64 GiB"
link = { read = "1 GB/s", write = "1 GB/s" }
"#;

/// A workflow of whole nodes and cores, beside ordinary jobs.
const WORKLOAD: &str = r#"
[data.mesh]
size = "8 GB"
outside = true
spread = "whole"
[data.fields]
size = "12 GB"
[data.half]
size = "3 GB"
[data.other]
size = "2 GB"
[data.picture]
size = "1 GB"
keep = true
[data.log]
size = "4 GB"
keep = true
[[job]]
name = "solve"
workflow = "wing"
nodes = 2
compute = "50s"
in = ["mesh"]
out = ["fields"]
[[job]]
name = "wide"
nodes = 4
compute = "30s"
out = ["log"]
[[job]]
name = "left"
workflow = "wing"
cores = 2
compute = "15s"
in = ["fields", "mesh"]
out = ["half"]
[[job]]
name = "right"
workflow = "wing"
cores = 4
compute = "20s"
in = ["fields"]
out = ["other"]
[[job]]
name = "narrow"
cores = 3
compute = "70s"
[[job]]
name = "draw"
workflow = "wing"
compute = "5s"
in = ["half", "other"]
out = ["picture"]
"#;

const EVERY_POLICY: &str = "fcfs,fcfs+cache,greedy,greedy+cache,easy,easy+cache,easy+keep,conservative,sjf-easy,sjf-easy+cache,heft,heft+cache,\
                            same-nodes,same-nodes+cache,data,energy";

fn site() -> Site {
    let site = Site::new("");
    site.write("cluster.toml", CLUSTER);
    site.write("workload.toml", WORKLOAD);
    site
}

fn sim(site: &Site, more: &[&str]) -> Ran {
    let files = [
        "sim",
        "--cluster",
        "cluster.toml",
        "--workload",
        "workload.toml",
    ];
    site.tarn(&[&files, more].concat())
}

fn runs(ran: &Ran) -> Vec<Value> {
    let value = ran.summary();
    assert_eq!(value["schema"], 1);
    value["runs"].as_array().expect("runs").clone()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn no_policy_beats_the_lower_bound() {
    let site = site();
    for rate in ["40 MB/s", "400 MB/s", "40 GB/s"] {
        let options = [
            "--json",
            "--check",
            "--external-rate",
            rate,
            "--policy",
            EVERY_POLICY,
        ];
        let runs = runs(&sim(&site, &options).exits(0));
        assert_eq!(runs.len(), EVERY_POLICY.split(',').count());
        for run in &runs {
            let wing = &run["workflows"]["wing"];
            for (time, bound) in [
                (&run["makespan_s"], &run["lower_bound_s"]),
                (&wing["time_s"], &wing["lower_bound_s"]),
            ] {
                // A tenth of a microsecond for times that were rounded on the way.
                assert!(number(time) + 1e-7 >= number(bound), "{run}");
                assert!(number(bound) > 80.0, "{bound}");
            }
            assert_eq!(run["ordinary_jobs"]["done"], 2);
            assert_eq!(run["workflow_jobs"]["done"], 4);
            assert_eq!(run["refused"], 0);
        }
    }
}

#[test]
fn json_has_every_agreed_key() {
    let ran = sim(&site(), &["--json", "--policy", "easy,data"]).exits(0);
    for (run, policy) in runs(&ran).iter().zip(["easy", "data"]) {
        assert_eq!(run["policy"], policy);
        for key in [
            "makespan_s",
            "lower_bound_s",
            "mean_wait_s",
            "mean_bounded_slowdown",
            "energy_j",
            "events",
            "wall_s",
        ] {
            assert!(number(&run[key]) >= 0.0, "{key}");
        }
        for key in ["external_in", "external_out", "peer", "retained"] {
            assert!(run["bytes"][key].is_u64(), "{key}");
        }
        // Kept data goes out and outside data comes in, whatever the policy.
        assert!(number(&run["bytes"]["external_out"]) >= 5e9, "{run}");
        assert!(number(&run["bytes"]["external_in"]) >= 8e9, "{run}");
        assert!(number(&run["energy_j"]) > 4.0 * 100.0 * number(&run["makespan_s"]));
    }
    assert_eq!(ran.out.lines().count(), 1);
}

#[test]
fn two_runs_are_alike() {
    let site = site();
    let once = || {
        let ran = sim(
            &site,
            &["--json", "--advice", "--policy", "easy+cache,data,energy"],
        )
        .exits(0);
        let mut value = ran.summary();
        for run in value["runs"].as_array_mut().expect("runs") {
            run.as_object_mut().expect("an object").remove("wall_s");
        }
        value
    };
    let first = once();
    assert_eq!(first, once());
    assert_eq!(first["runs"].as_array().map(Vec::len), Some(3));
}

#[test]
fn the_papers_example_comes_out_as_figure_9() {
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/weiland-table4");
    let path = |name: &str| example.join(name).display().to_string();
    let (cluster, workload) = (path("cluster.toml"), path("workload.toml"));
    let files = ["sim", "--cluster", &cluster, "--workload", &workload];
    let ran =
        Site::new("").tarn(&[&files[..], &["--policy", "data", "--json", "--check"]].concat());
    let run = runs(&ran.exits(0)).remove(0);
    let flows = run["workflows"].as_object().expect("workflows");
    let flow = flows.values().next().expect("one");
    assert_eq!(
        (number(&flow["time_s"]), number(&flow["lower_bound_s"])),
        (280.0, 280.0)
    );
}

/// The same jobs on a Slurm with tarn, whose own decisions shorten the workflow.
#[test]
fn a_slurm_with_tarn_is_simulated_beside_the_policies() {
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/weiland-table4");
    let path = |name: &str| example.join(name).display().to_string();
    let (cluster, workload) = (path("cluster.toml"), path("workload.toml"));
    let mut words = vec!["sim", "--cluster", &cluster, "--workload", &workload];
    words.extend(["--policy", "easy", "--site", "alone,advise,drive"]);
    let site = Site::new("");
    let json = site.tarn(&[&words[..], &["--check", "--json"]].concat());
    let runs = runs(&json.exits(0));
    let names: Vec<&str> = runs.iter().filter_map(|r| r["policy"].as_str()).collect();
    assert_eq!(names, ["easy", "slurm", "slurm+advise", "slurm+drive"]);
    let time = |run: &Value| {
        let flows = run["workflows"].as_object().expect("workflows");
        number(&flows.values().next().expect("one")["time_s"])
    };
    let (alone, advise) = (time(&runs[1]), time(&runs[2]));
    assert!(advise < 0.9 * alone, "{advise} s and {alone} s");
    let table = site.tarn(&words).exits(0);
    table.prints("slurm+drive");
    let wrong = site.tarn(&[&words[..5], &["--site", "fast"]].concat());
    wrong
        .exits(2)
        .prints("it is alone, observe, advise or drive");
}

#[test]
fn the_table_compares_and_the_advice_says_what_a_tier_is_worth() {
    let site = site();
    let ran = sim(&site, &["--advice"]).exits(0);
    let head = ran.out.lines().next().expect("a head");
    let columns: Vec<&str> = head.split_whitespace().collect();
    assert_eq!(
        columns,
        ["easy", "easy+cache", "data"],
        "the default policies"
    );
    let ran = ran
        .prints("workflow wing")
        .prints("lower bound")
        .prints("read locally");
    // 4 x 60 GB at 1 GB/s.
    ran.prints("used again within 4m 00s (all tiers over the external bandwidth)")
        .prints("fields");
    let priced = ["--advice", "--tier-price", "3", "--external-price", "900"];
    sim(&site, &priced)
        .exits(0)
        .prints("used again within 5m 00s (these prices)");
    // 4 J a gigabyte from outside, 20 mW to keep it.
    let energy = ["--advice", "--tier-watts", "0.02", "--external-joules", "4"];
    sim(&site, &energy)
        .exits(0)
        .prints("saves energy to keep      what is used again within 3m 20s")
        .prints("used again within 4m 00s (all tiers over the external bandwidth)");
}

#[test]
fn the_page_holds_the_figures_and_opens() {
    let site = site();
    let ran = sim(
        &site,
        &["--json", "--policy", "easy,data", "--report", "sim.html"],
    )
    .exits(0);
    let page = site.read("sim.html");
    let (_, rest) = page.split_once("id=\"tarn-summary\">").expect("a summary");
    let (summary, _) = rest.split_once("</script>").expect("it ends");
    let summary: Value = serde_json::from_str(summary).expect("JSON");
    assert_eq!(summary.as_array(), Some(&runs(&ran)));
    let Some(browser) = browser() else { return };
    let dom = opened(browser, &site.path("sim.html"));
    // Six jobs under two policies; those of several nodes may use nodes that are not neighbours.
    assert!(dom.matches("class=\"job\"").count() >= 12);
    assert!(dom.contains("id=\"chart-1\""));
}

#[test]
fn options_change_what_is_simulated() {
    let site = site();
    let first = |more: &[&str]| {
        let ran = sim(&site, &[&["--json", "--policy", "easy"], more].concat()).exits(0);
        runs(&ran).remove(0)
    };
    let slow = first(&["--external-rate", "50 MB/s"]);
    assert!(number(&slow["makespan_s"]) > 2.0 * number(&first(&[])["makespan_s"]));
    site.write("trace.swf", &trace(40));
    let traced = |more: &[&str]| {
        let files = [
            "sim",
            "--cluster",
            "cluster.toml",
            "--workload",
            "trace.swf",
            "--json",
            "--policy",
            "easy",
        ];
        runs(&site.tarn(&[&files, more].concat()).exits(0)).remove(0)
    };
    assert_eq!(traced(&["--max-jobs", "7"])["ordinary_jobs"]["done"], 7);
    let seeded = |seed: &str| traced(&["--io-share", "0.3", "--seed", seed])["bytes"].clone();
    assert_eq!(seeded("1"), seeded("1"));
    assert_ne!(seeded("1"), seeded("2"));
    assert_eq!(traced(&[])["bytes"]["external_in"], 0);
}

/// Jobs of one to three processors, one a minute.
fn trace(jobs: u32) -> String {
    let line = |n: u32| {
        let (submit, run, processors) = (n * 60, 100 + n % 7 * 50, 1 + n % 3);
        format!(
            "{n} {submit} -1 {run} {processors} -1 -1 {processors} 1000 -1 1 1 1 -1 1 -1 -1 -1\n"
        )
    };
    (1..=jobs).map(line).collect()
}

#[test]
fn what_cannot_run_and_what_is_odd_is_named() {
    let site = site();
    let needs = "\n[[job]]\nname = \"giant\"\ncompute = \"1s\"\nmemory = \"1 TiB\"\n";
    site.write("workload.toml", &(WORKLOAD.to_owned() + needs));
    let ran = sim(&site, &["--policy", "easy"])
        .exits(0)
        .prints("giant")
        .prints("memory");
    assert!(
        ran.err.contains("note: easy: giant was taken out: "),
        "{}",
        ran.err
    );
    assert!(ran.out.contains("jobs taken out"));
    // A workflow of which a step can never run is more than a note.
    let flow = "\n[[workflow]]\nfile = \"flow.toml\"\n";
    site.write("workload.toml", &(WORKLOAD.to_owned() + flow));
    let steps = "name = \"f\"\n[data.d]\nsize = \"1 GB\"\n[data.o]\ndest = \"/o\"\nsize = \"1 GB\"\n[[step]]\nname = \"small\"\n\
                 time = \"1m\"\nrun = \"x\"\nout = [\"d\"]\n[[step]]\nname = \"huge\"\ntime = \"1m\"\nmemory = \"1 TiB\"\nrun = \"x\"\nin = [\"d\"]\nout = [\"o\"]\n";
    site.write("flow.toml", steps);
    sim(&site, &["--policy", "easy"])
        .exits(4)
        .prints("workflow flow can never run to its end")
        .prints("huge")
        .prints("memory");
    site.write("workload.toml", needs);
    sim(&site, &["--policy", "easy"])
        .exits(4)
        .prints("none of the jobs");
    let odd = "9 30 -1 -5 1 -1 -1 1 100 -1 1 1 1 -1 1 -1 -1 -1\n";
    site.write("trace.swf", &(trace(3) + odd));
    let files = [
        "sim",
        "--cluster",
        "cluster.toml",
        "--workload",
        "trace.swf",
        "--json",
    ];
    let ran = site.tarn(&files).exits(0);
    assert!(
        ran.err.contains("trace.swf: 1 record(s) left out: "),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("line 4"), "{}", ran.err);
    let run = &runs(&ran)[0];
    assert_eq!(
        (
            &run["skipped"][0]["count"],
            &run["skipped"][0]["first_line"]
        ),
        (&1.into(), &4.into())
    );
}

#[test]
fn mistakes_say_where_and_why() {
    let site = site();
    let refused = |code: i32, arguments: &[&str], expected: &str| {
        let ran = site.tarn(&[&["sim"], arguments].concat()).exits(code);
        assert!(ran.out.is_empty(), "{}", ran.out);
        ran.prints(expected);
    };
    let good = ["--cluster", "cluster.toml", "--workload", "workload.toml"];
    let with = |more: &[&'static str]| [&good[..], more].concat();
    refused(2, &["--cluster", "cluster.toml"], "--workload");
    refused(2, &with(&["--policy", "fifo"]), "`fifo`");
    refused(2, &with(&["--policy", "easy,easy"]), "twice");
    refused(2, &with(&["--external-rate", "5"]), "needs a unit");
    refused(2, &with(&["--external-rate", "0B/s"]), "above zero");
    refused(2, &with(&["--max-jobs", "0"]), "--max-jobs");
    refused(
        2,
        &with(&["--policy", "stage-through,heft"]),
        "are the same policy",
    );
    refused(
        7,
        &["--cluster", "/dev/zero", "--workload", "work.toml"],
        "/dev/zero: it has more than",
    );
    refused(2, &with(&["--bytes-scale", "0"]), "1e-6");
    refused(2, &with(&["--io-share", "2"]), "a share is expected");
    refused(
        2,
        &with(&["--submit", "email"]),
        "dependencies, chain and script",
    );
    refused(
        2,
        &with(&["--advice", "--tier-price", "3"]),
        "--external-price",
    );
    refused(
        2,
        &with(&["--advice", "--tier-watts", "3"]),
        "--external-joules",
    );
    refused(
        7,
        &["--cluster", "none.toml", "--workload", "workload.toml"],
        "none.toml",
    );
    refused(
        7,
        &["--cluster", "cluster.toml", "--workload", "none.swf"],
        "none.swf",
    );
    refused(
        5,
        &with(&["--report", "no/such/folder.html"]),
        "no/such/folder.html",
    );
    site.write(
        "bad.toml",
        &CLUSTER.replace("nodes = 2", "nodes = 2\nnodez = 3"),
    );
    refused(
        3,
        &["--cluster", "bad.toml", "--workload", "workload.toml"],
        "nodez",
    );
    site.write(
        "bad.toml",
        &WORKLOAD.replace("compute = \"70s\"", "compute = \"70\""),
    );
    refused(
        3,
        &["--cluster", "cluster.toml", "--workload", "bad.toml"],
        "bad.toml:",
    );
    site.write("bad.toml", "\u{0}");
    refused(
        3,
        &["--cluster", "bad.toml", "--workload", "workload.toml"],
        "bad.toml",
    );
}
