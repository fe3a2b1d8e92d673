//! The sums of workflows, metrics and the audit, from the accounting of a real Slurm (jobcomp/filetxt).

use crate::setup::Site;
use std::fs;

const CONF: &str = "JobCompType=jobcomp/filetxt\nJobCompLoc=/var/log/slurm/jobcomp.log\n";
/// Served to root and bob.
const METRICS: &str = "metrics = \"127.0.0.1:9411\"\nmetrics-users = [\"bob\"]\n";
const SCRAPE: &str = "import socket
s = socket.create_connection(('127.0.0.1', 9411), 10)
s.sendall(b'GET /metrics HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
reply = b''
while True:
    part = s.recv(65536)
    if not part: break
    reply += part
print(reply.decode())
";

fn script(workflow: &str, reads: &str, writes: &str, body: &str) -> String {
    let line = |key: &str, data: &str| match data {
        "" => String::new(),
        data => format!("#TARN {key} = [\"{data}\"]\n"),
    };
    let data = match writes {
        "" => reads,
        writes => writes,
    };
    format!(
        "#!/bin/bash\n#SBATCH -N1 -t 5 --exclusive\n#TARN name = \"{workflow}\"\n#TARN data.{data}.size = \"1 MiB\"\n#TARN [[step]]\n{}{}{body}\n",
        line("in", reads),
        line("out", writes)
    )
}

/// The sums of a workflow, as its user sees them.
fn sums(site: &Site, user: &str, workflow: &str) -> Option<serde_json::Value> {
    let words = ["tarn", "usage", "--workflows", "--json"];
    let output = site.cluster.exec(user, &words).expect("tarn usage");
    let mut runs = output
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    runs.find(|run| run["workflow"] == workflow)
}

fn submit_all(site: &Site, scripts: &[(&str, String)]) -> Vec<String> {
    let names: Vec<&str> = scripts.iter().map(|(name, _)| *name).collect();
    for (name, text) in scripts {
        fs::write(site.home("alice").join(name), text).expect("a script");
    }
    let command = format!("cd && tarn submit {}", names.join(" "));
    let output = site.alice(&["sh", "-c", &command]);
    let jobs = output.lines().filter_map(|line| line.split(' ').next());
    jobs.map(str::to_owned).collect()
}

fn seconds(run: &serde_json::Value, key: &str) -> f64 {
    run[key].as_f64().unwrap_or_else(|| panic!("{key}: {run}"))
}

#[test]
fn workflows_have_sums_and_metrics_and_ordinary_jobs_an_audit() {
    let Some(site) = Site::up_with(2, CONF) else {
        return;
    };
    site.kill_controller();
    fs::write(site.cluster.shared().join("site.toml"), METRICS).expect("site.toml");
    site.start_controller_with("--config /shared/site.toml");

    // One workflow to its end, and one of which the second job is cancelled while it runs.
    let whole = [
        (
            "a.sh",
            script("whole", "", "mesh", "sleep 4; echo m > $TARN_mesh/m"),
        ),
        (
            "b.sh",
            script("whole", "mesh", "", "sleep 6; cat $TARN_mesh/m"),
        ),
    ];
    let whole = submit_all(&site, &whole);
    let half = [
        (
            "c.sh",
            script("half", "", "first", "echo m > $TARN_first/m"),
        ),
        ("d.sh", script("half", "first", "second", "sleep 600")),
        ("e.sh", script("half", "second", "", "cat $TARN_second/m")),
    ];
    let half = submit_all(&site, &half);
    site.wait_for(&half[1], "RUNNING");
    site.wait_for(&whole[1], "COMPLETED");
    site.alice(&["scancel", &half[1], &half[2]]);
    site.wait("both are summed up", || {
        let is_over = |run: serde_json::Value| run["is_over"] == true;
        let of = |workflow| sums(&site, "alice", workflow).is_some_and(is_over);
        of("whole") && of("half")
    });

    let run = sums(&site, "alice", "whole").expect("its sums");
    assert_eq!(
        (&run["jobs"], &run["not_done"]),
        (&2.into(), &0.into()),
        "{run}"
    );
    let (time, queue, ran) = (
        seconds(&run, "time_s"),
        seconds(&run, "queue_s"),
        seconds(&run, "run_s"),
    );
    // As Slurm has them: whole seconds.
    let slurm: u64 = whole
        .iter()
        .map(|job| {
            let words = [
                "squeue",
                "-h",
                "-t",
                "all",
                "-j",
                job,
                "-O",
                "StartTime:20,EndTime:20",
            ];
            let text = site.root(&[&["env", "SLURM_TIME_FORMAT=%s"][..], &words[..]].concat());
            let times: Vec<u64> = text
                .split_whitespace()
                .map(|t| t.parse().expect(t))
                .collect();
            times[1] - times[0]
        })
        .sum();
    assert_eq!(ran, slurm as f64, "{run}");
    assert!(ran >= 10.0 && queue >= 0.0 && time >= ran, "{run}");
    assert_eq!(seconds(&run, "node_s"), ran, "one whole node: {run}");
    let part = sums(&site, "alice", "half").expect("its sums");
    assert_eq!(
        (&part["jobs"], &part["not_done"]),
        (&1.into(), &2.into()),
        "{part}"
    );
    assert!(seconds(&part, "node_s") > seconds(&part, "run_s"), "{part}");
    assert_eq!(
        sums(&site, "bob", "whole"),
        None,
        "others' workflows are theirs"
    );
    assert!(sums(&site, "root", "whole").is_some());
    metrics_are_for_root_and_named_users(&site);
    a_delay_is_found(&site);
}

fn metrics_are_for_root_and_named_users(site: &Site) {
    let scrape = |user: &str| {
        let done = site.cluster.exec(user, &["python3", "-c", SCRAPE]);
        done.unwrap_or_default()
    };
    site.wait("metrics have both workflows", || {
        let page = scrape("bob");
        let has = |line: &str| page.lines().any(|l| l == line);
        has("tarn_workflows_total{outcome=\"complete\"} 1")
            && has("tarn_workflows_total{outcome=\"incomplete\"} 1")
            && has("tarn_workflow_jobs_total{outcome=\"not_done\"} 2")
    });
    assert!(scrape("root").contains("tarn_nodes{state=\"up\"} 2\n"));
    assert!(!scrape("alice").contains("tarn_"), "alice is not named");
}

/// An ordinary job waits for both nodes. A job with data lines comes later, and root has it go first.
fn a_delay_is_found(site: &Site) {
    let clean = site.root(&["tarn", "slurm", "audit", "--json"]);
    let clean: serde_json::Value = serde_json::from_str(&clean).expect("JSON");
    assert_eq!(
        (&clean["delayed"], &clean["data_jobs"]),
        (&0.into(), &5.into()),
        "{clean}"
    );
    assert!(
        site.cluster
            .exec("alice", &["tarn", "slurm", "audit"])
            .is_err()
    );

    let held = site.hold("node[1-2]");
    let ordinary = "sbatch --parsable -N2 --exclusive -t 1 -o /dev/null --wrap true";
    let ordinary = site.alice(&["sh", "-c", ordinary]);
    // An accounting has whole seconds, and a job of the same second counts as earlier.
    site.alice(&["sleep", "2"]);
    let taker = script("taker", "", "mesh", "sleep 20");
    let taker = site.submit("alice", "taker.sh", &taker, &["-o", "/dev/null"]);
    let taker = taker.expect("sbatch");
    // Slurm stages the data of a job that it expects to begin. Its own priorities count down from 4294901759.
    let job = format!("jobid={taker}");
    site.root(&["scontrol", "update", &job, "priority=4294960000"]);
    site.wait_taken_in(&taker);
    site.alice(&["scancel", &held]);
    site.wait_for(&ordinary, "COMPLETED");
    site.wait("the ordinary job is in the file", || {
        let file = site.root(&["cat", "/var/log/slurm/jobcomp.log"]);
        file.lines()
            .any(|line| line.starts_with(&format!("JobId={ordinary} ")))
    });
    let audit = |bound: &str| {
        let words = ["tarn", "slurm", "audit", "--json", "--bound", bound];
        let output = site.cluster.command("root", &words).output().expect("tarn");
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        (output.status.code(), report)
    };
    let (code, report) = audit("1s");
    let file = site.root(&["cat", "/var/log/slurm/jobcomp.log"]);
    assert_eq!(
        (code, &report["delayed"]),
        (Some(1), &1.into()),
        "{report}\n{file}"
    );
    let delay = &report["delays"][0];
    assert_eq!(delay["job"].to_string(), ordinary, "{report}");
    assert_eq!(delay["by"].to_string(), taker, "{report}");
    let (code, report) = audit("10m");
    assert_eq!((code, &report["delayed"]), (Some(0), &0.into()), "{report}");
}
