//! Hands each order of the engine to its performer.

use crate::dispatch::{
    ActionPerformer, DispatchedAttempt, DispatchedTransfer, PendingEngineEvent, nodes_of, on,
};
use crate::parts::named;
use crate::world::AllocationWorld;
use std::collections::BTreeSet;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tarn_ports::{World, WorldError};
use tarn_proto::node::NodeCommand;
use tarn_types::action::{Action, AttemptSpec, Do};
use tarn_types::event::{AttemptOutcome, Event, RunError, RunErrorKind, Usage};
use tarn_types::id::{InstanceId, NodeId};
use tarn_types::nodes::AttemptId;
use tarn_types::part::{Place, Transfer};

impl AllocationWorld {
    pub(crate) fn order(&mut self, action: &Action) -> Result<(), WorldError> {
        match &action.what {
            Do::List { data } => {
                self.under_way.listing.insert(*data);
                self.hand(ActionPerformer::Home, action)
            }
            Do::Transfer(t) => self.transfer(action, t),
            Do::Run(run) => self.run(action, run),
            Do::Evict { part, key, at } => {
                let by = match on(at) {
                    None => ActionPerformer::Home,
                    // An eviction on a lost node needs no reply.
                    Some(n) if !self.is_up(n) => return Ok(()),
                    Some(n) => ActionPerformer::Node(n),
                };
                let evicting = &mut self.under_way.evicting;
                let keys = evicting.entry((*part, at.clone())).or_default();
                keys.push_back(key.clone());
                self.hand(by, action)
            }
            Do::Abandon { id } if self.abandon_queued(*id) => Ok(()),
            Do::Abandon { id } => match self.under_way.moving.get_mut(id) {
                Some(moving) => {
                    moving.abandoned.get_or_insert_with(Instant::now);
                    let by = moving.by;
                    self.hand(by, action)
                }
                None => Ok(()),
            },
            Do::Stop { instance, attempt } => {
                let running = self.under_way.running.get(&(*instance, *attempt));
                match running.and_then(|r| r.nodes.first()) {
                    Some(first) => self.hand(ActionPerformer::Node(*first), action),
                    None => Ok(()),
                }
            }
            Do::Reuse { instance, prior } => {
                self.reuse(*instance, *prior);
                self.all(action)
            }
            // Of a lost node the engine knows that nothing comes from there.
            Do::CopyImage { to, .. } if !self.is_up(to.node) => Ok(()),
            Do::CopyImage { to, .. } => self.hand(ActionPerformer::Node(to.node), action),
            Do::Forget { at, .. } | Do::Discard { at, .. } => {
                let nodes: BTreeSet<NodeId> = at.iter().map(|s| s.node).collect();
                for node in nodes
                    .into_iter()
                    .filter(|n| self.is_up(*n))
                    .collect::<Vec<_>>()
                {
                    self.hand(ActionPerformer::Node(node), action)?;
                }
                Ok(())
            }
            Do::Finish { .. } => self.all(action),
            Do::Assign { .. } | Do::Unassign { .. } | Do::Note { .. } | Do::Cache { .. } => Ok(()),
        }
    }

    /// Hands an order out, after what there is to know of the parts that it names.
    pub(crate) fn hand(&mut self, by: ActionPerformer, action: &Action) -> Result<(), WorldError> {
        match by {
            ActionPerformer::Home => {
                let names = named(&action.what, NodeId(u32::MAX));
                let unsent = self.parts.take_unsent_parts(names, &mut self.home_knows);
                if !unsent.is_empty() {
                    self.home.know(unsent)?;
                }
                self.home.perform(action)
            }
            ActionPerformer::Node(n) => {
                self.inform(n, &action.what);
                self.send_command(n, NodeCommand::Do(action.clone()));
                Ok(())
            }
        }
    }

    fn inform(&mut self, n: NodeId, of: &Do) {
        let names = named(of, n);
        let Some(node) = self.node_table.nodes.get_mut(n.at()) else {
            return;
        };
        let unsent = self.parts.take_unsent_parts(names, &mut node.knows);
        if !unsent.is_empty() {
            self.send_command(n, NodeCommand::Know(unsent));
        }
    }

