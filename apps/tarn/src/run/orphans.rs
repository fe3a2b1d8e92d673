//! `tarn data rm --orphans`: the data that killed runs have left in their workflows' folders on the tiers.
//!
//! It looks only at folders of this state folder's workflows, on every tier that any of their runs could use: on this machine the
//! tiers of runs on one machine, in an allocation those of its nodes. It skips a workflow with an active run. A replica in the
//! catalogue stays if it is to be kept, or if the workflow's newest run can still be resumed with it.

use super::fleet::Sweeper;
use super::kept;
use super::lock::lock;
use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::mover::trees;
use crate::print::message;
use crate::state::{self, open_catalogue};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tarn_journal::{Catalogue, RunRow, StoredAt, runs};
use tarn_mover::Trees;
use tarn_types::action::Outcome;
use tarn_types::codes::Exit;
use tarn_types::event::Start;
use tarn_types::layout::{StateDir, TierDir, drained_area};
use tarn_types::nodes::Swept;

/// The roots of tiers, where they are.
#[derive(Default)]
struct TierRoots {
    /// Of runs on one machine: this one, perhaps.
    here: BTreeSet<PathBuf>,
    /// Of nodes of allocations, by their names.
    nodes: BTreeMap<String, BTreeSet<PathBuf>>,
}

impl TierRoots {
    fn of(catalogue: &Catalogue, begun: &Start) -> CliResult<Self> {
        let mut roots = Self::default();
        let tiers = catalogue.tiers(&begun.workflow.name).exit(Exit::State)?;
        for (_, at) in tiers.into_iter().filter(|(w, _)| *w == begun.workspace) {
            match at {
                StoredAt::Node {
                    name,
                    root,
                    machine: true,
                    ..
                } => drop(roots.nodes.entry(name).or_default().insert(root)),
                StoredAt::Node { root, .. } => drop(roots.here.insert(root)),
                StoredAt::External(_) | StoredAt::Drained(_) => {}
            }
        }
        Ok(roots)
    }

    /// The folders in which steps of a run may have left checkpoints.
    fn checkpoints(&self, begun: &Start) -> BTreeSet<PathBuf> {
        let roots = self.here.iter().chain(self.nodes.values().flatten());
        let nodes = begun.cluster.nodes.iter();
        let folders = roots.flat_map(|root| {
            nodes.clone().map(|node| {
                let dir = TierDir::new(root, &begun.workspace, &node.name);
                dir.checkpoints().join(&begun.run)
            })
        });
        let staged = tarn_node::staged(&begun.workspace, &begun.run);
        folders.chain([staged]).collect()
    }
}

pub(crate) fn remove(globals: &Globals) -> CliResult {
    let state = state::here(globals)?;
    let runs = open_catalogue(&state)?.runs().exit(Exit::State)?;
    let names: BTreeSet<&str> = runs.iter().map(|r| r.workflow.as_str()).collect();
    let mut nodes = None;
    for name in names {
        let newest = runs::newest(&state, Some(name)).exit(Exit::State)?;
        if let Some(newest) = newest {
            of_workflow(&state, &state::started(&state, &newest.name)?, &mut nodes)?;
        }
    }
    Ok(Exit::Success)
}

