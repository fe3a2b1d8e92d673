//! Nodes that sleep while nobody misses them: docs/admin/energy.md, "Sleep". Switching them off and on is emulated.

use crate::setup::Site;
use std::fs;

/// Slurm's programs: this test does what they are called for.
const PROGRAM: &str = "#!/bin/sh\necho \"${0##*/} $1\" >> /shared/power/asked\n";
/// A mode in which nodes are only planned to sleep, a policy by which they sleep when it pays, and what a meter does not say:
/// 90 W are saved, waking costs 5 s of 400 W, so that pays after 22 s.
const ENERGY: &str = "mode = \"observe\"\npolicy = \"energy:slow-down=100000%,sleep=10s\"\n[power]\nasleep = 10\nboot = 400\nwake = \"5s\"\n";
const CONF: &str = "SuspendProgram=/etc/slurm/off\nResumeProgram=/etc/slurm/on\nSuspendTime=31536000\nSuspendTimeout=5\nResumeTimeout=120\n";

#[test]
fn nodes_without_data_sleep_and_wake_for_a_job() {
    let programs = [("off", PROGRAM), ("on", PROGRAM)];
    let Some(site) = Site::up_of(2, CONF, &programs) else {
        return;
    };
    let power = site.cluster.shared().join("power");
    site.root(&["sh", "-c", "mkdir -m 777 /shared/power"]);
    let is_requested = |what: &str| {
        let requests = fs::read_to_string(power.join("asked")).unwrap_or_default();
        requests.lines().any(|line| line == what)
    };
    // Node 1 has data.
    let script = "\
#TARN name = \"made\"
#TARN data.kept = { size = \"1 MiB\", keep = \"1d\" }
#TARN [[step]]
#TARN out = [\"kept\"]
echo yes > $TARN_kept/it
";
    let job = site.submit("alice", "make.sh", script, &["-w", "node1"]);
    site.wait_for(&job.expect("it is taken"), "COMPLETED");
    site.root(&["sh", "-c", "printf 'sleep = \"5s\"\\n' > /shared/site.toml"]);
    site.kill_controller();
    site.start_controller_with("--config /shared/site.toml");
    site.wait("node 2 sleeps", || is_requested("off node2"));
    assert!(!is_requested("off node1"), "{}", site.logs());
    let node = site.cluster.node(2);
    node.power_cut().unwrap_or_else(|e| panic!("{e:#}"));
    site.wait("Slurm knows it", || {
        let state = site.root(&["sinfo", "-h", "-n", "node2", "-o", "%t"]);
        state.trim() == "idle~"
    });
    // A job for that node alone wakes it, and waits until its tarnd answers.
    let script = "\
#SBATCH -w node2
#TARN data.kept.of = \"made/kept\"
#TARN [[step]]
#TARN in = [\"kept\"]
[ \"$(cat $TARN_kept/it)\" = yes ]
";
    let job = site.submit("alice", "read.sh", script, &[]);
    site.wait("node 2 wakes up", || is_requested("on node2"));
    node.start().unwrap_or_else(|e| panic!("{e:#}"));
    site.start_node(2);
    site.wait_for(&job.expect("it is taken"), "COMPLETED");
    // It has data now, and stays awake.
    std::thread::sleep(std::time::Duration::from_secs(12));
    let requests = fs::read_to_string(power.join("asked")).expect("what was asked");
    assert_eq!(requests, "off node2\non node2\n", "{}", site.logs());
}

/// Slurm's client that the controller orders sleep by: the first order of all waits for the test.
const SCONTROL: &str = r#"#!/bin/sh
folder=/shared/clients
case "$*" in
    *_sleep_*|*state=power*)
        echo "$*" >> $folder/log
        case "$*" in create*)
            ! mkdir $folder/held 2> /dev/null || until [ -e $folder/go ]; do sleep 0.1; done ;;
        esac ;;
esac
exec /usr/bin/scontrol "$@"
"#;

