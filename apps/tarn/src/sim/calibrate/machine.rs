//! The machine of a recorded run: its nodes and tiers as the log names them, its bandwidths as the transfers show them.

use super::recorded::Recorded;
use crate::error::{CliError, CliResult};
use serde::Serialize;
use tarn_types::cluster::{Cluster, Node};
use tarn_types::codes::Exit;
use tarn_types::history::{TransferEnd, TransferHistory};
use tarn_types::part::TransferKind;
use tarn_types::site::{Island, Machine, Mode, NodeKind, NodePowerModel, Rates, Store, TierKind};
use tarn_types::units::{SECOND, Time};

/// Memory of a node that does not say how much it has: more than any step requests.
const UNLIMITED_MEMORY: u64 = 1 << 60;

/// Bytes a second, each observed where the run moved something that way, else as its cluster record has them.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Bandwidths {
    pub(super) external_in: CalibratedBandwidth,
    pub(super) external_out: CalibratedBandwidth,
    pub(super) peer: CalibratedBandwidth,
}

/// A bandwidth, bytes a second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct CalibratedBandwidth {
    pub(super) rate: u64,
    pub(super) observed: bool,
}

impl Bandwidths {
    pub(super) fn of(recorded: &Recorded<'_>) -> Self {
        let cluster = &recorded.start.cluster;
        let of = |kind, otherwise| {
            let transfers = recorded.history.transfers.values();
            match observed(transfers.filter(|t| t.order.kind == kind)) {
                Some(rate) => CalibratedBandwidth {
                    rate,
                    observed: true,
                },
                None => CalibratedBandwidth {
                    rate: otherwise,
                    observed: false,
                },
            }
        };
        Self {
            external_in: of(TransferKind::ExternalIn, cluster.external.read),
            external_out: of(TransferKind::ExternalOut, cluster.external.write),
            peer: of(TransferKind::Peer, cluster.peer.read),
        }
    }

    /// Towards and from the external store.
    pub(super) fn external(&self) -> Rates {
        Rates {
            read: self.external_in.rate,
            write: self.external_out.rate,
        }
    }
}

/// Bytes a second while at least one of these transfers was moving: opening, hashing, checking and syncing included.
/// `None` where nothing was moved.
fn observed<'t>(transfers: impl Iterator<Item = &'t TransferHistory>) -> Option<u64> {
    let mut bytes = 0u128;
    let mut times: Vec<(Time, Time)> = Vec::new();
    for transfer in transfers {
        if let Some((end, TransferEnd::Done { bytes: moved, took })) = transfer.ended {
            bytes += u128::from(moved);
            times.push((end.saturating_sub(took), end));
        }
    }
    times.sort_unstable();
    let (mut busy, mut until) = (0, 0);
    for (from, to) in times {
        busy += to.saturating_sub(from.max(until));
        until = until.max(to);
    }
    let rate = (bytes * u128::from(SECOND)).checked_div(u128::from(busy))?;
    u64::try_from(rate).ok().filter(|rate| *rate > 0)
}

/// The machine of a run.
///
/// # Errors
/// When nodes share a host that has fewer cores than they: the planner knows no hosts.
pub(super) fn machine(name: &str, cluster: &Cluster, rates: &Bandwidths) -> CliResult<Machine> {
    for (host, number) in cluster.hosts.iter().zip(0u32..) {
        let nodes = cluster.nodes.iter().filter(|n| n.host == number);
        let cores: u64 = nodes.map(|n| u64::from(n.cores)).sum();
        if cores > u64::from(host.cores) {
            return Err(CliError::new(
                Exit::Usage,
                format!(
                    "the nodes of {name} offer {cores} cores on a host that has {}: a simulated machine has no hosts, and \
                     would do more at once; run it with at most --nodes {} and calibrate that",
                    host.cores, host.cores
                ),
            ));
        }
    }
    let peer = rates.peer.rate;
    let link = Rates {
        read: peer,
        write: peer,
    };
    let mut islands: Vec<Island> = Vec::new();
    for node in &cluster.nodes {
        let kind = kind(node, link);
        match islands.last_mut().filter(|i| i.kind == kind) {
            Some(island) => island.nodes += 1,
            None => islands.push(Island {
                name: node
                    .name
                    .trim_end_matches(|c: char| c.is_ascii_digit())
                    .to_owned(),
                nodes: 1,
                kind,
            }),
        }
    }
    Ok(Machine {
        name: name.to_owned(),
        islands,
        store: Store {
            rates: rates.external(),
            client: Rates::default(),
            // The rates are those of all transfers at once; one alone may have them.
            saturates: 1,
        },
    })
}

fn kind(node: &Node, link: Rates) -> NodeKind {
    let tiers = node.tiers.iter().map(|tier| TierKind {
        name: tier.name.clone(),
        capacity: tier.capacity,
        // The observed times contain the reads and writes of steps, the observed rates contain the transfers.
        rates: Rates::default(),
        app_direct: false,
    });
    NodeKind {
        sockets: 1,
        cores: node.cores,
        memory: match node.memory {
            0 => UNLIMITED_MEMORY,
            bytes => bytes,
        },
        gpus: node.gpus,
        tiers: tiers.collect(),
        link,
        mode: Mode::OneLevel,
        mode_change: None,
        power: NodePowerModel::default(),
        temperature: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::id::{DataId, TransferId};
    use tarn_types::part::{Place, Transfer, Verify};
    use tarn_types::reason::Reason;

    fn moved(end: Time, took: u64, bytes: u64) -> TransferHistory {
        TransferHistory {
            order: Transfer {
                id: TransferId(0),
                data: DataId(0),
                version: 0,
                parts: Vec::new(),
                to: Place::Drained,
                kind: TransferKind::ExternalOut,
                verify: Verify::None,
                priority: 0,
            },
            why: Reason::Needed,
            instance: None,
            expected: bytes,
            ordered: 0,
            ended: Some((
                end * SECOND,
                TransferEnd::Done {
                    bytes,
                    took: took * SECOND,
                },
            )),
        }
    }

    #[test]
    fn a_rate_is_that_of_the_time_in_which_anything_moved() {
        let rate = |all: &[TransferHistory]| observed(all.iter());
        assert_eq!(rate(&[]), None);
        assert_eq!(rate(&[moved(5, 2, 0)]), None, "nothing was moved");
        // From 3 to 5, from 4 to 8 and from 10 to 11: 6 seconds in all.
        let all = [moved(11, 1, 30), moved(5, 2, 10), moved(8, 4, 20)];
        assert_eq!(rate(&all), Some(10));
    }
}
