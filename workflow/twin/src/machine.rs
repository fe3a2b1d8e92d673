//! The machine: islands of equal nodes, rates as medians of what was measured.

use crate::history::{NodeHistory, SiteHistory};
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::site::{Island, Machine, Mode, NodeKind, NodeMask, Rates, Store, TierKind};

/// Bytes a second where nothing was measured, as the plan for sites assumes.
const USUAL_RATE: u64 = 1_000_000_000;
/// Transfers at once that reach the store's whole rate.
const SATURATES: u32 = 4;
/// Degrees Celsius at a node's air inlet where nothing is known.
const USUAL_TEMPERATURE: f64 = 20.0;

/// Where the partitions' nodes are in the machine.
pub(crate) struct TwinPlaces(BTreeMap<u32, Arc<NodeMask>>);

impl TwinPlaces {
    /// The only nodes that a job of a partition may have; `None` for all.
    pub(crate) fn allowed(&self, partition: Option<u32>) -> Option<Arc<NodeMask>> {
        self.0.get(&partition?).cloned()
    }
}

/// The machine, and the partitions that have not all of its nodes.
pub(crate) fn machine_of(history: &SiteHistory, notes: &mut Vec<String>) -> (Machine, TwinPlaces) {
    let mut rate = |measured: &[u64], what: &str| match median(measured) {
        Some(rate) => rate,
        None => {
            notes.push(format!("nothing was moved {what}: 1 GB/s is assumed"));
            USUAL_RATE
        }
    };
    let client = Rates {
        read: rate(&history.rates_in, "from the external store"),
        write: rate(&history.rates_out, "to the external store"),
    };
    let peer = rate(&history.rates_peer, "between nodes");
    let link = Rates {
        read: peer,
        write: peer,
    };
    let mut kinds: Vec<(&NodeHistory, u32)> = Vec::new();
    for node in &history.nodes {
        match kinds.iter_mut().find(|(kind, _)| *kind == node) {
            Some((_, count)) => *count += 1,
            None => kinds.push((node, 1)),
        }
    }
    let mut partitions: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
    let mut first = 0;
    for (node, count) in &kinds {
        for partition in &node.partitions {
            let nodes = partitions.entry(*partition).or_default();
            nodes.extend((first..first + count).map(NodeId));
        }
        first += count;
    }
    partitions.retain(|_, nodes| nodes.len() < history.nodes.len());
    let masks = partitions
        .into_iter()
        .map(|(partition, nodes)| (partition, Arc::new(nodes.into_iter().collect())));
    let places = TwinPlaces(masks.collect());
    let islands = kinds
        .into_iter()
        .enumerate()
        .map(|(at, (node, nodes))| Island {
            name: format!("node{}", letters(at)),
            nodes,
            kind: kind_of(node, link),
        });
    let machine = Machine {
        name: "site".into(),
        islands: islands.collect(),
        store: Store {
            rates: Rates::default(),
            client,
            saturates: SATURATES,
        },
    };
    (machine, places)
}

fn kind_of(node: &NodeHistory, link: Rates) -> NodeKind {
    let tiers = node.stores.iter().zip(1..).map(|(store, number)| TierKind {
        name: format!("tier-{number}"),
        capacity: store.capacity,
        // Reading and writing there by programs is in their run times.
        rates: Rates::default(),
        app_direct: false,
    });
    NodeKind {
        sockets: 1,
        cores: node.cores.max(1),
        memory: node.memory,
        gpus: node.gpus,
        tiers: tiers.collect(),
        link,
        mode: Mode::OneLevel,
        mode_change: None,
        power: node.power,
        temperature: USUAL_TEMPERATURE,
    }
}

/// A number as letters, such as `-a`, `-b`, ..., `-ba`: an island's name does not end in a digit.
fn letters(mut number: usize) -> String {
    let mut reversed = Vec::new();
    loop {
        reversed.push(char::from(b'a' + (number % 26) as u8));
        number /= 26;
        if number == 0 {
            break;
        }
    }
    reversed.push('-');
    reversed.iter().rev().collect()
}

fn median(values: &[u64]) -> Option<u64> {
    let mut sorted: Vec<u64> = values.iter().copied().filter(|v| *v > 0).collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_unlike() {
        let names: Vec<String> = [0, 1, 25, 26, 27, 702].map(letters).into();
        assert_eq!(names, ["-a", "-b", "-z", "-ba", "-bb", "-bba"]);
    }

    #[test]
    fn a_rate_is_the_median() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[0, 9, 1, 5]), Some(5));
    }
}
