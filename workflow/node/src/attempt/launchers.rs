//! Launchers of MPI programs (mpirun, mpiexec, srun) find in the environment of a step: its nodes, and how to reach them in the step's
//! view. A rank that they would start by Slurm, outside of that view, would not see the step's data.

use crate::attempt::node_context::NodeContext;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use tarn_types::action::AttemptSpec;

type Env = BTreeMap<OsString, OsString>;

/// The argument that makes tarn start a rank; with it tarn is in the lists of launchers.
pub const RANK_ARGUMENT: &str = "__rank";

/// Variables that only a program of an outer launcher has.
const RANK: [&str; 6] = [
    "OMPI_COMM_WORLD_",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_FD",
    "PRTE_LAUNCHED",
];
/// Variables that such a program gets from its launcher: an MPI program of the step would believe that it belongs to that
/// launcher.
const LAUNCHERS: [&str; 7] = [
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "HYDRA_",
    "HYDI_",
    "MPI_LOCAL",
];
/// Settings that would make a launcher query Slurm for nodes, or start something by it: salloc exports some.
const BY_SLURM: [&str; 7] = [
    "HYDRA_BOOTSTRAP",
    "HYDRA_LAUNCHER",
    "HYDRA_RMK",
    "HYDRA_HOST",
    "I_MPI_HYDRA_BOOTSTRAP",
    "I_MPI_HYDRA_RMK",
    "I_MPI_HYDRA_HOST",
];

/// Takes from the caller's environment what is not for launchers in a step. A user's own settings (`OMPI_MCA_...`) stay.
pub(crate) fn clean(env: &mut Env) {
    let begins = |name: &OsStr, with: &[&str]| {
        let name = name.as_encoded_bytes();
        with.iter().any(|w| name.starts_with(w.as_bytes()))
    };
    let is_rank = env.keys().any(|name| begins(name, &RANK));
    let goes = |name: &OsStr| begins(name, &BY_SLURM) || (is_rank && begins(name, &LAUNCHERS));
    env.retain(|name, _| !goes(name));
}

/// The text of that file: `node:ranks`, of `node slots=ranks`. A step of one node has its ranks here, however this host is called.
pub(crate) fn hydra_text(hosts: &str, is_alone: bool) -> String {
    let lines = hosts.lines().filter_map(|line| line.split_once(" slots="));
    let line = |(node, ranks): (&str, &str)| match is_alone {
        true => format!("localhost:{ranks}\n"),
        false => format!("{node}:{ranks}\n"),
    };
    lines.map(line).collect()
}

/// Adds the settings that launchers need. The user's settings for placement, binding and networks stay.
pub(crate) fn add(env: &mut Env, shared: &NodeContext, run: &AttemptSpec) {
    set_start_by_exec(env, &shared.helper);
    let is_multi_node = run.nodes.len() > 1;
    let nodes = run.nodes.iter();
    let hosts: BTreeSet<_> = nodes
        .filter_map(|s| Some(shared.cluster.nodes.get(s.node.at())?.host))
        .collect();
    let mut wished = Vec::from(MAPPING);
    if is_multi_node {
        wished.extend(UNBOUND);
    }
    if is_multi_node && hosts.len() <= 1 {
        wished.extend(ONE_MACHINE);
    }
    if rustix::process::geteuid().is_root() {
        wished.extend(AS_ROOT);
    }
    for (name, value) in wished {
        env.entry(name.into()).or_insert_with(|| value.into());
    }
    if is_multi_node {
        let own = env.get(OsStr::new(INTEL_TOOLS)).cloned();
        if let Some(tools) = intel_tools(&shared.helper, own) {
            env.insert(INTEL_TOOLS.into(), tools);
        }
    }
}

