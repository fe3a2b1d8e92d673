//! `tarn submit`, with a Slurm and a controller that are played.

use crate::common::{Ran, Site};
use crate::controller::{Controller, install_slurm, with_slurm};
use crate::programs::{CallHit, sweep_programs};
use crate::verbs::of;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

const FLOW: &str = r#"
name = "w"
[data.a]
[data.b]
[data.c]
dest = "out"
[[step]]
name = "one"
run = "echo 1 > $TARN_a/a"
out = ["a"]
[[step]]
name = "two"
run = "echo 2 > $TARN_b/a"
in = ["a"]
out = ["b"]
[[step]]
name = "three"
run = "echo 3 > $TARN_c/a"
in = ["b"]
out = ["c"]
"#;

struct Cluster {
    /// Ends before the folder.
    _controller: Controller,
    site: Site,
}

impl Cluster {
    fn new() -> Self {
        let site = Site::new(FLOW);
        for name in ["one", "two", "three"] {
            let script = format!(
                "#!/bin/bash\n#TARN name = \"w\"\n#TARN [data.{name}]\n#TARN [[step]]\n#TARN out = [\"{name}\"]\ntrue\n"
            );
            site.write(&format!("{name}.sh"), &script);
        }
        install_slurm(&site);
        Self {
            _controller: Controller::start(&site),
            site,
        }
    }

    /// One that refuses the third job.
    fn refusing() -> Self {
        let cluster = Self::new();
        cluster.site.write("slurm/refuse", "2\n");
        cluster
    }

    fn submit(&self, files: &[&str]) -> Command {
        let (_, mut command) = of(&self.site, &[&["submit"], files].concat());
        with_slurm(&self.site, &mut command);
        command
    }

    /// The jobs that are not cancelled: held, or released.
    fn jobs(&self) -> BTreeMap<u32, String> {
        let entries = fs::read_dir(self.site.path("slurm/jobs")).unwrap();
        let jobs = entries.map(|entry| {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let number = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            (number, text.lines().next().unwrap().to_owned())
        });
        jobs.filter(|(_, state)| state != "cancelled").collect()
    }
}

fn names(text: &str, job: u32) -> bool {
    let mut words = text.split(|c: char| !c.is_ascii_digit());
    words.any(|word| word == job.to_string())
}

/// All jobs are there and released, or none; those that stay are named, if not by this command then by the next one.
fn is_whole(cluster: &Cluster, files: &[&str], hit: &CallHit) {
    let left = cluster.jobs();
    let is_released = left.len() == 3 && left.values().all(|state| state == "released");
    assert!(!hit.done() || is_released, "{}: {left:?}", hit.what);
    let is_held = left.values().all(|state| state == "held");
    assert!(is_released || is_held, "{}: {left:?}", hit.what);
    if !hit.is_killed() && !hit.done() {
        for job in left.keys() {
            let err = &hit.ran.err;
            assert!(names(err, *job), "{}: job {job} stays: {err}", hit.what);
        }
    }
    let _ = fs::remove_file(cluster.site.path("slurm/refuse"));
    let again = Ran::of(cluster.submit(files).output().unwrap());
    assert_eq!(again.code, Some(0), "{}; submit: {}", hit.what, again.err);
    for (job, state) in cluster.jobs() {
        match left.contains_key(&job) {
            true => {
                let is_named = names(&again.err, job);
                let what = &hit.what;
                assert!(is_named, "{what}: job {job}, {state}: {}", again.err);
            }
            false => assert_eq!(state, "released", "{}", hit.what),
        }
    }
    assert_eq!(cluster.jobs().len(), left.len() + 3, "{}", hit.what);
}

pub(crate) fn submit() {
    for files in [&["workflow.toml"][..], &["one.sh", "two.sh", "three.sh"]] {
        let command = |cluster: &Cluster| cluster.submit(files);
        sweep_programs(
            "submit",
            Cluster::new,
            command,
            |c| &c.site,
            |cluster, hit| {
                is_whole(cluster, files, hit);
            },
        );
        let name = "submit (the third job is refused)";
        sweep_programs(
            name,
            Cluster::refusing,
            command,
            |c| &c.site,
            |cluster, hit| {
                assert!(!hit.done(), "{}", hit.what);
                is_whole(cluster, files, hit);
            },
        );
    }
    goes_on_under_nohup();
}

/// SIGHUP at the second sbatch ends it, but under nohup.
fn goes_on_under_nohup() {
    for (trap, code, jobs) in [("trap '' HUP", 0, 3), ("true", 143, 0)] {
        let cluster = Cluster::new();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{trap}; exec \"$0\" submit workflow.toml")])
            .arg(crate::common::tarn())
            .current_dir(cluster.site.dir.path());
        with_slurm(&cluster.site, &mut command);
        command.env("HIT_CALL", "3").env("HIT_HOW", "hup");
        Ran::of(command.output().unwrap()).exits(code);
        assert_eq!(cluster.jobs().len(), jobs, "{trap}");
    }
}
