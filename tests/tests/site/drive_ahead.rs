//! Mode `drive` on a real Slurm: the input of the next step is on the nodes that are reserved for it before it has them.
//! docs/internals/driving-slurm.md, "Bringing data ahead".

use crate::plan::restart;
use crate::setup::Site;
use std::fs;

/// Makes what the third step reads, on one node.
const MESH: &str = "\
#SBATCH -N1
#SBATCH --exclusive
#SBATCH -t 5
#SBATCH -w node1
#TARN name = \"wing\"
#TARN [data.mesh]
#TARN [[step]]
#TARN out = [\"mesh\"]
head -c 8000000 /dev/zero > $TARN_mesh/it
";
/// Runs on two nodes until somebody makes a file: these are kept for the third.
const SOLVE: &str = "\
#SBATCH -N2
#SBATCH --exclusive
#SBATCH -t 5
#TARN name = \"wing\"
#TARN [data.field]
#TARN [[step]]
#TARN out = [\"field:single\"]
head -c 4000000 /dev/zero > $TARN_field/it
until [ -e /shared/home/alice/go ]; do sleep 0.2; done
";
/// Reads both on each of its nodes.
const SHOW: &str = "\
#SBATCH -N2
#SBATCH --exclusive
#SBATCH -t 5
#TARN name = \"wing\"
#TARN [[step]]
#TARN in = [\"mesh\", \"field\"]
srun sh -c 'cat $TARN_mesh/it $TARN_field/it | wc -c'
";

#[test]
fn the_inputs_of_the_next_step_are_on_its_reserved_nodes_before_it_has_them() {
    let Some(site) = Site::up(3) else { return };
    restart(&site, "mode = \"drive\"\\n");
    let submit = |name: &str, script: &str| {
        let job = site.submit("alice", name, script, &[]);
        job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()))
    };
    let mesh = submit("mesh.sh", MESH);
    site.wait_for(&mesh, "COMPLETED");
    // Somebody has the node with the mesh: the next steps run on the two others.
    let busy = site.hold("node1");
    let solve = submit("solve.sh", SOLVE);
    let show = submit("show.sh", SHOW);
    site.wait_for(&solve, "RUNNING");
    let on = |data: &str, node: &str| {
        let shown = site.alice(&["tarn", "data", "show", data]);
        shown.contains(node)
    };
    // While its nodes compute, what exists of its input comes to both.
    site.wait("the mesh is on the reserved nodes", || {
        on("wing/mesh", "node2") && on("wing/mesh", "node3")
    });
    assert_eq!(site.state(&show), "PENDING");
    assert!(
        site.why("alice", &show)
            .contains("nodes are reserved for it: node2, node3")
    );
    let is_there = "what it reads is on its reserved nodes";
    let history = site.why("alice", &show);
    assert!(
        !history.contains(is_there),
        "the field is not made yet: {history}"
    );
    fs::write(site.home("alice").join("go"), "").expect("a file");
    site.wait_for(&show, "COMPLETED");
    let history = site.why("alice", &show);
    let at = |what: &str| {
        let found = history.find(what);
        found.unwrap_or_else(|| panic!("{what}: {history}\n{}", site.logs()))
    };
    // The field came to the node that did not make it when it was made, and the gate had nothing to bring.
    assert!(at(is_there) < at("its nodes: "), "{history}");
    let printed = site.home("alice").join(format!("slurm-{show}.out"));
    let printed = fs::read_to_string(printed).expect("its output");
    assert_eq!(
        printed.lines().collect::<Vec<_>>(),
        ["12000000"; 2],
        "{}",
        site.logs()
    );
    site.alice(&["scancel", &busy]);
}
