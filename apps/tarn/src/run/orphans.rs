//! `tarn data rm --orphans`: what runs that were killed have left in their workflows' folders on the tiers.
//!
//! Only folders of this state folder's workflows are looked at, on every tier that any of their runs could use: on this machine
//! those of runs on one machine, in an allocation those of its nodes; and none of a workflow that a run is active of. What the
//! catalogue lists stays if it is to be kept, or if the workflow's newest run can still be resumed with it.

use super::allocation::Sweeper;
use super::{kept, lock};
use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::mover::trees;
use crate::print::say;
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

    /// Where steps of a run may have left checkpoints.
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
            say!("{name}: a run is active, its data is its own");
            return Ok(());
        }
        lock => lock?,
    };
    let mut catalogue = open_catalogue(state)?;
    let roots = TierRoots::of(&catalogue, begun)?;
    let left = kept::LeftReplicas::of(&catalogue, begun)?;
    let known = catalogue.runs().exit(Exit::State)?;
    let done = |r: &RunRow| r.name == begun.run && r.outcome == Some(Outcome::Done);
    let resumable = !known.iter().any(done);
    let mut protected = left.wanted(resumable.then_some(&begun.run));
    let checkpoints = match resumable {
        true => roots.checkpoints(begun),
        false => BTreeSet::new(),
    };
    protected.extend(checkpoints.iter().cloned());
    let mut all = tarn_node::sweep(&begun.workspace, &roots.here, &protected, &Trees::new());
    if let Some(external) = begun.workflow.external.as_deref() {
        let area = drained_area(external, &begun.workspace);
        add(
            &mut all,
            tarn_node::sweep_drained(&area, &begun.workspace, &protected, &trees()),
        );
    }
    let mut looked: BTreeSet<&str> = BTreeSet::new();
    if !roots.nodes.is_empty() {
        let nodes = match nodes {
            Some(nodes) => nodes,
            None => nodes.insert(Sweeper::here()?),
        };
        if let Some(nodes) = nodes {
            let of = |node: &str| roots.nodes.get(node).cloned().unwrap_or_default();
            for (node, swept) in nodes.sweep(&begun.workspace, state, &of, &protected) {
                match (swept, roots.nodes.get_key_value(&node)) {
                    (Ok(swept), Some((node, _))) => {
                        looked.insert(node);
                        add(&mut all, swept);
                    }
                    (Ok(_), None) => {}
                    (Err(why), _) => say!("warning: {name}: nothing is removed from {node}: {why}"),
                }
            }
        }
    }
    for problem in &all.trouble {
        say!("warning: {problem}");
    }
    left.swept(&mut catalogue, &looked, &roots.here, &all)?;
    say!("{name}: {} replicas removed", all.removed.len());
    let (kept, resumable) = left.staying(&all.left);
    if resumable > 0 {
        say!(
            "{name}: {resumable} replicas stay for `tarn resume` or the next `tarn run`; `tarn data rm DATASET` and then this removes them"
        );
    }
    if kept > 0 {
        say!("{name}: {kept} replicas stay that are to be kept; `tarn data ls` shows them");
    }
    for folder in all.left.iter().filter(|f| checkpoints.contains(*f)) {
        say!(
            "{name}: checkpoints stay in {} for `tarn resume`; the next `tarn run` removes them",
            folder.display()
        );
    }
    let unseen = roots.nodes.keys().filter(|n| !looked.contains(n.as_str()));
    let unseen: Vec<&str> = unseen.map(String::as_str).collect();
    if !unseen.is_empty() {
        say!(
            "{name}: runs were on {} too; run this inside an allocation that has them",
            unseen.join(", ")
        );
    }
    Ok(())
}

fn add(all: &mut Swept, mut more: Swept) {
    all.removed.append(&mut more.removed);
    all.left.append(&mut more.left);
    all.trouble.append(&mut more.trouble);
}
