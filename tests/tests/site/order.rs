//! The order of jobs is that of Slurm's numbers, and nothing waits for a timer.

use crate::setup::Site;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

/// The versions of a dataset that will be there, and the jobs that make them, by `tarn data ls`.
fn versions(site: &Site) -> Vec<(u64, u64)> {
    let list = site.alice(&["tarn", "--json", "data", "ls", "--site"]);
    let lines = list
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let lines = lines.filter(|line: &Value| line["failed"].is_null());
    let mut versions: Vec<(u64, u64)> = lines
        .filter_map(|line| Some((line["version"].as_u64()?, line["awaits"].as_u64()?)))
        .collect();
    versions.sort_unstable();
    versions
}

#[test]
fn versions_of_jobs_from_three_shells_are_as_by_number() {
    let Some(site) = Site::up(1) else { return };
    let script = "#!/bin/bash\n#TARN name = \"w\"\n#TARN data.x = {}\n#TARN [[step]]\n#TARN out = [\"x\"]\ntrue\n";
    fs::write(site.home("alice").join("makes.sh"), script).expect("a script");
    // Slurm asks about none of them while they are held.
    let shell = "for i in $(seq 100); do sbatch -Q -H -o /dev/null makes.sh || exit; done";
    let shells = format!("({shell}) & ({shell}) & ({shell}) & wait");
    site.alice(&["sh", "-c", &shells]);
    let began = Instant::now();
    site.wait("all are known", || versions(&site).len() == 300);
    eprintln!("300 jobs are known {:?} after the last", began.elapsed());
    let versions_made = versions(&site);
    let numbers: Vec<u64> = versions_made.iter().map(|(version, _)| *version).collect();
    assert_eq!(numbers, (1..=300).collect::<Vec<u64>>());
    let jobs: Vec<u64> = versions_made.iter().map(|(_, job)| *job).collect();
    assert!(jobs.is_sorted(), "{versions_made:?}");

    // One that cannot be taken in is named when its user asks Slurm for it; none of them was ever staged.
    let reads = script
        .replace("name = \"w\"", "name = \"v\"")
        .replace("out = ", "in = ");
    let reads = site.submit(
        "alice",
        "reads.sh",
        reads.trim_start_matches("#!/bin/bash\n"),
        &["-H"],
    );
    let reads = reads.expect("it is held");
    site.alice(&["scontrol", "release", &reads]);
    site.wait("its user learns why", || {
        site.root(&["scontrol", "show", "job", &reads])
            .contains("nobody makes dataset")
    });
    site.alice(&["scancel", "-u", "alice"]);
    site.wait("nothing is promised any more", || {
        versions(&site).is_empty()
    });
}

/// A step that runs for long keeps nobody who submits waiting, nor the workflow open.
#[test]
fn a_workflow_whose_steps_wait_for_each_other_is_known_when_it_is_submitted() {
    let Some(site) = Site::up(2) else { return };
    let workflow = "name = \"long\"\n[data.x]\n[[step]]\nname = \"first\"\nrun = \"echo a > $TARN_x/a; until [ -e ~/go ]; do sleep 0.2; done\"\nout = [\"x\"]\n\
        [[step]]\nname = \"second\"\nrun = \"cp $TARN_x/a ~/seen\"\nin = [\"x\"]\nafter = [\"first\"]\n\
        [[step]]\nname = \"third\"\nrun = \"true\"\nafter = [\"second\"]\n";
    fs::write(site.home("alice").join("long.toml"), workflow).expect("a workflow");
    let began = Instant::now();
    let output = site.alice(&["sh", "-c", "tarn submit long.toml 2> noted"]);
    let took = began.elapsed();
    let noted = fs::read_to_string(site.home("alice").join("noted")).expect("its notes");
    assert_eq!(noted, "", "{output}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    let jobs: Vec<&str> = output
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(jobs.len(), 3, "{output}");
    site.wait_for(jobs[0], "RUNNING");
    for job in &jobs[1..] {
        assert_eq!(site.state(job), "PENDING");
        assert!(
            site.why("alice", job).contains("taken in"),
            "{}",
            site.logs()
        );
    }
    fs::write(site.home("alice").join("go"), "").expect("go");
    for job in jobs {
        site.wait_for(job, "COMPLETED");
    }
    let seen = fs::read_to_string(site.home("alice").join("seen"));
    assert_eq!(seen.expect("what it read"), "a\n");
    // Its end is known: nothing stays.
    site.wait("nothing is left", || {
        site.alice(&["tarn", "data", "ls", "--site"]).is_empty()
    });
}

/// The clause: five workflows that are submitted at once take as long as the longest one plus their bytes.
#[test]
fn five_workflows_at_once_do_not_wait_for_each_other() {
    let Some(site) = Site::up(5) else { return };
    let home = site.home("alice");
    let workflow = |name: &str| {
        format!(
            "name = \"{name}\"\n[data.x]\n[[step]]\nname = \"makes\"\nrun = \"echo a > $TARN_x/a; sleep 5\"\nout = [\"x\"]\n\
             [[step]]\nname = \"reads\"\nrun = \"sleep 5; cat $TARN_x/a\"\nin = [\"x\"]\n"
        )
    };
    let time = |names: &[&str]| {
        for name in names {
            fs::write(home.join(format!("{name}.toml")), workflow(name)).expect("a workflow");
        }
        let each = names
            .iter()
            .map(|name| format!("tarn submit {name}.toml &"));
        let all: String = each.collect();
        let began = Instant::now();
        let output = site.alice(&["sh", "-c", &format!("({all} wait)")]);
        let jobs: Vec<&str> = output
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(jobs.len(), 2 * names.len(), "{output}");
        for job in jobs {
            site.wait_for(job, "COMPLETED");
        }
        began.elapsed().as_secs_f64()
    };
    let one = time(&["warm"]).min(time(&["one"]));
    let five = time(&["a", "b", "c", "d", "e"]);
    eprintln!("one workflow: {one:.1} s, five: {five:.1} s");
    // One after another they would take five times as long; on a busy machine their programs share its cores.
    assert!(five < 2.0 * one, "one takes {one} s, five {five} s");
}
