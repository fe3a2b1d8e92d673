//! Mode `drive` on a real Slurm: nodes are kept for the next step of a workflow, and nothing of that outlives the
//! controller, its administrator's word or the workflow. docs/internals/driving-slurm.md.

use crate::plan::restart;
use crate::setup::Site;
use std::fs;
use std::time::{Duration, Instant};

/// The first step runs until somebody makes a file.
pub(crate) const FIRST: &str = "\
#SBATCH -N1
#SBATCH --exclusive
#SBATCH -t 5
#TARN name = \"wing\"
#TARN [data.mesh]
#TARN [[step]]
#TARN out = [\"mesh\"]
echo yes > $TARN_mesh/it
until [ -e /shared/home/alice/go ]; do sleep 0.2; done
";
pub(crate) const SECOND: &str = "\
#SBATCH -N1
#SBATCH --exclusive
#SBATCH -t 5
#TARN name = \"wing\"
#TARN [[step]]
#TARN in = [\"mesh\"]
[ \"$(cat $TARN_mesh/it)\" = yes ]
";
pub(crate) const ORDINARY: &str = "\
#SBATCH -N1
#SBATCH --exclusive
#SBATCH -t 5
sleep 5
";

/// A driven site of two nodes, of which somebody keeps the second busy, and the first step of a workflow on the first.
pub(crate) struct Driven {
    pub(crate) site: Site,
    pub(crate) first: String,
    /// The job that keeps the second node busy.
    pub(crate) busy: String,
}

impl Driven {
    pub(crate) fn up() -> Option<Self> {
        Self::up_with(2, "")
    }

    /// Of so many nodes, and with more lines of slurm.conf: all but the first are busy.
    pub(crate) fn up_with(nodes: usize, conf: &str) -> Option<Self> {
        Self::on(Site::up_with(nodes, conf)?, nodes, FIRST)
    }

    /// With another first step.
    pub(crate) fn on(site: Site, nodes: usize, first: &str) -> Option<Self> {
        restart(&site, "mode = \"drive\"\\n");
        let busy = site.hold(&format!("node[2-{nodes}]"));
        let first = site.submit("alice", "first.sh", first, &[]);
        let first = first.expect("it is taken");
        site.wait_for(&first, "RUNNING");
        Some(Self { site, first, busy })
    }

    pub(crate) fn submit(&self, user: &str, script: &str) -> String {
        let name = format!("{user}-{}.sh", script.len());
        let job = self.site.submit(user, &name, script, &[]);
        job.expect("it is taken")
    }

    pub(crate) fn end_first_step(&self) {
        fs::write(self.site.home("alice").join("go"), "").expect("a file");
    }

    /// The names of tarn's reservations.
    pub(crate) fn reservations(&self) -> Vec<String> {
        let output = self.site.root(&["scontrol", "-o", "show", "reservation"]);
        let names = output
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("ReservationName="));
        let names = names.filter(|name| name.starts_with("tarn_"));
        names.map(str::to_owned).collect()
    }

    pub(crate) fn wait_reserved(&self) -> String {
        self.site
            .wait("nodes are reserved", || !self.reservations().is_empty());
        self.reservations().remove(0)
    }

    pub(crate) fn log(&self) -> String {
        let path = self.site.cluster.shared().join("controller/plan.log");
        fs::read_to_string(path).expect("the log of plans")
    }

    /// A field of a job.
    pub(crate) fn field(&self, job: &str, name: &str) -> String {
        let output = self.site.root(&["scontrol", "-o", "show", "job", job]);
        let words = output.split_whitespace();
        let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        values.next().unwrap_or_default().to_owned()
    }
}

