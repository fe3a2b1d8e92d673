//! Tiers that this node lends to others, and those that it borrows. docs/internals/shared-namespace.md, "A borrowed tier".

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tarn_node::borrowed::{AttachPoint, AttachedPartition, attach_points};
use tarn_node::lent::{ExportedPartition, Terms};
use tarn_node::machine::{MachineError, TierSpec};
use tarn_node::{Local, ProviderAddress};
use tarn_proto::node::{Borrow, Brick, NodeReply};

use super::measure;

/// What a run has of such tiers on this node.
#[derive(Debug)]
pub(super) struct Loans {
    /// Where borrowed tiers can appear, or why none can be borrowed.
    grounds: Result<Vec<AttachPoint>, String>,
    state: Mutex<LoanTable>,
}

#[derive(Debug, Default)]
struct LoanTable {
    /// By tier and borrower.
    lent: BTreeMap<(PathBuf, String), Arc<ExportedPartition>>,
    /// By the tier's name; with the lender.
    borrowed: BTreeMap<String, (String, Arc<AttachedPartition>)>,
}

impl Loans {
    /// Of a node that may have to borrow; called while tarnd has one thread.
    pub(super) fn new(borrow: Option<&Borrow>, node: &str) -> Self {
        let grounds = match borrow {
            None => Ok(Vec::new()),
            Some(borrow) => grounds(borrow, node),
        };
        if let Err(why) = &grounds {
            tracing::warn!("no tier can be borrowed: {why}");
        }
        Self {
            grounds,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, LoanTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends part of a tier.
    pub(super) fn export_tier(&self, terms: Terms) -> Result<NodeReply, String> {
        let key = (terms.root.clone(), terms.borrower.clone());
        // One that is there would be in the way of another.
        drop(self.state().lent.remove(&key));
        let loan = ExportedPartition::begin(terms).map_err(|e| e.to_string())?;
        let ProviderAddress {
            host,
            port,
            user,
            password,
        } = loan.provider_address().clone();
        self.state().lent.insert(key, Arc::new(loan));
        Ok(NodeReply::Lent(Brick {
            host,
            port,
            user,
            password,
        }))
    }

    /// Takes a tier from another node; `gone` is told when it has gone.
    pub(super) fn borrow(
        &self,
        (node, tier, lender): (&str, &str, &str),
        brick: Brick,
        (bytes, state): (u64, &Path),
        gone: impl Fn(String) + Send + 'static,
    ) -> Result<NodeReply, String> {
        let grounds = self.grounds.as_ref().map_err(Clone::clone)?;
        let ground = grounds.iter().find(|g| g.tier == tier);
        let ground = ground.ok_or_else(|| format!("it has tier `{tier}` itself"))?;
        let provider_address = ProviderAddress {
            host: brick.host,
            port: brick.port,
            user: brick.user,
            password: brick.password,
        };
        drop(self.state().borrowed.remove(tier));
        let borrowed = AttachedPartition::begin(ground, node, provider_address, gone)
            .map_err(|e| e.to_string())?;
        let memory = measure::memory(state, node)?;
        let rates = borrowed.bandwidth(lender, bytes, &memory);
        let (read, write) = rates.map_err(|e: MachineError| e.to_string())?;
        let root = borrowed.root().to_owned();
        let named = (lender.to_owned(), Arc::new(borrowed));
        self.state().borrowed.insert(tier.to_owned(), named);
        Ok(NodeReply::Borrowed { root, read, write })
    }

    /// Why a borrowed tier has gone, if one has.
    pub(super) fn gone(&self) -> Option<String> {
        let all: Vec<_> = {
            let state = self.state();
            let all = state.borrowed.iter();
            all.map(|(tier, (lender, b))| (tier.clone(), lender.clone(), Arc::clone(b)))
                .collect()
        };
        all.into_iter()
            .find_map(|(tier, lender, borrowed)| Some(is_gone(&tier, &lender, &borrowed.gone()?)))
    }

    /// The world watches what is held of what is lent.
    pub(super) fn watched_by(&self, world: &Local) {
        self.state()
            .lent
            .values()
            .for_each(|loan| world.watch_export(loan));
    }

    /// Gives all back, and lends nothing any more.
    pub(super) fn end(&self) {
        let ended = std::mem::take(&mut *self.state());
        drop(ended.borrowed);
        drop(ended.lent);
    }
}

/// What is said of a tier that has gone.
pub(super) fn is_gone(tier: &str, lender: &str, why: &str) -> String {
    format!("its tier `{tier}`, which it borrows from {lender}, has gone: {why}")
}

fn grounds(borrow: &Borrow, node: &str) -> Result<Vec<AttachPoint>, String> {
    let tiers = borrow.tiers.iter().map(|t| t.parse());
    let tiers: Result<Vec<TierSpec>, MachineError> = tiers.collect();
    let tiers = tiers.map_err(|e| e.to_string())?;
    attach_points(&tiers, &measure::memory(&borrow.state, node)?.0).map_err(|e| e.to_string())
}