    fn all(&mut self, action: &Action) -> Result<(), WorldError> {
        for n in self.up().collect::<Vec<_>>() {
            self.send_command(n, NodeCommand::Do(action.clone()));
        }
        self.home.perform(action)
    }

    fn transfer(&mut self, action: &Action, t: &Transfer) -> Result<(), WorldError> {
        if let Some(lost) = nodes_of(t).find(|n| !self.is_up(*n)).as_ref() {
            let event = self.transfer_lost(t, *lost);
            self.end_transfer(t, event);
            return Ok(());
        }
        if self.chains.is_broken(t) {
            self.fail_without_source(t);
            return Ok(());
        }
        let by = match &t.to {
            Place::Node(tier_ref) => ActionPerformer::Node(tier_ref.node),
            Place::Source | Place::External(_) | Place::Drained => self
                .parts
                .most_of(t)
                .map_or(ActionPerformer::Home, ActionPerformer::Node),
        };
        let moving = DispatchedTransfer {
            order: t.clone(),
            by,
            began: wall_clock(),
            cut: None,
            abandoned: None,
        };
        self.under_way.moving.insert(t.id, moving);
        // A transfer that reads a node's replica has nothing to do with the external store.
        if self.chains.ordered(action, t) || self.waits_for_store(action, t) {
            return Ok(());
        }
        self.hand(by, action)
    }

    fn run(&mut self, action: &Action, run: &AttemptSpec) -> Result<(), WorldError> {
        let id = (run.instance, run.attempt);
        let nodes: Vec<_> = run.nodes.iter().map(|s| s.node).collect();
        let Some(first) = nodes.first().copied() else {
            return Err(WorldError(format!(
                "{} was to run on no node",
                run.instance
            )));
        };
        if let Some(lost) = nodes.iter().find(|n| !self.is_up(**n)) {
            let event = self.attempt_lost(id, *lost);
            self.ready.push_back(PendingEngineEvent { event, nodes });
            return Ok(());
        }
        let running = DispatchedAttempt {
            nodes: nodes.clone(),
            cut: None,
        };
        self.under_way.running.insert(id, running);
        let followers: BTreeSet<_> = nodes.iter().filter(|n| **n != first).collect();
        if !followers.is_empty() {
            // Messages of the first node may reach the others before these commands do.
            self.marks += 1;
            let mark = self.marks;
            for follower in followers {
                self.inform(*follower, &action.what);
                self.send_command(*follower, NodeCommand::Mark(mark));
            }
            self.send_command(first, NodeCommand::Lead { step: id, mark });
        }
        self.hand(ActionPerformer::Node(first), action)
    }

    fn reuse(&mut self, instance: InstanceId, prior: u32) {
        let Some(prior) = self.node_config.prior.get(prior as usize) else {
            return;
        };
        let held = self
            .parts
            .reused(&self.node_config.workflow, instance, prior);
        for (part, place, key, stored) in held {
            if let Place::Node(tier_ref) = place
                && let Some(node) = self.node_mut(tier_ref.node)
            {
                node.holds.insert((part, tier_ref.tier, key), stored);
            }
        }
    }

    /// The end of a transfer because of a lost node.
    pub(crate) fn transfer_lost(&self, t: &Transfer, node: NodeId) -> Event {
        Event::TransferFailed {
            id: t.id,
            failure: self.node_lost(node),
            damaged: None,
        }
    }

    /// The end of an attempt because of a lost node.
    pub(crate) fn attempt_lost(&self, id: AttemptId, node: NodeId) -> Event {
        failed(id, self.node_lost(node))
    }

    fn node_lost(&self, node: NodeId) -> RunError {
        let name = self.name(node);
        RunError {
            kind: RunErrorKind::NodeLost,
            message: format!("node {name} is lost; the run continues without it"),
        }
    }
}

/// The end of an attempt that has done nothing.
pub(crate) fn failed((instance, attempt): AttemptId, failure: RunError) -> Event {
    Event::Ended {
        instance,
        attempt,
        ended: AttemptOutcome::Failed {
            failure,
            log_tail: String::new(),
            newest: None,
        },
        usage: Usage::default(),
    }
}

/// Nanoseconds since 1970.
fn wall_clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}