/// The layout of ranks, if the user sets none.
const MAPPING: [(&str, &str); 3] = [
    // Several nodes on one machine are not "oversubscribed" however few its cores are.
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    (
        "PRTE_MCA_rmaps_default_mapping_policy",
        "slot:oversubscribe",
    ),
    // Those of PMIx 5 that share memory by a file find it on the machine alone, where a job's tasks have a /tmp of their own.
    ("PMIX_MCA_gds", "hash"),
];
/// Ranks of several nodes are bound to no cores.
const UNBOUND: [(&str, &str); 2] = [
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
];
/// Networks of a step whose nodes are all on one machine: the only network that surely is there. PRRTE never uses it. UCX chooses:
/// since 1.19 it reaches nobody by this one alone.
const ONE_MACHINE: [(&str, &str); 5] = [
    ("OMPI_MCA_oob_tcp_if_include", "lo"),
    ("OMPI_MCA_btl_tcp_if_include", "lo"),
    ("HYDRA_IFACE", "lo"),
    ("I_MPI_HYDRA_IFACE", "lo"),
    // UCX takes ranks on one machine for neighbours, and looks for their process numbers: those of two nodes do not see each other's.
    ("UCX_TLS", "tcp,self"),
];
/// Settings that root needs to start programs at all.
const AS_ROOT: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// Sets what makes every launcher start its ranks by `tarn exec`, over whatever the user has set.
fn set_start_by_exec(env: &mut Env, helper: &Path) {
    let mut agent = OsString::from(helper);
    agent.push(" exec");
    let needed: [(&str, &OsStr); 18] = [
        // Open MPI 4, and PRRTE, which is mpirun of Open MPI 5 and later.
        ("OMPI_MCA_plm", "rsh".as_ref()),
        ("OMPI_MCA_plm_rsh_agent", &agent),
        ("PRTE_MCA_plm", "ssh".as_ref()),
        ("PRTE_MCA_plm_ssh_agent", &agent),
        // A tree of daemons would need the agent inside daemons, where `tarn exec` reaches nobody else.
        ("OMPI_MCA_plm_rsh_no_tree_spawn", "1".as_ref()),
        ("PRTE_MCA_plm_ssh_no_tree_spawn", "1".as_ref()),
        // The host file has this step's ranks; the allocation that mpirun would query has everything else.
        ("OMPI_MCA_ras", "^slurm".as_ref()),
        ("PRTE_MCA_ras", "^slurm".as_ref()),
        // Hydra, which is mpiexec of MPICH, and that of Intel MPI.
        ("HYDRA_BOOTSTRAP", "rsh".as_ref()),
        ("HYDRA_BOOTSTRAP_EXEC", helper.as_os_str()),
        ("HYDRA_LAUNCHER_EXTRA_ARGS", "exec".as_ref()),
        ("HYDRA_RMK", "user".as_ref()),
        // Ranks have the environment of their node's daemon, which `tarn exec` has made: TARN_NODE is theirs.
        ("HYDRA_ENV", "none".as_ref()),
        ("I_MPI_HYDRA_BOOTSTRAP", "rsh".as_ref()),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC", helper.as_os_str()),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "exec".as_ref()),
        ("I_MPI_HYDRA_RMK", "user".as_ref()),
        ("I_MPI_HYDRA_BRANCH_COUNT", "0".as_ref()),
    ];
    env.extend(needed.map(|(name, value)| (name.into(), value.into())));
}

/// Programs by which mpirun of Intel MPI starts ranks. It gives all of them the environment that it has itself, whatever their node's
/// daemon has: no variable changes that.
const INTEL_TOOLS: &str = "I_MPI_GTOOL";

/// `tarn __rank` for all ranks, before what a user has set; none where that list cannot have its path.
fn intel_tools(helper: &Path, own: Option<OsString>) -> Option<OsString> {
    let separates = |b: &u8| b.is_ascii_whitespace() || b":;=@,\"'".contains(b);
    if helper.as_os_str().as_encoded_bytes().iter().any(separates) {
        return None;
    }
    let mut tools = OsString::from(helper);
    tools.push(format!(" {RANK_ARGUMENT}:all"));
    if let Some(own) = own.filter(|own| !own.is_empty()) {
        tools.push(";");
        tools.push(own);
    }
    Some(tools)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(names: &[&str]) -> Vec<String> {
        let pairs = names
            .iter()
            .map(|n| (OsString::from(n), OsString::from("x")));
        let mut env: Env = pairs.collect();
        clean(&mut env);
        env.into_keys().map(|n| n.into_string().unwrap()).collect()
    }

    #[test]
    fn settings_stay_and_what_an_outer_launcher_has_set_goes() {
        let own = ["OMPI_MCA_btl_tcp_if_include", "PMIX_MCA_gds", "PRTE_MCA_x"];
        assert_eq!(cleaned(&own), own);
        let salloc = [
            "HYDRA_BOOTSTRAP",
            "HYDRA_LAUNCHER_EXTRA_ARGS",
            "HYDRA_TOPOLIB",
            "I_MPI_HYDRA_BOOTSTRAP",
        ];
        assert_eq!(cleaned(&salloc), ["HYDRA_TOPOLIB"]);
        let rank = [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_MCA_ess_base_jobid",
            "PMIX_RANK",
            "PMI_FD",
            "HOME",
        ];
        assert_eq!(cleaned(&rank), ["HOME"]);
        assert_eq!(cleaned(&["PMI_FD", "HYDRA_TOPOLIB"]), [""; 0]);
    }

    #[test]
    fn ranks_of_intel_mpi_begin_with_what_tells_them_their_node() {
        let tools = |path: &str, own: Option<&str>| {
            let tools = intel_tools(Path::new(path), own.map(OsString::from));
            tools.map(|t| t.into_string().unwrap())
        };
        let alone = "/opt/tarn/bin/tarn __rank:all";
        assert_eq!(tools("/opt/tarn/bin/tarn", None).unwrap(), alone);
        assert_eq!(tools("/opt/tarn/bin/tarn", Some("")).unwrap(), alone);
        let both = tools("/opt/tarn/bin/tarn", Some("vtune:0-1")).unwrap();
        assert_eq!(both, format!("{alone};vtune:0-1"));
        assert_eq!(tools("/opt/my tarn/tarn", None), None);
    }

    #[test]
    fn hydra_has_a_host_file_of_its_own() {
        let hosts = "n0 slots=3\nn1 slots=1\n";
        assert_eq!(hydra_text(hosts, false), "n0:3\nn1:1\n");
        assert_eq!(hydra_text("n0 slots=3\n", true), "localhost:3\n");
        let path = crate::helper::exec_env::hydra_hosts(Path::new("/w/hosts"));
        assert_eq!(path, Path::new("/w/hosts.hydra"));
    }
}
