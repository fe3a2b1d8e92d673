//! Several stores on a node.

use crate::attacks::ran;
use crate::setup::Site;

/// Of 8 MiB and 64 MiB, on two file systems.
const STORES: &str = "--store pmem=/scm/tarn:8MiB,volatile --store nvme=/nvme/tarn:64MiB,volatile";

/// A job that makes 5 MiB of a workflow of that name.
fn make(name: &str) -> String {
    format!(
        "#TARN name = \"{name}\"\n#TARN data.x.size = \"5 MiB\"\n#TARN [[step]]\n#TARN out = [\"x\"]\n\
         yes {name} | head -c 5000000 > $TARN_x/made; echo $TARN_x\n"
    )
}

/// Weiland 2018, section 3.2: the data of jobs moves between the levels of their node, and they see nothing of it.
#[test]
fn jobs_hand_on_data_that_came_down_and_goes_up_for_its_reader() {
    let Some(site) = Site::up(1) else { return };
    site.root(&["sh", "-c", "pkill -f '[n]ode-name node1 '"]);
    let node = site.cluster.node(1);
    let root = |script: &str| {
        let output = node.exec("root", &["sh", "-ec", script]);
        output.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
    };
    root("mkdir -p /nvme; mount -t tmpfs -o size=80m,mode=755 tarn /nvme");
    assert_ne!(root("stat -c %d /scm/tarn"), root("stat -c %d /nvme"));
    site.start_node_with(1, STORES);
    let status = || site.alice(&["tarn", "slurm", "status"]);
    site.wait("both stores are known", || status().contains("nvme"));
    let wait_until_stored = |name: &str, store: &str| {
        site.wait(&format!("{name} lies in {store}"), || {
            let output = site.alice(&["tarn", "data", "show", &format!("{name}/x")]);
            output.contains(&format!("on node1:{store};"))
        });
    };
    assert_eq!(ran(&site, "alice", &make("one")), "/run/tarn/data/x\n");
    wait_until_stored("one", "pmem");
    // The second one has no space beside it.
    assert_eq!(ran(&site, "alice", &make("two")), "/run/tarn/data/x\n");
    wait_until_stored("two", "pmem");
    wait_until_stored("one", "nvme");
    let there = "find /scm/tarn /nvme/tarn -name made | sort";
    assert_eq!(
        root(there),
        "/nvme/tarn/u7001/d/one/x/1/0/tree/made\n/scm/tarn/u7001/d/two/x/1/0/tree/made"
    );
    // Its reader has it above; data that nobody reads makes space.
    let read = "#TARN name = \"one\"\n#TARN [[step]]\n#TARN in = [\"x\"]\ncmp <(yes one | head -c 5000000) $TARN_x/made && echo same\n";
    assert_eq!(ran(&site, "alice", read), "same\n");
    wait_until_stored("one", "pmem");
    wait_until_stored("two", "nvme");
    // Both at a time: each is read where it is stored, by paths that do not show the tier.
    let both = "#TARN name = \"both\"\n#TARN data.first.of = \"one/x\"\n#TARN data.second.of = \"two/x\"\n\
        #TARN [[step]]\n#TARN in = [\"first\", \"second\"]\n\
        cmp <(yes one | head -c 5000000) $TARN_first/made && cmp <(yes two | head -c 5000000) $TARN_second/made && echo $TARN_first $TARN_second\n\
        [ $(stat -c %d $TARN_first) != $(stat -c %d $TARN_second) ] && echo apart\n";
    assert_eq!(
        ran(&site, "alice", both),
        "/run/tarn/data/first /run/tarn/data/second\napart\n"
    );
    let status = status();
    assert!(
        status.contains("pmem") && status.contains("of 64.00 MiB (volatile)"),
        "{status}"
    );
    site.wait("sinfo shows the room of each", || {
        let shown = site.alice(&["sinfo", "-h", "-O", "NodeList,Extra:80"]);
        shown.contains("tarn pmem ") && shown.contains(", nvme ") && shown.ends_with("free")
    });
    // A workflow that has ended leaves nothing behind.
    for name in ["one", "two"] {
        site.alice(&["tarn", "slurm", "end", name]);
    }
    site.wait("nothing is left in either store", || root(there).is_empty());
}
