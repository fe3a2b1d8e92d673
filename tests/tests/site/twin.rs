//! The site's digital twin: its history is exported and replayed.

use crate::setup::Site;
use serde_json::Value;
use std::fs;
use std::time::Duration;

/// Where Slurm writes the jobs that have ended, and how often it looks at the queue: backfill as often as the rest, so
/// that few jobs wait for its clock.
const CONF: &str = "JobCompType=jobcomp/filetxt\nJobCompLoc=/var/log/slurm/jobcomp\n\
    SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=2\n";
/// Seconds before each job, how it is submitted, and seconds that it runs.
const JOBS: [(u64, &str, u64); 26] = [
    (0, "-N2 --exclusive", 14),
    (0, "-N1 --exclusive", 25),
    (1, "-n4", 18),
    (0, "-N3 --exclusive", 9),
    (1, "-N1 --exclusive", 11),
    (2, "-n2", 30),
    (0, "-n6", 12),
    (3, "-N4 --exclusive", 6),
    (0, "-N1 --exclusive", 21),
    (1, "-N2 --exclusive", 16),
    (4, "-n8", 13),
    (0, "-N1 --exclusive", 7),
    (5, "-N2 --exclusive", 19),
    (2, "-n3", 10),
    (1, "-N3 --exclusive", 12),
    (6, "-N1 --exclusive", 15),
    (3, "-n5", 22),
    (0, "-N2 --exclusive", 8),
    (4, "-N1 --exclusive", 17),
    (2, "-N1 --exclusive", 9),
    (5, "-N4 --exclusive", 5),
    (1, "-n2", 14),
    (3, "-N2 --exclusive", 11),
    (0, "-N1 --exclusive", 20),
    (4, "-n4", 8),
    (2, "-N1 --exclusive", 13),
];
/// A name that no exported file may have.
const SECRET: &str = "turbine-of-project-x";

/// A step of a workflow of three: it reads what the one before it made.
fn step(flow: usize, number: usize) -> String {
    let (reads, writes) = (format!("d{number}"), format!("d{}", number + 1));
    let source = if number == 0 {
        "#TARN data.d0.source = \"secret-input\"\n"
    } else {
        ""
    };
    format!(
        "#SBATCH -N1 --exclusive -t2 -J {SECRET}\n#TARN name = \"{SECRET}-{flow}\"\n{source}\
         #TARN data.{writes}.size = \"40 MiB\"\n#TARN [[step]]\n#TARN in = [\"{reads}\"]\n#TARN out = [\"{writes}\"]\n\
         head -c 30M /dev/urandom > $TARN_{writes}/{SECRET}; sleep {}\n",
        5 + 3 * number
    )
}

fn number(of: &Value, path: &str) -> f64 {
    let found = of.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no {path} in {of}"))
}

#[test]
fn a_replay_of_the_site_is_like_what_happened() {
    let Some(site) = Site::up_with(4, CONF) else {
        return;
    };
    let input = "mkdir ~/secret-input; head -c 60M /dev/urandom > ~/secret-input/mesh; chmod 700 ~";
    site.alice(&["sh", "-c", input]);
    for (at, (before, options, runs)) in JOBS.iter().enumerate() {
        std::thread::sleep(Duration::from_secs(*before));
        // A name may look like any field, and have any bytes.
        let name = format!("{SECRET}\nJobId=1 StartTime=x");
        let user = if at % 3 == 0 { "bob" } else { "alice" };
        // Users ask for unlike times, all longer than their jobs take.
        let limit = 1 + at % 4;
        let command = format!(
            "sbatch -t{limit} --mem=100 -o /dev/null {options} -J \"$0\" --wrap 'sleep {runs}'"
        );
        let done = site.cluster.exec(user, &["sh", "-c", &command, &name]);
        done.unwrap_or_else(|e| panic!("{e:#}"));
        if let Some(flow) = [3, 12].iter().position(|turn| *turn == at) {
            for number in 0..3 {
                let script = step(flow, number);
                let file = format!("{flow}-{number}.sh");
                let done = site.submit("alice", &file, &script, &["-o", "/dev/null"]);
                done.unwrap_or_else(|e| panic!("{e:#}"));
            }
        }
    }
    site.wait("all jobs have ended", || {
        site.root(&["squeue", "-h"]).trim().is_empty()
    });
    let exported = site.root(&["tarn", "slurm", "export", "/shared/twin", "--json"]);
    eprintln!("{exported}");
    let shared = site.cluster.shared().join("twin");
    for file in ["cluster.toml", "history"] {
        let text = fs::read_to_string(shared.join(file)).expect(file);
        for name in [
            "turbine", "secret", "alice", "bob", "node1", "main", "shared", "mesh",
        ] {
            assert!(!text.contains(name), "`{name}` is in {file}");
        }
    }
    let words = [
        "tarn",
        "sim",
        "--cluster",
        "/shared/twin/cluster.toml",
        "--workload",
        "/shared/twin/history",
        "--policy",
        "conservative+keep,easy+keep,data",
    ];
    eprintln!("{}", site.root(&words));
    let simulated = site.root(&[&words[..], &["--json"]].concat());
    let simulated: Value = serde_json::from_str(&simulated).expect("JSON");
    let (was, again) = (&simulated["runs"][0], &simulated["runs"][1]);
    assert_eq!(was["policy"], "recorded");
    // The aim is 5 % and 10 %; jobs of some seconds leave more to chance than those of hours.
    for (path, most) in [("/makespan_s", 0.25), ("/mean_wait_s", 0.5)] {
        let (was, again) = (number(was, path), number(again, path));
        eprintln!(
            "{path}: {was} happened, {again} replayed: {:+.1} %",
            (again / was - 1.0) * 100.0
        );
        assert!((again / was - 1.0).abs() <= most, "{path}: {was} {again}");
    }
    let advice = site.root(&["tarn", "slurm", "advise"]);
    eprintln!("{advice}");
    assert_eq!(advice.lines().count(), 3, "{advice}");
    assert!(
        advice.contains("Replayed as it was, the 32 jobs"),
        "{advice}"
    );
    // Others see their own: bob has every third of the ordinary jobs, and no data.
    let folder = "/shared/home/bob/twin";
    let own = ["tarn", "slurm", "export", folder, "--json"];
    let own = site.cluster.exec("bob", &own);
    let own = own.unwrap_or_else(|e| panic!("{e:#}"));
    let own: Value = serde_json::from_str(&own).expect("JSON");
    let counts = (number(&own, "/jobs"), number(&own, "/jobs_with_data"));
    assert_eq!(counts, (9.0, 0.0));
    assert_eq!(number(was, "/ordinary_jobs/done"), JOBS.len() as f64);
    assert_eq!(number(was, "/workflow_jobs/done"), 6.0);
}
