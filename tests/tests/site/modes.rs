//! Memory modes on a site that drives Slurm: jobs of one mode run together. docs/admin/memory-modes.md, "Few reboots". Slurm, its
//! plug-in and tarn are real; the reboot is emulated.

use crate::setup::Site;
use std::fs;
use std::time::Duration;

const CONF: &str = "NodeFeaturesPlugins=node_features/helpers\nRebootProgram=/etc/slurm/reboot-node\nResumeTimeout=300\n";
const HELPERS: &str = "Feature=mode_1lm Helper=/etc/slurm/helper\nFeature=mode_2lm Helper=/etc/slurm/helper\nMutuallyExclusive=mode_1lm,mode_2lm\nExecTime=60\n";
/// Firmware takes a mode at the next boot.
const HELPER: &str = "#!/bin/sh\nmkdir -p /shared/modes\nif [ -n \"$1\" ]; then echo \"$1\" > /shared/modes/goal; exit; fi\ncat /shared/modes/now 2> /dev/null || echo mode_1lm\n";
/// Notifies the test, which has the power button.
const REBOOT: &str = "#!/bin/sh\necho reboot >> /shared/modes/reboots\n";

/// Starts the node again for each reboot that Slurm has requested for. So many there were.
fn reboot_if_requested(site: &Site, done: usize) -> usize {
    let folder = site.cluster.shared().join("modes");
    let requested = fs::read_to_string(folder.join("reboots")).unwrap_or_default();
    let requested = requested.lines().count();
    if requested > done {
        // The node notifies Slurm before it goes down: no machine is down sooner.
        std::thread::sleep(Duration::from_secs(3));
        let node = site.cluster.node(1);
        node.power_cut().unwrap_or_else(|e| panic!("{e:#}"));
        fs::copy(folder.join("goal"), folder.join("now")).expect("a goal");
        node.start().unwrap_or_else(|e| panic!("{e:#}"));
        site.start_node(1);
    }
    requested
}

#[test]
fn jobs_of_one_memory_mode_run_together() {
    let programs = [
        ("helpers.conf", HELPERS),
        ("helper", HELPER),
        ("reboot-node", REBOOT),
    ];
    let Some(site) = Site::up_of(1, CONF, &programs) else {
        return;
    };
    site.root(&["tarn", "slurm", "mode", "drive"]);
    let submit = |name: &str, mode: &str, seconds: u32| {
        let script = format!(
            "#SBATCH --exclusive -t 2 -C {mode}\n#TARN name = \"{name}\"\n#TARN [[step]]\nsleep {seconds}\n"
        );
        let job = site.submit("alice", &format!("{name}.sh"), &script, &[]);
        job.expect("it is taken")
    };
    let first = submit("first", "mode_1lm", 30);
    site.wait("the first runs", || site.state(&first) == "RUNNING");
    let (one, two) = ("mode_1lm", "mode_2lm");
    let others = [("b1", two), ("a1", one), ("b2", two), ("a2", one)];
    let others = others.map(|(name, mode)| submit(name, mode, 2));
    let mut reboots = 0;
    site.wait("all have run", || {
        reboots = reboot_if_requested(&site, reboots);
        others.iter().all(|job| site.state(job) == "COMPLETED")
    });
    let log = site.cluster.shared().join("controller/plan.log");
    let log = fs::read_to_string(log).expect("the log of plans");
    assert_eq!(reboots, 1, "in their order it would be 4: {log}");
    assert!(log.contains("starttime=now+60"), "{log}");
}
