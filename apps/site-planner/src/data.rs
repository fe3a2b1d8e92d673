//! The site's versions as the planner's items, and the difference between where both have them.

use crate::topology::ClusterTopology;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_engine::plan::Planner;
use tarn_proto::site::Owner;
use tarn_site::{PlanningJob, PlanningKey, PlanningVersion, PlanningView};
use tarn_types::id::NodeId;
use tarn_types::site::{FlowId, Input, Item, ItemId, Job, JobNodes, SiteEvent, Spread};

/// Bytes of an item, as many as the planner counts: 1 PiB.
const MAX_BYTES: u64 = 1 << 50;

/// Items and workflows by their numbers.
#[derive(Debug, Default)]
pub(crate) struct DataTable {
    pub(crate) items: BTreeMap<PlanningKey, ItemId>,
    flows: BTreeMap<(Owner, String), FlowId>,
    next_item: u32,
    /// Items from this number on are in the submission that is being made.
    submitting: u32,
    next_flow: u32,
}

/// An item that the planner does not know yet, and where it is.
pub(crate) struct NewItem {
    pub(crate) id: ItemId,
    pub(crate) item: Item,
    pub(crate) there: Vec<ItemNodes>,
}

/// A layout: the nodes that have an item, and how it is spread over them.
pub(crate) type ItemNodes = (Vec<NodeId>, Spread);

impl DataTable {
    /// How many numbers were given away.
    pub(crate) fn numbers(&self) -> u32 {
        self.next_item.max(self.next_flow)
    }

    /// The jobs of one submission follow: they share the items that are new in it.
    pub(crate) fn begin_submission(&mut self) {
        self.submitting = self.next_item;
    }

    /// Adds the workflow and the data of a job that is to be submitted. Returns the items that the planner does not know.
    pub(crate) fn connect(
        &mut self,
        spec: &mut Job,
        job: &PlanningJob,
        view: &PlanningView,
        planner: &Planner,
        topology: &ClusterTopology,
    ) -> Vec<NewItem> {
        let (items, flows) = (&mut self.items, &mut self.flows);
        let (next_flow, submitting) = (&mut self.next_flow, self.submitting);
        let flow = flows.entry(job.workflow.clone()).or_insert_with(|| {
            *next_flow += 1;
            FlowId(*next_flow - 1)
        });
        spec.flow = Some(*flow);
        let mut new = Vec::new();
        let mut number = |key: &PlanningKey| {
            let known = items.get(key).copied();
            let known = known.filter(|id| id.0 >= submitting || planner.has_item(*id));
            let id = known.unwrap_or_else(|| {
                let version = view.versions.get(key);
                let item = Item {
                    bytes: version.map_or(0, |v| v.bytes.min(MAX_BYTES)),
                    outside: version.is_some_and(|v| v.is_outside),
                    keep: false,
                };
                let id = ItemId(self.next_item);
                self.next_item += 1;
                new.push(NewItem {
                    id,
                    item,
                    there: version.map_or_else(Vec::new, |v| layouts(v, topology)),
                });
                id
            });
            items.insert(key.clone(), id);
            id
        };
        let read: BTreeMap<&PlanningKey, bool> = job.reads.iter().map(|(k, f)| (k, *f)).collect();
        for (key, on_first) in read {
            spec.reads.push(Input {
                item: number(key),
                // The first node alone reads as many bytes as all together.
                spread: if on_first {
                    Spread::Share
                } else {
                    Spread::Whole
                },
            });
        }
        let makes: BTreeSet<&PlanningKey> = job.makes.iter().collect();
        spec.writes = makes.into_iter().map(number).collect();
        new
    }

    /// Forgets workflows of which no job is left.
    pub(crate) fn forget_flows(&mut self, live: &BTreeSet<&(Owner, String)>) {
        self.flows.retain(|flow, _| live.contains(flow));
    }

    /// The events that bring the planner's layouts to those of the site, and forget the items that none of its jobs uses.
    pub(crate) fn reconcile(
        &mut self,
        (view, used): (&PlanningView, &BTreeSet<&PlanningKey>),
        planner: &Planner,
        topology: &ClusterTopology,
        events: &mut Vec<SiteEvent>,
    ) {
        self.items.retain(|key, item| {
            let version = view.versions.get(key).filter(|_| used.contains(key));
            let there = version.map_or_else(Vec::new, |v| layouts(v, topology));
            difference(
                *item,
                version.map_or(0, |v| v.bytes),
                &there,
                planner,
                events,
            );
            version.is_some()
        });
    }
}

fn difference(
    item: ItemId,
    bytes: u64,
    there: &[ItemNodes],
    planner: &Planner,
    events: &mut Vec<SiteEvent>,
) {
    let known = planner
        .layouts(item)
        .map(|(nodes, spread, _)| (nodes, spread));
    let known: Vec<(&JobNodes, Spread)> = known.collect();
    for (nodes, spread) in there {
        if !known.iter().any(|(n, s)| n[..] == nodes[..] && s == spread) {
            events.push(SiteEvent::Stored {
                item,
                nodes: Arc::from(&nodes[..]),
                spread: *spread,
                bytes,
            });
        }
    }
    for (nodes, spread) in known {
        if !there
            .iter()
            .any(|(n, s)| n[..] == nodes[..] && *s == spread)
        {
            events.push(SiteEvent::Gone {
                item,
                nodes: nodes.clone(),
                spread,
            });
        }
    }
}

/// The layouts of a version: each node that has all of it, else the first nodes of its parts.
fn layouts(version: &PlanningVersion, topology: &ClusterTopology) -> Vec<ItemNodes> {
    if !version.is_made {
        return Vec::new();
    }
    let parts: Vec<Vec<NodeId>> = version
        .parts
        .iter()
        .map(|nodes| nodes.iter().filter_map(|n| topology.number(n)).collect())
        .collect();
    let Some((first, rest)) = parts.split_first() else {
        return Vec::new();
    };
    let has_all = |node: &&NodeId| rest.iter().all(|part| part.contains(node));
    let whole: BTreeSet<NodeId> = first.iter().filter(has_all).copied().collect();
    if !whole.is_empty() {
        // On one node there is one way to store it.
        return whole
            .into_iter()
            .map(|n| (vec![n], Spread::Share))
            .collect();
    }
    let shares: Option<Vec<NodeId>> = parts.iter().map(|part| part.first().copied()).collect();
    let shares = shares.filter(|nodes| nodes.iter().collect::<BTreeSet<_>>().len() == nodes.len());
    shares.map_or_else(Vec::new, |nodes| vec![(nodes, Spread::Share)])
}