/// `nodes`: those of the allocation that this is in, once they were needed.
fn of_workflow(
    state: &StateDir,
    begun: &Start,
    nodes: &mut Option<Option<Sweeper>>,
) -> CliResult<()> {
    let name = &begun.workflow.name;
    let _lock = match lock(state, name) {
        Err(e) if e.exit == Exit::Busy => {
            message!("{name}: a run is active, its data is its own");
            return Ok(());
        }
        lock => lock?,
    };
    let mut catalogue = open_catalogue(state)?;
    let left = kept::LeftReplicas::of(&catalogue, begun)?;
    let known = catalogue.runs().exit(Exit::State)?;
    let done = |r: &RunRow| r.name == begun.run && r.outcome == Some(Outcome::Done);
    let resumable = !known.iter().any(done);
    let roots = TierRoots::of(&catalogue, begun)?;
    let checkpoints = if resumable {
        roots.checkpoints(begun)
    } else {
        BTreeSet::new()
    };
    let mut protected = left.wanted(resumable.then_some(&begun.run));
    protected.extend(checkpoints.iter().cloned());
    let mut sweep = WorkflowSweep {
        begun,
        roots: &roots,
        protected,
        all: Swept::default(),
        looked: BTreeSet::new(),
    };
    sweep.sweep_here();
    if !roots.nodes.is_empty() {
        let nodes = match nodes {
            Some(nodes) => nodes,
            None => nodes.insert(Sweeper::here()?),
        };
        if let Some(nodes) = nodes {
            sweep.sweep_nodes(nodes, state);
        }
    }
    for problem in &sweep.all.trouble {
        message!("warning: {problem}");
    }
    left.swept(&mut catalogue, &sweep.looked, &roots.here, &sweep.all)?;
    sweep.print(left.staying(&sweep.all.left), &checkpoints);
    Ok(())
}

/// The removals of a workflow, place by place.
struct WorkflowSweep<'a> {
    begun: &'a Start,
    roots: &'a TierRoots,
    /// Folders that stay.
    protected: BTreeSet<PathBuf>,
    all: Swept,
    /// The nodes on which something was looked for.
    looked: BTreeSet<&'a str>,
}

impl WorkflowSweep<'_> {
    /// On this machine, and in the external store.
    fn sweep_here(&mut self) {
        let workspace = &self.begun.workspace;
        let roots = &self.roots.here;
        let here = tarn_node::sweep(workspace, roots, &self.protected, &Trees::new());
        add(&mut self.all, here);
        if let Some(external) = self.begun.workflow.external.as_deref() {
            let area = drained_area(external, workspace);
            let drained = tarn_node::sweep_drained(&area, workspace, &self.protected, &trees());
            add(&mut self.all, drained);
        }
    }

    fn sweep_nodes(&mut self, nodes: &Sweeper, state: &StateDir) {
        let name = &self.begun.workflow.name;
        let roots = &self.roots.nodes;
        let of = |node: &str| roots.get(node).cloned().unwrap_or_default();
        for (node, swept) in nodes.sweep(&self.begun.workspace, state, &of, &self.protected) {
            match (swept, roots.get_key_value(&node)) {
                (Ok(swept), Some((node, _))) => {
                    self.looked.insert(node);
                    add(&mut self.all, swept);
                }
                (Ok(_), None) => {}
                (Err(why), _) => message!("warning: {name}: nothing is removed from {node}: {why}"),
            }
        }
    }

    /// Prints the removed data, and the data that stays: `kept` replicas that are to be, and `resumable` ones.
    fn print(&self, (kept, resumable): (usize, usize), checkpoints: &BTreeSet<PathBuf>) {
        let name = &self.begun.workflow.name;
        message!("{name}: {} replicas removed", self.all.removed.len());
        if resumable > 0 {
            message!(
                "{name}: {resumable} replicas stay for `tarn resume` or the next `tarn run`; `tarn data rm DATASET` and then this removes them"
            );
        }
        if kept > 0 {
            message!("{name}: {kept} replicas stay that are to be kept; `tarn data ls` shows them");
        }
        for folder in self.all.left.iter().filter(|f| checkpoints.contains(*f)) {
            message!(
                "{name}: checkpoints stay in {} for `tarn resume`; the next `tarn run` removes them",
                folder.display()
            );
        }
        let nodes = self.roots.nodes.keys().map(String::as_str);
        let unseen: Vec<&str> = nodes.filter(|n| !self.looked.contains(n)).collect();
        if !unseen.is_empty() {
            message!(
                "{name}: runs were on {} too; run this inside an allocation that has them",
                unseen.join(", ")
            );
        }
    }
}

fn add(all: &mut Swept, mut more: Swept) {
    all.removed.append(&mut more.removed);
    all.left.append(&mut more.left);
    all.trouble.append(&mut more.trouble);
}
