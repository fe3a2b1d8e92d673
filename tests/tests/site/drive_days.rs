//! Bad days of a site in mode `drive`: the controller's, its administrator's, and Slurm's own.
//! docs/internals/driving-slurm.md, "When things fail".

use crate::drive::{Driven, ORDINARY, SECOND};
use std::fs;
use std::time::{Duration, Instant};

/// Calls of Slurm that drive has made, or tried.
fn calls(driven: &Driven) -> usize {
    let log = driven.log();
    let is_call = |line: &&str| line.contains(" drive what=\"scontrol ");
    log.lines().filter(is_call).count()
}

impl Driven {
    /// A job waits as it would without tarn: not held, and in no reservation.
    pub(crate) fn assert_waits(&self, job: &str) {
        assert_eq!(self.field(job, "JobState"), "PENDING", "{}", self.log());
        assert_ne!(self.field(job, "Priority"), "0", "it is held");
        let reservation = self.field(job, "Reservation");
        assert!(!reservation.starts_with("tarn_"), "{reservation}");
    }

    /// Nodes are kept for this job: the plan has it on the node of the step that runs, whose own reservation, which lasts
    /// 3 s longer than it is needed, has gone or is this job's now.
    pub(crate) fn wait_kept_for(&self, job: &str) {
        let mut since = Instant::now();
        self.site.wait("nodes are kept for the next step", || {
            let is_planned = self.site.why("alice", job).contains("planned: node1 ");
            if !is_planned || self.reservations().is_empty() {
                since = Instant::now();
            }
            since.elapsed() > Duration::from_secs(5)
        });
    }

    pub(crate) fn wait_unreserved(&self, why: &str) {
        self.site.wait(why, || self.reservations().is_empty());
    }

    /// No job, no reservation and no data is left once the workflow is ended and the other node is free again.
    pub(crate) fn assert_nothing_left(&self, workflows: &[&str]) {
        let site = &self.site;
        self.wait_unreserved("no reservation is left");
        site.alice(&["scancel", &self.busy]);
        for workflow in workflows {
            // One that was never taken in has no end.
            let _ = site
                .cluster
                .exec("alice", &["tarn", "slurm", "end", workflow]);
        }
        // Data that was never made is listed as that.
        let is_data = |line: &&str| !line.starts_with("dataset ") && !line.contains(" failed");
        site.wait("no data is left", || {
            let listed = ["tarn", "data", "ls", "--site"];
            let listed = site.cluster.exec("alice", &listed);
            listed.is_ok_and(|listed| listed.lines().filter(is_data).count() == 0)
        });
        site.wait("no job is left", || {
            site.root(&["squeue", "-h", "-r"]).is_empty()
        });
    }
}

/// First its readings are slow, then it reaches slurmctld no more.
#[test]
fn a_controller_that_is_slow_or_cut_off_lets_its_reservations_lapse() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    let clients = site.wrap_clients();
    site.kill_controller();
    site.start_controller_with("--config /shared/site.toml");
    let second = driven.submit("alice", SECOND);
    driven.wait_kept_for(&second);
    // Each reading from the next on is older than 10 s when it is over: nothing is done on it, and nothing is renewed.
    clients.set("late");
    std::thread::sleep(Duration::from_secs(15));
    clients.forget();
    let before = calls(&driven);
    std::thread::sleep(Duration::from_secs(25));
    assert_eq!(calls(&driven), before, "{}", driven.log());
    // Slurm rests for as long as a reading takes.
    site.wait("it reads on", || clients.log().contains("squeue "));
    clients.set("cut");
    driven.wait_unreserved("it lapses");
    assert_eq!(driven.field(&driven.first, "JobState"), "RUNNING");
    driven.assert_waits(&second);
    site.wait("it is known to be cut off", || {
        let status = site.alice(&["tarn", "slurm", "status"]);
        status.contains("cannot be read")
    });
    // Slurm continues by itself.
    let ordinary = driven.submit("bob", ORDINARY);
    driven.end_first_step();
    site.wait_for(&ordinary, "COMPLETED");
    clients.set("");
    site.wait_for(&driven.first, "COMPLETED");
    site.wait_for(&second, "COMPLETED");
    driven.assert_nothing_left(&["wing"]);
}

