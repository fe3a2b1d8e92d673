//! Bad days of a site in mode `drive`: a clock that jumps, that of Slurm and tarn on all nodes (libfaketime).
//! docs/internals/driving-slurm.md, "A clock that jumps".

use crate::drive::{Driven, FIRST, ORDINARY, SECOND};
use crate::setup::Site;

const HOUR: i64 = 3_600;
const CONF: &str = "JobCompType=jobcomp/filetxt\nJobCompLoc=/var/log/slurm/jobcomp.log\n";

/// No limit is over after an hour.
fn long(script: &str) -> String {
    script.replace("#SBATCH -t 5\n", "#SBATCH -t 300\n")
}

/// The next step has a reservation.
fn driven_with_clock() -> Option<(Driven, String)> {
    let site = Site::up_with_clock(2, CONF)?;
    let driven = Driven::on(site, 2, &long(FIRST))?;
    let second = driven.submit("alice", &long(SECOND));
    driven.wait_kept_for(&second);
    Some((driven, second))
}

impl Driven {
    /// Nobody was put off beyond the bound, and tarn starts again with its log.
    fn assert_ends_well(&self, ordinary: &str) {
        let site = &self.site;
        site.wait_for(ordinary, "COMPLETED");
        self.assert_nothing_left(&["wing"]);
        let report = site.root(&["tarn", "slurm", "audit", "--json", "--bound", "10m"]);
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["delayed"], 0, "{report}");
        site.kill_controller();
        site.start_controller_with("--config /shared/site.toml");
        let third = FIRST.replace("wing", "tail");
        let third = self.submit("alice", &long(&third));
        site.wait_for(&third, "COMPLETED");
    }
}

#[test]
fn nodes_stay_kept_for_the_next_step_although_the_clock_is_set_ahead() {
    let Some((driven, second)) = driven_with_clock() else {
        return;
    };
    let site = &driven.site;
    let before = driven.wait_reserved();
    site.set_clock(HOUR);
    // Its end has come for Slurm: it is made again, and nobody is taken to have deleted it.
    site.wait("nodes are reserved again", || {
        driven.reservations().iter().any(|name| *name != before)
    });
    driven.wait_kept_for(&second);
    let ordinary = driven.submit("bob", &long(ORDINARY));
    assert_eq!(driven.field(&driven.first, "JobState"), "RUNNING");
    driven.end_first_step();
    site.wait_for(&driven.first, "COMPLETED");
    site.wait_for(&second, "COMPLETED");
    assert_eq!(driven.field(&second, "NodeList"), "node1");
    driven.assert_ends_well(&ordinary);
}

#[test]
fn a_clock_that_is_set_back_leaves_no_reservation_and_holds_no_job() {
    let Some((driven, second)) = driven_with_clock() else {
        return;
    };
    let site = &driven.site;
    site.set_clock(-HOUR);
    driven.wait_unreserved("it cannot be renewed");
    driven.assert_waits(&second);
    assert_eq!(driven.field(&driven.first, "JobState"), "RUNNING");
    // Slurm starts nothing until its time has come again, or it is started again.
    site.cluster.restart_ctld().expect("slurmctld comes back");
    let ordinary = driven.submit("bob", &long(ORDINARY));
    driven.end_first_step();
    site.wait_for(&driven.first, "COMPLETED");
    site.wait_for(&second, "COMPLETED");
    driven.assert_ends_well(&ordinary);
}
