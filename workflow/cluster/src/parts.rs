//! The known parts, those that each node knows, and the replicas on each node. All of it grows with the parts
//! of the run (`bounds::MAX_PARTS` a version), none of it with their files.

use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::{AttemptSpec, Do};
use tarn_types::event::{Output, PriorInstance};
use tarn_types::hash::Hash;
use tarn_types::id::{InstanceId, NodeId, TierId};
use tarn_types::part::{PartInfo, PartRef, Place, StoreKey, Transfer};
use tarn_types::workflow::Workflow;

/// Bytes that a replica takes, by part, tier and key.
pub(crate) type StoredPartBytes = BTreeMap<(PartRef, TierId, StoreKey), u64>;
/// Which account of each part a node knows.
pub(crate) type Knows = BTreeMap<PartRef, u64>;

/// Parts. A newer commit of a part, or a hash that has become known, is a newer account of it.
#[derive(Debug, Default)]
pub(crate) struct RunPartTable {
    known: BTreeMap<PartRef, (PartInfo, u64)>,
    /// Keys that a newer commit of the part has replaced: at most one a commit.
    superseded: BTreeSet<(PartRef, StoreKey)>,
}

impl RunPartTable {
    pub(crate) fn get(&self, part: PartRef) -> Option<&PartInfo> {
        self.known.get(&part).map(|(info, _)| info)
    }

    /// Each part, with the keys of all its commits.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (PartRef, &StoreKey)> {
        let newest = self
            .known
            .iter()
            .map(|(part, (info, _))| (*part, &info.key));
        newest.chain(self.superseded.iter().map(|(part, key)| (*part, key)))
    }

    pub(crate) fn learn(&mut self, part: PartRef, info: PartInfo) {
        match self.known.get_mut(&part) {
            None => drop(self.known.insert(part, (info, 0))),
            Some((known, account)) => {
                if known.key != info.key {
                    self.superseded.insert((part, known.key.clone()));
                }
                if *known != info {
                    (*known, *account) = (info, *account + 1);
                }
            }
        }
    }

    pub(crate) fn hashed(&mut self, part: PartRef, hash: Hash) {
        if let Some(info) = self.get(part).filter(|i| i.hash != Some(hash)) {
            let mut info = info.clone();
            info.hash = Some(hash);
            self.learn(part, info);
        }
    }

    /// Those of the parts that a node does not know as they are; from now on it does.
    pub(crate) fn take_unsent_parts(
        &self,
        parts: impl IntoIterator<Item = PartRef>,
        knows: &mut Knows,
    ) -> Vec<(PartRef, PartInfo)> {
        let mut unsent = Vec::new();
        for part in parts {
            if let Some((info, account)) = self.known.get(&part)
                && knows.insert(part, *account) != Some(*account)
            {
                unsent.push((part, info.clone()));
            }
        }
        unsent
    }

    /// The parts of outputs that an instance has committed.
    pub(crate) fn committed(&mut self, instance: InstanceId, outputs: &[Output]) {
        for output in outputs {
            for (info, _) in &output.parts {
                self.learn(made(output, instance, info.seq), info.clone());
            }
        }
    }

    /// The parts that an instance takes over from an earlier run; those of them that are stored on nodes, with where.
    pub(crate) fn reused(
        &mut self,
        workflow: &Workflow,
        instance: InstanceId,
        prior: &PriorInstance,
    ) -> Vec<(PartRef, Place, StoreKey, u64)> {
        // An earlier run may have numbered datasets and versions otherwise: outputs go by their position.
        let Some(step) = workflow.steps.get(instance.step.at()) else {
            return Vec::new();
        };
        let makes = step.uses.iter().filter_map(|u| Some((u.data, u.makes?)));
        let makes: Vec<_> = makes.collect();
        let name = |(data, version), seq| PartRef {
            data,
            version,
            origin: instance.index,
            seq,
        };
        for (output, made) in prior.outputs.iter().zip(&makes) {
            for (info, _) in &output.parts {
                self.learn(name(*made, info.seq), info.clone());
            }
        }
        let held = prior.held.iter().filter_map(|(output, part, place)| {
            let (info, _) = prior
                .outputs
                .get(*output as usize)?
                .parts
                .get(*part as usize)?;
            let part = name(*makes.get(*output as usize)?, info.seq);
            Some((part, place.clone(), info.key.clone(), info.stored))
        });
        held.collect()
    }

    /// The node that holds most of the bytes that a transfer reads; `None` when all of them come from outside.
    pub(crate) fn most_of(&self, t: &Transfer) -> Option<NodeId> {
        let mut bytes: BTreeMap<NodeId, u64> = BTreeMap::new();
        for m in &t.parts {
            if let Place::Node(tier_ref) = m.from {
                *bytes.entry(tier_ref.node).or_default() += self.get(m.part).map_or(0, |i| i.bytes);
            }
        }
        let most = bytes.into_iter().rev().max_by_key(|(_, bytes)| *bytes);
        most.map(|(node, _)| node)
    }
}

/// A part of an output.
pub(crate) fn made(output: &Output, instance: InstanceId, seq: u32) -> PartRef {
    PartRef {
        data: output.data,
        version: output.version,
        origin: instance.index,
        seq,
    }
}

/// The parts that an order to `node` names. For an attempt, the first node gets all, another one those that it holds.
pub(crate) fn named(what: &Do, node: NodeId) -> Vec<PartRef> {
    match what {
        Do::Transfer(t) => t.parts.iter().map(|m| m.part).collect(),
        Do::Run(run) => in_views(run, node),
        Do::Evict { part, .. } => vec![*part],
        _ => Vec::new(),
    }
}

fn in_views(run: &AttemptSpec, node: NodeId) -> Vec<PartRef> {
    let leads = run.nodes.first().is_some_and(|s| s.node == node);
    let held = run.views.iter().flatten().flatten();
    let seen = held.filter(|h| leads || h.tier_ref.node == node);
    seen.map(|h| h.part).collect()
}