/// An administrator changes a job, its partition and its node, one after the other.
#[test]
fn what_an_administrator_changes_stands_and_the_workflow_continues() {
    let Some(driven) = Driven::up_with(3, "") else {
        return;
    };
    let site = &driven.site;
    let second = driven.submit("alice", SECOND);
    driven.wait_kept_for(&second);
    let explains = |what: &str| {
        site.wait(&format!("`{what}` is the reason"), || {
            site.why("alice", &second).contains(what)
        });
    };
    // Jobs and partitions that start nothing have nothing kept.
    let down = ["scontrol", "update", "partition=main", "state=down"];
    let up = ["scontrol", "update", "partition=main", "state=up"];
    let drain = ["scontrol", "update", "nodename=node1", "state=drain"];
    let drain = [&drain[..], &["reason=test"]].concat();
    let resume = ["scontrol", "update", "nodename=node1", "state=resume"];
    for (does, undoes, reason) in [
        (
            &["scontrol", "hold", &second][..],
            &["scontrol", "release", &second][..],
            "an administrator holds it",
        ),
        (&down, &up, "its partition starts no jobs"),
        (&drain, &resume, ""),
    ] {
        site.root(does);
        driven.wait_unreserved(does[1]);
        explains(reason);
        assert_eq!(driven.field(&driven.first, "JobState"), "RUNNING");
        site.root(undoes);
        driven.wait_kept_for(&second);
    }
    // Another set of nodes is another cluster to the planner, and the workflow keeps its place there.
    site.root(&["scontrol", "update", "partition=main", "nodes=node1,node3"]);
    site.wait("the planner has seen it", || {
        driven.log().contains("changed")
    });
    driven.wait_kept_for(&second);
    // The first step is put back: nothing is kept while it does not run, and it makes its data again.
    site.root(&["scontrol", "requeue", &driven.first]);
    driven.wait_unreserved("the first step does not run");
    site.start_again(&driven.first, &[]);
    site.wait_for(&driven.first, "RUNNING");
    driven.wait_kept_for(&second);
    driven.end_first_step();
    site.wait_for(&driven.first, "COMPLETED");
    site.wait_for(&second, "COMPLETED");
    driven.assert_nothing_left(&["wing"]);
}

/// slurmctld is killed, the controller's log is an old one, another controller is started, and a node is lost.
#[test]
fn slurm_and_a_node_are_lost_and_controllers_differ() {
    let Some(driven) = Driven::up_with(3, "") else {
        return;
    };
    let site = &driven.site;
    let copy = "cp -a /shared/controller /shared/old";
    site.root(&["sh", "-c", copy]);
    let second = driven.submit("alice", SECOND);
    driven.wait_kept_for(&second);
    site.cluster
        .restart_ctld()
        .unwrap_or_else(|e| panic!("{e:#}"));
    site.wait("the planner is built again", || {
        driven.log().contains("slurmctld was started again")
    });
    driven.wait_kept_for(&second);
    let name = driven.wait_reserved();

    // Another one, with a state folder of its own, has had no orders of anybody: it changes nothing.
    let second_controller = "setsid /shared/bin/tarnd --controller --state /shared/other --config /shared/site.toml < /dev/null >> /shared/other.log 2>&1 & echo $! > /run/other.pid";
    let node = site.cluster.node(3);
    node.exec("root", &["sh", "-c", second_controller])
        .unwrap_or_else(|e| panic!("{e:#}"));
    site.wait("it leaves Slurm to the first", || {
        let log = site.cluster.shared().join("other/plan.log");
        fs::read_to_string(log).is_ok_and(|log| log.contains("drives now"))
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        driven.reservations(),
        std::slice::from_ref(&name),
        "{}",
        driven.log()
    );
    let kill = "kill -KILL $(cat /run/other.pid)";
    node.exec("root", &["sh", "-c", kill])
        .unwrap_or_else(|e| panic!("{e:#}"));

    // A controller whose log is older than the reservation deletes it, and makes its own.
    site.kill_controller();
    let old = "cp /shared/controller/epoch /shared/old/ && rm -r /shared/controller && mv /shared/old /shared/controller";
    site.root(&["sh", "-c", old]);
    site.start_controller_with("--config /shared/site.toml");
    site.wait("the old reservation is gone", || {
        !driven.reservations().contains(&name)
    });

    // The node of the first step, which is planned for the second, is lost before the second begins.
    driven.wait_kept_for(&second);
    site.alice(&["scancel", &driven.busy]);
    site.cluster
        .node(1)
        .power_cut()
        .unwrap_or_else(|e| panic!("{e:#}"));
    driven.wait_unreserved("nothing is kept on a node that is lost");
    let first = format!("jobid={}", driven.first);
    site.wait("it is put back", || site.state(&driven.first) == "PENDING");
    site.root(&["scontrol", "update", &first, "starttime=now"]);
    driven.end_first_step();
    site.wait_for(&driven.first, "COMPLETED");
    site.wait_for(&second, "COMPLETED");
    assert_ne!(driven.field(&second, "NodeList"), "node1");
    driven.assert_nothing_left(&["wing"]);
}