#[test]
fn the_next_step_has_the_nodes_of_the_one_before_although_others_wait() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    // It comes after the workflow, and before its next step: without tarn it is next.
    let ordinary = driven.submit("bob", ORDINARY);
    let second = driven.submit("alice", SECOND);
    let name = driven.wait_reserved();
    let shown = site.root(&["scontrol", "-o", "show", "reservation", &name]);
    assert!(
        shown.contains("Nodes=node1 ") && shown.contains("Users=alice "),
        "{shown}"
    );
    // The step that runs is not disturbed, nor is its job in the reservation.
    assert_eq!(driven.field(&driven.first, "JobState"), "RUNNING");
    driven.end_first_step();
    site.wait_for(&second, "COMPLETED");
    site.wait_for(&ordinary, "COMPLETED");
    let begin = |job| driven.field(job, "StartTime");
    assert!(
        begin(&second) < begin(&ordinary),
        "{}\n{}",
        driven.log(),
        site.logs()
    );
    assert_eq!(driven.field(&second, "NodeList"), "node1");
    site.wait("the nodes are given up", || {
        driven.reservations().is_empty()
    });
    let log = driven.log();
    for part in [
        "create reservation",
        &format!("jobid={second} reservationname={name}"),
        "delete",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

#[test]
fn a_controller_that_dies_leaves_nothing_for_longer_than_a_minute_and_a_half() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    // It makes what the third step reads.
    let makes = SECOND.replace("#TARN in", "#TARN out = [\"flow\"]\n#TARN in");
    let makes = makes.replace("#TARN [[step]]", "#TARN [data.flow]\n#TARN [[step]]");
    let runs = "touch $TARN_flow/it; until [ -e /shared/home/alice/on ]; do sleep 0.2; done\n";
    let second = driven.submit("alice", &format!("{makes}{runs}"));
    let name = driven.wait_reserved();
    // It lasts as long as it is renewed.
    std::thread::sleep(Duration::from_secs(70));
    assert_eq!(driven.reservations(), [&name[..]], "{}", driven.log());
    // A job joins it, leaves it, and is followed by another one: Slurm counts its time without jobs again from then on.
    let reads = "#SBATCH -N1 --exclusive -t 5\n#TARN name = \"wing\"\n#TARN [[step]]\n#TARN in = [\"flow\"]\nls $TARN_flow/it\n";
    let third = driven.submit("alice", reads);
    driven.end_first_step();
    site.wait_for(&second, "RUNNING");
    let renewal = "Flags+=PURGE_COMP=0-00:00:3";
    site.wait("it is renewed", || driven.log().contains(renewal));
    std::thread::sleep(Duration::from_secs(30));
    assert_eq!(driven.reservations(), [&name[..]], "{}", driven.log());
    assert_eq!(driven.field(&second, "Reservation"), "");
    site.kill_controller();
    let killed = Instant::now();
    site.wait("it lapses", || driven.reservations().is_empty());
    assert!(
        killed.elapsed() < Duration::from_secs(100),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(driven.field(&second, "JobState"), "RUNNING");
    assert_eq!(driven.field(&third, "JobState"), "PENDING");
    assert_ne!(driven.field(&third, "Priority"), "0", "it is not held");
    // The next controller, which only advises, ends the workflow.
    site.root(&["sh", "-c", "echo 'mode = \"advise\"' > /shared/site.toml"]);
    site.start_controller_with("--config /shared/site.toml");
    site.alice(&["touch", "/shared/home/alice/on"]);
    site.wait_for(&third, "COMPLETED");
}

#[test]
fn an_administrators_word_stands() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    let second = driven.submit("alice", SECOND);
    let name = driven.wait_reserved();
    site.root(&["scontrol", "delete", &format!("reservationname={name}")]);
    site.wait("tarn has seen it", || {
        driven.log().contains("somebody deleted reservation")
    });
    std::thread::sleep(Duration::from_secs(10));
    assert!(driven.reservations().is_empty(), "{}", driven.log());
    driven.end_first_step();
    site.wait_for(&second, "COMPLETED");
}

#[test]
fn another_mode_removes_the_reservations_and_a_restart_makes_them_again() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    let second = driven.submit("alice", SECOND);
    let old = driven.wait_reserved();
    restart(site, "mode = \"drive\"\\n");
    site.wait("the newer one's instead of the older one's", || {
        let names = driven.reservations();
        names.len() == 1 && names[0] != old
    });
    restart(site, "mode = \"advise\"\\n");
    let began = Instant::now();
    site.wait("they are removed", || driven.reservations().is_empty());
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    // A user who cancels the step has nothing kept either.
    restart(site, "mode = \"drive\"\\n");
    driven.wait_reserved();
    site.alice(&["scancel", &second]);
    site.wait("nothing is kept", || driven.reservations().is_empty());
    driven.end_first_step();
    site.wait_for(&driven.first, "COMPLETED");
}

