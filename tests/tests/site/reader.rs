//! The controller's readings of Slurm, with clients of Slurm that are slow, fail, or are killed.

use crate::setup::Site;
use std::fs;
use std::time::Duration;

/// How old the last reading is, of `tarn slurm status`; `None` if there is none.
fn age(status: &str) -> Option<f64> {
    let (_, rest) = status.split_once("; read ")?;
    let (age, _) = rest.split_once(" ago")?;
    let (number, unit) = age.split_once(' ')?;
    let number: f64 = number.trim_end_matches('m').parse().ok()?;
    match unit {
        "us" => Some(number / 1e6),
        "ms" => Some(number / 1e3),
        "s" => Some(number),
        seconds => Some(60.0 * number + seconds.trim_end_matches('s').parse::<f64>().ok()?),
    }
}

#[test]
fn slurm_is_read_though_its_clients_are_slow_fail_or_are_killed() {
    let Some(site) = Site::up(2) else { return };
    let clients = site.wrap_clients();
    site.kill_controller();
    site.start_controller_with("");
    let status = || site.alice(&["tarn", "slurm", "status"]);
    site.wait("Slurm is read", || status().contains("2 of 2 nodes usable"));
    let shown = status();
    assert!(
        shown.contains("Slurm 2") && shown.contains("0 jobs, 0 with data"),
        "{shown}"
    );
    assert!(age(&shown).is_some_and(|age| age < 40.0), "{shown}");

    // A job of tarn's that waits has Slurm read every 5 s, and its client is slow: never two at once.
    clients.set("slow");
    let busy = site.hold("node[1-2]");
    let script =
        "#SBATCH -N1\n#TARN data.x = {}\n#TARN [[step]]\n#TARN out = [\"x\"]\necho a > $TARN_x/a\n";
    let job = site
        .submit("alice", "makes.sh", script, &[])
        .expect("it is taken");
    site.wait("the job is in Slurm's state", || {
        status().contains("1 with data;")
    });
    let log = clients.log();
    assert!(!log.contains("beside another"), "{log}");

    for rule in ["fail", "killed"] {
        clients.set(rule);
        site.wait("the failure is shown", || {
            status().contains("it cannot be read: ")
        });
        let first = age(&status()).expect("an earlier reading");
        std::thread::sleep(Duration::from_secs(3));
        let second = age(&status()).expect("an earlier reading");
        assert!(second >= first + 2.0, "{first} {second}: the age counts on");
        clients.set("");
        site.wait("it is read again", || !status().contains("cannot be read"));
    }
    site.let_go(&busy);
    site.wait_for(&job, "COMPLETED");
    let log = fs::read_to_string(site.cluster.shared().join("controller.log")).expect("its log");
    assert_eq!(
        log.matches("Slurm's state is read again").count(),
        2,
        "{log}"
    );
}
