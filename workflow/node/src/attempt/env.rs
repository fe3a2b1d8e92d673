//! The environment of a step.

use crate::attempt::jobs::describe;
use crate::attempt::launchers;
use crate::attempt::node_context::NodeContext;
use crate::attempt::partitions::SeenPartition;
use crate::helper::exec_env::{EXEC_DIRS, host_files, own_paths};
use crate::storage::checkpoint_folders::StepCheckpointView;
use crate::storage::run_facts::RunFacts;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use tarn_ports::STEP_SOCKET;
use tarn_types::action::AttemptSpec;
use tarn_types::workflow::Step;

/// The paths of one node of a step that its environment names.
pub(crate) struct Paths<'a> {
    /// Dataset name and folder.
    pub(crate) data: &'a BTreeMap<String, PathBuf>,
    pub(crate) scratch: &'a Path,
    pub(crate) hostfile: &'a Path,
    /// Only of a step that resumes from them.
    pub(crate) checkpoints: Option<&'a StepCheckpointView>,
    pub(crate) partitions: &'a [SeenPartition],
    /// By which it has those that are on other machines too.
    pub(crate) socket: Option<&'a Path>,
    /// Only for steps of several nodes.
    pub(crate) exec: Option<&'a Path>,
}

/// The environment of a step on the node named `node`.
pub(crate) fn environment(
    shared: &NodeContext,
    step: &Step,
    run: &AttemptSpec,
    node: &str,
    paths: &Paths<'_>,
) -> Vec<(OsString, OsString)> {
    let mut env: BTreeMap<OsString, OsString> = shared.caller_env.iter().cloned().collect();
    // Those of an outer step.
    env.retain(|name, _| !name.as_encoded_bytes().starts_with(b"TARN_"));
    launchers::clean(&mut env);
    env.entry("OMP_NUM_THREADS".into())
        .or_insert_with(|| step.cores.to_string().into());
    for (name, value) in &step.env {
        let value = match &run.item {
            Some(item) => value.replace("{item}", item),
            None => value.clone(),
        };
        env.insert(name.into(), value.into());
    }
    let path = search_path(
        env.get(OsStr::new("PATH")),
        &shared.workflow.folder,
        &shared.helper,
    );
    env.insert("PATH".into(), path);
    launchers::add(&mut env, shared, run);
    let files = host_files(paths.hostfile);
    env.extend(files.map(|(name, path)| (name.into(), path)));
    if let Some(exec) = paths.exec {
        let own = own_paths(paths.hostfile, exec);
        env.extend(own.map(|(name, path)| (name.into(), path)));
        env.insert(EXEC_DIRS.into(), exec_folders(shared, run));
    }
    let attempt = (step, run);
    describe(&mut env, &shared.jobs, shared, attempt, node, paths.scratch);
    add_own(&mut env, shared, attempt, node, paths);
    env.into_iter().collect()
}

/// Adds tarn's own variables for a step, which begin with `TARN_`, and its scratch folder.
fn add_own(
    env: &mut BTreeMap<OsString, OsString>,
    shared: &RunFacts,
    (step, run): (&Step, &AttemptSpec),
    node: &str,
    paths: &Paths<'_>,
) {
    let mut set = |name: &str, value: &OsStr| {
        env.insert(format!("TARN_{name}").into(), value.into());
    };
    for (name, folder) in paths.data {
        set(name, folder.as_os_str());
    }
    let names: Vec<&str> = paths.data.keys().map(String::as_str).collect();
    set("DATASETS", names.join(" ").as_ref());
    set("STEP", step.name.as_ref());
    set("RUN", shared.run.as_ref());
    set("NODE", node.as_ref());
    set("NODES", run.nodes.len().to_string().as_ref());
    set("TASKS", step.tasks.to_string().as_ref());
    set("CORES", step.cores.to_string().as_ref());
    set("ATTEMPT", run.attempt.to_string().as_ref());
    set("HOSTFILE", paths.hostfile.as_os_str());
    set("SCRATCH", paths.scratch.as_os_str());
    set("WORKFLOW_DIR", shared.workflow.folder.as_os_str());
    if let Some(kept) = paths.checkpoints {
        set("CHECKPOINTS", kept.folder.as_os_str());
        if let Some(memory) = &kept.memory {
            set("PHX_TIER", kept.folder.as_os_str());
            set("PHX_MEMORY", memory.as_os_str());
            set("PHX_RUN", kept.name.as_ref());
        }
    }
    for partition in paths.partitions {
        let names = partition.names.iter().map(|name| name.as_os_str());
        let names: Vec<&OsStr> = names.collect();
        set(
            &format!("PARTITION_{}", partition.name),
            &names.join(OsStr::new(",")),
        );
        if let Some(block) = partition.block {
            let name = format!("BLOCK_{}", partition.name);
            set(&name, block.to_string().as_ref());
        }
    }
    if let Some(item) = &run.item {
        set("ITEM", item.as_ref());
    }
    if let Some(socket) = paths.socket {
        env.insert(STEP_SOCKET.into(), socket.into());
    }
    env.insert("TMPDIR".into(), paths.scratch.into());
}

/// The workflow's folder, then the usual places, then tarn's own folder (for `tarn exec`).
fn search_path(usual: Option<&OsString>, workflow: &Path, helper: &Path) -> OsString {
    let mut path = OsString::from(workflow);
    let usual = usual
        .cloned()
        .unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    for more in [Some(usual), helper.parent().map(OsString::from)]
        .into_iter()
        .flatten()
    {
        path.push(":");
        path.push(more);
    }
    path
}

fn exec_folders(shared: &RunFacts, run: &AttemptSpec) -> OsString {
    let mut lines = OsString::new();
    for tier_ref in &run.nodes {
        let node = shared.cluster.nodes.get(tier_ref.node.at());
        if let (Some(node), Ok(work)) = (node, shared.work_folder(run, *tier_ref)) {
            lines.push(format!("{} ", node.name));
            lines.push(work.join("exec"));
            lines.push("\n");
        }
    }
    lines
}

/// The host file: the ranks of each node, in blocks; a node without ranks has no line.
pub(crate) fn hostfile(step: &Step, nodes: &[String]) -> String {
    let mut text = String::new();
    for (at, name) in (0u32..).zip(nodes) {
        let ranks = (0..step.tasks)
            .filter(|r| step.node_of_rank(*r) == at)
            .count();
        if ranks > 0 {
            text.push_str(&format!("{name} slots={ranks}\n"));
        }
    }
    text
}