#[test]
fn users_put_no_jobs_into_reservations_of_tarn() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    let second = driven.submit("alice", SECOND);
    let name = driven.wait_reserved();
    let into = format!("--reservation={name}");
    let several = format!("--reservation=course,{name}");
    for wanted in [&into, &several] {
        let refused = site.submit("alice", "into.sh", ORDINARY, &[wanted]);
        let refused = format!("{:#}", refused.expect_err("it passes the queue"));
        let expected = format!("tarn: reservation {name} keeps nodes for a workflow");
        assert!(refused.contains(&expected), "{refused}");
    }
    let ordinary = driven.submit("alice", ORDINARY);
    let job = format!("jobid={ordinary}");
    let update = [
        "scontrol",
        "update",
        &job,
        &format!("reservationname={name}"),
    ];
    assert!(site.cluster.exec("alice", &update).is_err());
    assert_eq!(driven.field(&ordinary, "Reservation"), "");
    // Others may have such a name, and jobs in it.
    site.root(&[
        "scontrol",
        "create",
        "reservation",
        "ReservationName=tarn_course",
        "StartTime=now",
        "Duration=10",
        "Nodes=node2",
        "Users=alice",
        "Flags=IGNORE_JOBS",
    ]);
    let within = site.submit(
        "alice",
        "within.sh",
        ORDINARY,
        &["--reservation=tarn_course"],
    );
    let within = within.expect("it is taken");
    assert_eq!(driven.field(&within, "Reservation"), "tarn_course");
    // tarn itself puts the next step in.
    driven.end_first_step();
    site.wait_for(&second, "COMPLETED");
    let joined = format!("jobid={second} reservationname={name}");
    assert!(driven.log().contains(&joined), "{}", driven.log());
}

/// The commands of docs/admin/switching-on.md.
#[test]
fn one_command_changes_the_mode_at_once_and_for_good() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    let mode = |word: &str| site.root(&["tarn", "slurm", "mode", word]);
    let is_in = |word: &str| {
        assert_eq!(site.root(&["tarn", "slurm", "mode"]).trim(), word);
        let status = site.root(&["tarn", "slurm", "status"]);
        assert!(status.contains(&format!("mode {word},")), "{status}");
    };
    is_in("drive");
    let refused = site
        .cluster
        .exec("alice", &["tarn", "slurm", "mode", "observe"]);
    let refused = format!("{:#}", refused.expect_err("only root may"));
    assert!(refused.contains("only root"), "{refused}");
    is_in("drive");
    let second = driven.submit("alice", SECOND);
    driven.wait_reserved();
    for word in ["advise", "observe"] {
        mode(word);
        is_in(word);
        let began = Instant::now();
        site.wait("they are removed", || driven.reservations().is_empty());
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{word}: {:?}",
            began.elapsed()
        );
        mode("drive");
        is_in("drive");
        driven.wait_reserved();
    }
    mode("advise");
    site.wait("they are removed", || driven.reservations().is_empty());
    // The configuration still has `drive`, and is older than the command.
    site.kill_controller();
    site.start_controller_with("--config /shared/site.toml");
    is_in("advise");
    std::thread::sleep(Duration::from_secs(5));
    assert!(driven.reservations().is_empty(), "{}", driven.log());
    // Somebody edits it, without a new start, and then gives the command.
    site.root(&[
        "sh",
        "-c",
        "printf 'mode = \"observe\"\\n' > /shared/site.toml",
    ]);
    mode("advise");
    restart(site, "mode = \"observe\"\\n");
    is_in("advise");
    // Somebody edits it.
    restart(site, "mode = \"drive\"\\n");
    is_in("drive");
    mode("advise");
    driven.end_first_step();
    site.wait_for(&second, "COMPLETED");
}
