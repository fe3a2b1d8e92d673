//! The results of earlier runs with which a run, or a plan, continues.

use crate::error::{CliResult, ExitWith};
use crate::print::message;
use crate::state;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tarn_journal::Catalogue;
use tarn_ports::Mover;
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::event::{PriorDest, PriorInstance};
use tarn_types::id::DataId;
use tarn_types::layout::{StateDir, TierDir};
use tarn_types::part::{Place, StoreKey};
use tarn_types::workflow::Workflow;

/// Keeps the results of earlier runs that can be seen to be there: only they count for a plan. Results on other machines are
/// believed to be there.
pub(crate) fn held_still(
    prior: &mut [PriorInstance],
    cluster: &Cluster,
    workspace: &str,
    state: &StateDir,
    elsewhere: bool,
) {
    let mover = crate::mover::trees();
    let mut dests: BTreeMap<PathBuf, BTreeSet<StoreKey>> = BTreeMap::new();
    let key = |p: &PriorInstance, output: u32, part: u32| {
        let output = p.outputs.get(output as usize)?;
        Some(output.parts.get(part as usize)?.0.key.clone())
    };
    for p in &*prior {
        for (output, part, place) in &p.held {
            if let (Place::External(dest), Some(key)) = (place, key(p, *output, *part)) {
                dests.entry(dest.clone()).or_default().insert(key);
            }
        }
    }
    for (dest, keys) in &mut dests {
        let all: Vec<StoreKey> = keys.iter().cloned().collect();
        let wanted: Vec<&StoreKey> = all.iter().collect();
        let there = tarn_node::destination_holds(state, workspace, dest, &wanted, &mover);
        let there: BTreeSet<StoreKey> = all
            .iter()
            .zip(there)
            .filter(|(_, there)| *there)
            .map(|(key, _)| key.clone())
            .collect();
        *keys = there;
    }
    for p in prior {
        let known = p.clone();
        p.held.retain(|(output, part, place)| {
            let Some(key) = key(&known, *output, *part) else {
                return false;
            };
            match place {
                Place::Node(tier_ref) if !elsewhere => {
                    let node = cluster.nodes.get(tier_ref.node.at());
                    let tier = node.and_then(|n| Some((n, n.tiers.get(tier_ref.tier.at())?)));
                    tier.is_some_and(|(node, tier)| {
                        let folder = TierDir::new(&tier.root, workspace, &node.name);
                        folder.part(&key).exists()
                    })
                }
                Place::External(dest) => dests.get(dest).is_some_and(|keys| keys.contains(&key)),
                _ => true,
            }
        });
    }
}

pub(crate) fn prior_dests(
    catalogue: &Catalogue,
    w: &Workflow,
    state: &StateDir,
    mover: &dyn Mover,
) -> CliResult<Vec<PriorDest>> {
    let rows = catalogue.dests(&w.name).exit(Exit::State)?;
    let workspace = state::workspace(&w.name, state);
    let prior = |(i, dataset): (usize, &tarn_types::workflow::Dataset)| {
        let dest = dataset.dest.as_ref()?;
        let row = rows
            .iter()
            .find(|r| r.dataset == dataset.name && r.path == *dest)?;
        let intact = tarn_node::destination_intact(state, &workspace, dest, mover);
        intact.then_some(PriorDest {
            data: DataId(i as u32),
            hash: row.hash,
        })
    };
    Ok(w.data.iter().enumerate().filter_map(prior).collect())
}

/// Says what somebody has taken out of a `dest`: it is put there again.
pub(crate) fn report_missing_dests(
    w: &Workflow,
    workspace: &str,
    state: &StateDir,
    mover: &dyn Mover,
) {
    for dataset in &w.data {
        let Some(dest) = &dataset.dest else { continue };
        let Some((path, others)) = tarn_node::destination_lacks(state, workspace, dest, mover)
        else {
            continue;
        };
        let more = match others {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        message!(
            "note: {}{more}, which an earlier run put there, is not there any more: dataset `{}` is delivered again, and made again \
             where nothing is left of it",
            dest.join(path).display(),
            dataset.name
        );
    }
}
