//! Parts of tiers that this node exports to others, and those that it attaches. docs/internals/shared-namespace.md, "A borrowed tier".

use super::measure;
use anyhow::{Context, anyhow};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tarn_node::attached::{AttachPoint, AttachedPartition, attach_points};
use tarn_node::exported::{ExportedPartition, Terms};
use tarn_node::machine::{MachineError, TierSpec};
use tarn_node::{Local, ProviderAddress};
use tarn_proto::node::{Borrow, Brick, NodeReply};

/// The tiers of a run that this node exports or attaches.
#[derive(Debug)]
pub(super) struct RemoteTiers {
    /// The places where attached tiers can appear, or why none can be attached.
    attach_points: anyhow::Result<Vec<AttachPoint>>,
    state: Mutex<RemoteTierTable>,
}

#[derive(Debug, Default)]
struct RemoteTierTable {
    /// By tier and the node that attaches it.
    exported: BTreeMap<(PathBuf, String), Arc<ExportedPartition>>,
    /// By the tier's name; with the provider.
    attached: BTreeMap<String, (String, Arc<AttachedPartition>)>,
}

impl RemoteTiers {
    /// Of a node that may have to attach some; called while tarnd has one thread.
    pub(super) fn new(wanted: Option<&Borrow>, node: &str) -> Self {
        let attach_points = match wanted {
            None => Ok(Vec::new()),
            Some(wanted) => points_for(wanted, node),
        };
        if let Err(why) = &attach_points {
            tracing::warn!("no tier can be borrowed: {why}");
        }
        Self {
            attach_points,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, RemoteTierTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exports part of a tier.
    pub(super) fn export_tier(&self, terms: Terms) -> anyhow::Result<NodeReply> {
        let key = (terms.root.clone(), terms.borrower.clone());
        // One that is there would be in the way of another.
        drop(self.state().exported.remove(&key));
        let exported = ExportedPartition::begin(terms)?;
        let ProviderAddress {
            host,
            port,
            user,
            password,
        } = exported.provider_address().clone();
        self.state().exported.insert(key, Arc::new(exported));
        Ok(NodeReply::Exported(Brick {
            host,
            port,
            user,
            password,
        }))
    }

    /// Attaches a tier of another node; `gone` is called when it has gone.
    pub(super) fn attach_tier(
        &self,
        (node, tier, provider): (&str, &str, &str),
        brick: Brick,
        (bytes, state): (u64, &Path),
        gone: impl Fn(String) + Send + 'static,
    ) -> anyhow::Result<NodeReply> {
        let points = self
            .attach_points
            .as_ref()
            .map_err(|why| anyhow!("{why}"))?;
        let point = points.iter().find(|point| point.tier == tier);
        let point = point.with_context(|| format!("it has tier `{tier}` itself"))?;
        let provider_address = ProviderAddress {
            host: brick.host,
            port: brick.port,
            user: brick.user,
            password: brick.password,
        };
        drop(self.state().attached.remove(tier));
        let attached = AttachedPartition::begin(point, node, provider_address, gone)?;
        let remembered = measure::remembered(state, node)?;
        let (read, write) = attached.bandwidth(provider, bytes, &remembered)?;
        let root = attached.root().to_owned();
        let named = (provider.to_owned(), Arc::new(attached));
        self.state().attached.insert(tier.to_owned(), named);
        Ok(NodeReply::Borrowed { root, read, write })
    }

    /// Why an attached tier has gone, if one has.
    pub(super) fn gone(&self) -> Option<String> {
        let all: Vec<_> = {
            let state = self.state();
            let all = state.attached.iter();
            all.map(|(tier, (provider, a))| (tier.clone(), provider.clone(), Arc::clone(a)))
                .collect()
        };
        all.into_iter().find_map(|(tier, provider, attached)| {
            Some(is_gone(&tier, &provider, &attached.gone()?))
        })
    }

    /// The world watches the use of exported partitions.
    pub(super) fn watched_by(&self, world: &Local) {
        self.state()
            .exported
            .values()
            .for_each(|exported| world.watch_export(exported));
    }

    /// Detaches all, and exports nothing any more.
    pub(super) fn end(&self) {
        let ended = std::mem::take(&mut *self.state());
        drop(ended.attached);
        drop(ended.exported);
    }
}

/// The message about a tier that has gone.
pub(super) fn is_gone(tier: &str, provider: &str, why: &str) -> String {
    format!("its tier `{tier}`, which it borrows from {provider}, has gone: {why}")
}

fn points_for(wanted: &Borrow, node: &str) -> anyhow::Result<Vec<AttachPoint>> {
    let tiers = wanted.tiers.iter().map(|t| t.parse());
    let tiers: Result<Vec<TierSpec>, MachineError> = tiers.collect();
    let remembered = measure::remembered(&wanted.state, node)?;
    Ok(attach_points(&tiers?, &remembered.0)?)
}
