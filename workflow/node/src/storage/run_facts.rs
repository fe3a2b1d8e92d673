//! The facts of a run, fixed when its world is built: its names, its workflow and cluster, and its paths.

use crate::storage::stage;
use crate::storage::store::{failure, read_manifest, sealed_estimate, stored_estimate};
use std::path::PathBuf;
use tarn_types::action::AttemptSpec;
use tarn_types::cluster::{Cluster, Node, Tier};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::{DataId, NodeId, TierId, TierRef};
use tarn_types::layout::{StateDir, TierDir, drained_part};
use tarn_types::manifest::Manifest;
use tarn_types::nodes::OwnedNodes;
use tarn_types::part::{Place, StoreKey};
use tarn_types::workflow::{Dataset, Workflow};

/// A run as its world knows it. Nothing of it changes.
pub(crate) struct RunFacts {
    pub(crate) run: String,
    pub(crate) workspace: String,
    pub(crate) workflow: Workflow,
    pub(crate) cluster: Cluster,
    /// Which of its nodes this world has itself.
    pub(crate) own: OwnedNodes,
    pub(crate) state: StateDir,
}

impl RunFacts {
    pub(crate) fn dataset(&self, data: DataId) -> Result<&Dataset, RunError> {
        self.workflow.data.get(data.at()).ok_or_else(|| {
            failure(
                RunErrorKind::Io,
                format!("there is no dataset {data} in this workflow"),
            )
        })
    }

    /// The size of a replica of a part of this dataset on a tier.
    pub(crate) fn estimate(&self, data: DataId, manifest: &Manifest) -> u64 {
        match self.dataset(data) {
            Ok(dataset) if dataset.encrypt => sealed_estimate(manifest),
            _ => stored_estimate(manifest),
        }
    }

    pub(crate) fn tier_name(&self, tier_ref: TierRef) -> Option<&str> {
        let node = self.cluster.nodes.get(tier_ref.node.at())?;
        Some(&node.tiers.get(tier_ref.tier.at())?.name)
    }

    pub(crate) fn node_name(&self, node: NodeId) -> String {
        let node_of = self.cluster.nodes.get(node.at());
        node_of.map_or_else(|| node.to_string(), |n| n.name.clone())
    }

    /// The folder of this workflow on a tier of a node.
    pub(crate) fn tier_dir(&self, tier_ref: TierRef) -> Result<TierDir, RunError> {
        let node = self.cluster.nodes.get(tier_ref.node.at());
        let found = node.and_then(|n| Some((n, n.tiers.get(tier_ref.tier.at())?)));
        let (node, tier) = found.ok_or_else(|| {
            failure(
                RunErrorKind::Io,
                format!(
                    "there is no tier {} of node {} in this cluster",
                    tier_ref.tier, tier_ref.node
                ),
            )
        })?;
        Ok(TierDir::new(&tier.root, &self.workspace, &node.name))
    }

    /// The work folder of an attempt on a node.
    pub(crate) fn work_folder(
        &self,
        run: &AttemptSpec,
        tier_ref: TierRef,
    ) -> Result<PathBuf, RunError> {
        Ok(self
            .tier_dir(tier_ref)?
            .work()
            .join(format!("{}.{}", run.instance, run.attempt)))
    }

    /// The file for an attempt's output.
    pub(crate) fn log_path(&self, run: &AttemptSpec) -> PathBuf {
        let name = self
            .workflow
            .steps
            .get(run.instance.step.at())
            .map_or("step", |s| s.name.as_str());
        let instance = format!("{name}-{}", run.instance.index);
        self.state.step_log(&self.run, &instance, run.attempt)
    }

    /// The path of a drained part.
    pub(crate) fn drained(&self, key: &StoreKey) -> Result<PathBuf, RunError> {
        let external = self.workflow.external.as_deref().ok_or_else(|| {
            failure(
                RunErrorKind::Io,
                "the workflow has no `external` to drain to; add `external = DIR` at its top",
            )
        })?;
        Ok(drained_part(external, &self.workspace, key))
    }

    /// The file of a part's manifest.
    pub(crate) fn manifest_file(&self, key: &StoreKey) -> PathBuf {
        self.state.manifest(&self.workspace, key)
    }

    pub(crate) fn manifest(&self, key: &StoreKey) -> Result<Manifest, RunError> {
        read_manifest(&self.manifest_file(key))
    }

    /// The tiers of the own nodes.
    pub(crate) fn own_tiers(&self) -> impl Iterator<Item = (TierRef, &Node, &Tier)> {
        let nodes = (0..).map(NodeId).zip(&self.cluster.nodes);
        let own = nodes.filter(|(n, _)| self.own.has(*n));
        own.flat_map(|(node, n)| {
            let tiers = (0..).map(TierId).zip(&n.tiers);
            tiers.map(move |(tier, t)| (TierRef { node, tier }, n, t))
        })
    }

    /// Whether what is no node's is this world's: the sources, what is remembered of them, the drained area, manifests
    /// that nobody needs. Of the worlds of a run it is one: that of one machine, or the one without nodes.
    pub(crate) fn is_home(&self) -> bool {
        match &self.own {
            OwnedNodes::All => true,
            OwnedNodes::Some(nodes) => nodes.is_empty(),
        }
    }

    /// The folder below which every step finds its data: `$TARN_<dataset>` is `<this>/<dataset>`. Nodes of several machines
    /// have the same tiers: it is the same path on all.
    pub(crate) fn stage(&self) -> Option<PathBuf> {
        let (_, _, tier) = self.own_tiers().next()?;
        Some(stage::folder(&tier.root, &self.workspace))
    }

    pub(crate) fn place_name(&self, place: &Place) -> String {
        match place {
            Place::Node(tier_ref) => self.cluster.nodes.get(tier_ref.node.at()).map_or_else(
                || tier_ref.node.to_string(),
                |n| format!("node `{}`", n.name),
            ),
            Place::Source => "the source".into(),
            Place::External(path) => path.display().to_string(),
            Place::Drained => "the drained area".into(),
        }
    }
}