#[test]
fn a_node_on_which_a_job_or_data_comes_just_then_stays_awake() {
    let programs = [("off", PROGRAM), ("on", PROGRAM)];
    let Some(site) = Site::up_of(2, CONF, &programs) else {
        return;
    };
    let power = site.cluster.shared().join("power");
    site.root(&["sh", "-c", "mkdir -m 777 /shared/power"]);
    let requests = || fs::read_to_string(power.join("asked")).unwrap_or_default();
    let clients = site.wrap_clients();
    let folder = site.cluster.shared().join("clients");
    fs::write(folder.join("scontrol"), SCONTROL).expect("scontrol");
    site.root(&["sh", "-c", "printf 'sleep = \"5s\"\n' > /shared/site.toml"]);
    site.kill_controller();
    site.start_controller_with("--config /shared/site.toml");
    site.wait("both nodes are to sleep", || folder.join("held").exists());
    assert!(
        clients.log().contains("Nodes=node1,node2 "),
        "{}",
        clients.log()
    );
    let runs = "#SBATCH -w node1\n#TARN [[step]]\nuntil [ -e ~/end ]; do sleep 0.2; done\n";
    let runs = site.submit("alice", "runs.sh", runs, &[]);
    let makes = "#SBATCH -w node2\n#TARN name = \"w\"\n#TARN data.d = { keep = \"1d\" }\n#TARN [[step]]\n#TARN out = [\"d\"]\necho a > $TARN_d/a\n";
    let makes = site.submit("alice", "makes.sh", makes, &[]);
    site.wait_for(&makes.expect("it is taken"), "COMPLETED");
    let runs = runs.expect("it is taken");
    site.wait_for(&runs, "RUNNING");
    fs::write(folder.join("go"), "").expect("a file");
    site.wait("the controller has looked again", || {
        clients.log().contains("delete reservationname=tarn_")
    });
    assert!(
        !clients.log().contains("state=power_down"),
        "{}",
        clients.log()
    );
    let states = site.root(&["sinfo", "-hN", "-O", "StateComplete"]);
    assert!(!states.contains("power"), "{states}");
    // The job has left nothing, and the other node still has its data.
    site.alice(&["touch", "end"]);
    site.wait_for(&runs, "COMPLETED");
    site.wait("node 1 sleeps", || requests().contains("off node1"));
    site.wait("no reservation is left", || {
        !site
            .root(&["scontrol", "-o", "show", "reservation"])
            .contains("_sleep_")
    });
    assert_eq!(requests(), "off node1\n", "{}", clients.log());
}

/// By an emulated meter.
#[test]
fn by_policy_energy_a_node_sleeps_when_it_pays_and_only_if_tarn_may_act() {
    let programs = [("off", PROGRAM), ("on", PROGRAM)];
    let Some(site) = Site::up_of(2, CONF, &programs) else {
        return;
    };
    let power = site.cluster.shared().join("power");
    site.root(&["sh", "-c", "mkdir -m 777 /shared/power"]);
    let requests = || fs::read_to_string(power.join("asked")).unwrap_or_default();
    for node in [1, 2] {
        site.start_node_with_meter(node, 100);
    }
    fs::write(site.cluster.shared().join("site.toml"), ENERGY).expect("the configuration");
    site.kill_controller();
    site.start_controller_with("--config /shared/site.toml");
    site.wait("both say what they draw", || {
        let status = site.root(&["tarn", "slurm", "status"]);
        status.matches("100 W (hwmon)").count() == 2
    });
    // Jobs that were seen while they ran earn what a waking may cost.
    let script = "#SBATCH -w node1\n#TARN [[step]]\nuntil [ -e ~/end ]; do sleep 1; done\n";
    let job = site.submit("alice", "earn.sh", script, &[]);
    let job = job.expect("it is taken");
    let log = || site.root(&["sh", "-c", "cat /shared/controller/plan.log"]);
    site.wait("it is seen", || {
        log().contains(&format!(" began job={job} "))
    });
    site.alice(&["touch", "end"]);
    site.wait_for(&job, "COMPLETED");
    site.wait("it is planned", || log().contains(" sleep nodes="));
    assert_eq!(requests(), "", "in observe nothing is ordered: {}", log());
    site.root(&["tarn", "slurm", "mode", "advise"]);
    site.wait("both sleep", || {
        requests().contains("off node1") && requests().contains("off node2")
    });
    assert_eq!(requests().lines().count(), 2, "{}{}", requests(), log());
}
