//! Mode `drive` on a real Slurm: jobs wait for the nodes with their data by begin times that lapse.
//! docs/internals/driving-slurm.md, "Begin times".

use crate::drive::{Driven, FIRST, SECOND};
use crate::plan::restart;
use std::time::{Duration, Instant};

/// In how many seconds a job may begin, as Slurm shows it; 0 for now, or if another job keeps it.
fn begins_in(driven: &Driven, job: &str) -> i64 {
    let eligible = driven.field(job, "EligibleTime");
    if eligible.is_empty() || eligible == "Unknown" {
        return 0;
    }
    let command = format!("echo $(( $(date -d {eligible} +%s) - $(date +%s) ))");
    let seconds = driven.site.root(&["sh", "-c", &command]);
    seconds.trim().parse::<i64>().unwrap_or(0).max(0)
}

impl Driven {
    fn wait_delayed(&self, job: &str) {
        self.site
            .wait("it has a begin time", || begins_in(self, job) > 0);
    }

    fn wait_undelayed(&self, job: &str, within: u64) {
        let began = Instant::now();
        self.site.wait("it has none", || begins_in(self, job) == 0);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(within), "{took:?}");
    }
}

/// The other nodes are idle: without a begin time Slurm would start the second step there in the moment in which the first ends, as the
/// nodes that are kept for it are in a reservation that it is not in yet.
#[test]
fn the_next_step_waits_for_its_nodes_although_others_are_idle() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    let second = driven.submit("alice", SECOND);
    driven.wait_delayed(&second);
    site.alice(&["scancel", &driven.busy]);
    site.wait("the other node is idle", || {
        site.root(&["sinfo", "-hN", "-n", "node2", "-o", "%T"])
            .trim()
            == "idle"
    });
    // It is renewed, and never more than a minute ahead.
    for _ in 0..15 {
        let seconds = begins_in(&driven, &second);
        assert!((20..=61).contains(&seconds), "{seconds}\n{}", driven.log());
        std::thread::sleep(Duration::from_secs(2));
    }
    driven.end_first_step();
    site.wait_for(&second, "COMPLETED");
    let log = driven.log();
    let delay = format!("jobid={second} starttime=now+60 for workflow wing");
    assert!(
        log.contains(&delay) && log.contains("continues on nodes"),
        "{log}"
    );
    // Nothing is left of it.
    assert_eq!(begins_in(&driven, &second), 0);
    driven.wait_unreserved("no reservation is left");
}

#[test]
fn a_begin_time_ends_with_the_mode_and_with_its_controller_and_users_have_their_own() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    // Users' begin times and nice values are theirs.
    let later = ["--begin=now+1hour", "--nice=77"];
    let script = FIRST.replace("wing", "own");
    let own = site
        .submit("alice", "own.sh", &script, &later)
        .expect("it is taken");
    let (begin, nice) = (
        driven.field(&own, "EligibleTime"),
        driven.field(&own, "Nice"),
    );
    let second = driven.submit("alice", SECOND);
    driven.wait_delayed(&second);
    site.root(&["tarn", "slurm", "mode", "advise"]);
    driven.wait_undelayed(&second, 15);
    site.root(&["tarn", "slurm", "mode", "drive"]);
    driven.wait_delayed(&second);

    // An administrator's word stands.
    let job = format!("jobid={second}");
    site.root(&["scontrol", "update", &job, "starttime=now+600"]);
    let set = driven.field(&second, "EligibleTime");
    let note = format!("somebody changed the begin time of job {second}");
    site.wait("tarn has seen it", || driven.log().contains(&note));
    std::thread::sleep(Duration::from_secs(25));
    assert_eq!(
        driven.field(&second, "EligibleTime"),
        set,
        "{}",
        driven.log()
    );
    site.root(&["scontrol", "update", &job, "starttime=now"]);

    // A new controller delays it again, and dies.
    restart(site, "mode = \"drive\"\\n");
    driven.wait_delayed(&second);
    site.kill_controller();
    driven.wait_undelayed(&second, 65);
    assert_eq!(driven.field(&second, "JobState"), "PENDING");
    assert_eq!(driven.field(&own, "EligibleTime"), begin);
    assert_eq!(driven.field(&own, "Nice"), nice);
    assert_eq!(driven.field(&second, "Nice"), "0");
    // The next one, which only advises, finds nothing to undo, and the workflow ends.
    let advise = "printf 'mode = \"advise\"\\n' > /shared/site.toml";
    site.root(&["sh", "-c", advise]);
    site.start_controller_with("--config /shared/site.toml");
    driven.end_first_step();
    site.wait_for(&second, "COMPLETED");
    assert!(
        !driven.log().contains(&format!("jobid={own} ")),
        "{}",
        driven.log()
    );
}
