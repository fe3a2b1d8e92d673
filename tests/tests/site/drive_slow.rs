//! Mode `drive` where each client of Slurm takes a second, and one half a minute: reservations live, and nothing is ordered any more once
//! the mode is another one.

use crate::drive::{Driven, FIRST, SECOND};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// Calls of reservations are in its log, a batch of them line by line.
const SCONTROL: &str = r#"#!/bin/sh
folder=/shared/clients
case "$*" in
    create*|delete*|"update reservationname"*) echo "one $*" >> $folder/log ;;
    "")
        sed "s/^/batch /" > $folder/batch.$$
        cat $folder/batch.$$ >> $folder/log
        [ ! -e $folder/late ] || { rm $folder/late; sleep 31; }
        sleep 1
        sed "s/^batch //" $folder/batch.$$ | /usr/bin/scontrol
        exit $? ;;
esac
sleep 1
exec /usr/bin/scontrol "$@"
"#;

#[test]
fn reservations_live_on_a_slow_slurm_and_nothing_is_renewed_after_a_change_of_mode() {
    let Some(driven) = Driven::up_with(3, "") else {
        return;
    };
    let site = &driven.site;
    let clients = site.wrap_clients();
    let path = site.cluster.shared().join("clients/scontrol");
    fs::write(&path, SCONTROL).expect("scontrol");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("scontrol");
    crate::plan::restart(site, "mode = \"drive\"\\n");
    // A second workflow, on the second node.
    site.alice(&["scancel", &driven.busy]);
    let busy = site.hold("node3");
    let text = FIRST.replace("wing", "tail");
    let other = site.submit("bob", "tail.sh", &text, &["-w", "node2"]);
    site.wait_for(&other.expect("it is taken"), "RUNNING");
    driven.submit("alice", SECOND);
    driven.submit("bob", &SECOND.replace("wing", "tail"));
    site.wait("each workflow has a reservation", || {
        driven.reservations().len() == 2
    });
    let made = driven.reservations();
    std::thread::sleep(Duration::from_secs(75));
    assert_eq!(driven.reservations(), made, "{}", driven.log());
    let batches = || {
        clients
            .log()
            .matches("batch update reservationname")
            .count()
    };
    assert!(batches() >= 2, "{}", clients.log());

    // One that takes too long may have been made: it is made again, or the reservation is.
    fs::write(site.cluster.shared().join("clients/late"), "").expect("a file");
    site.wait("a renewal is late", || {
        driven.log().contains("Slurm did not answer")
    });
    let late = Instant::now();
    site.wait("both are there", || driven.reservations().len() == 2);
    assert!(
        late.elapsed() < Duration::from_secs(60),
        "{:?}",
        late.elapsed()
    );

    site.root(&["tarn", "slurm", "mode", "observe"]);
    let before = clients.log().len();
    site.wait("they are given up", || driven.reservations().is_empty());
    std::thread::sleep(Duration::from_secs(5));
    let log = clients.log();
    let after = log[before..].lines();
    let made: Vec<&str> = after
        .filter(|line| line.contains("create") || line.contains("EndTime=now+6"))
        .collect();
    assert_eq!(made, [""; 0], "{}", driven.log());
    site.alice(&["scancel", &busy]);
}
