//! The order in which nodes are considered for a job. A simulated cluster, a run and a site know different facts of a node; which
//! of two nodes is better follows from these facts by one rule.

use crate::energy::EnergyRank;
use crate::units::Nanos;

/// The facts of a node that count for a job, the most important first. The node with the least goes first.
///
/// # Examples
/// ```
/// use tarn_types::placement::{NodeRank, best_nodes};
///
/// let busy = NodeRank { load: 2, ..NodeRank::holding("n2", 500) };
/// let nodes = [NodeRank::holding("n1", 10), busy, NodeRank::holding("n3", 500)];
/// assert_eq!(best_nodes(nodes, 2), ["n3", "n2"]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeRank<N> {
    /// 0 where the job's checkpoints are: elsewhere it would begin again, or fetch them first.
    pub restart: u8,
    /// When it computes there, from now, as far as its host knows.
    pub computes: Nanos,
    /// Bytes of its inputs that are not there.
    pub missing: u64,
    /// How much is on the node already.
    pub load: usize,
    /// The node's power draw for each core, then its temperature.
    pub draw: EnergyRank,
    /// The node: the same facts lead to the same choice each time.
    pub node: N,
}

impl<N> NodeRank<N> {
    /// A node that differs from others by its name alone.
    pub fn of(node: N) -> Self {
        Self {
            restart: 0,
            computes: 0,
            missing: 0,
            load: 0,
            draw: (0, 0),
            node,
        }
    }

    /// A node of which the bytes of inputs that it holds are known, not those that it lacks.
    pub fn holding(node: N, bytes: u64) -> Self {
        Self {
            missing: u64::MAX - bytes,
            ..Self::of(node)
        }
    }
}

/// The best of some nodes, at most so many, in order.
pub fn best_nodes<N: Ord>(nodes: impl IntoIterator<Item = NodeRank<N>>, wanted: usize) -> Vec<N> {
    let mut nodes: Vec<NodeRank<N>> = nodes.into_iter().collect();
    nodes.sort_unstable();
    nodes.truncate(wanted);
    nodes.into_iter().map(|rank| rank.node).collect()
}

#[cfg(test)]
mod tests {
    use super::{NodeRank, best_nodes};

    #[test]
    fn each_fact_counts_only_where_those_before_it_are_equal() {
        let all = [
            NodeRank {
                restart: 1,
                ..NodeRank::holding(0, 900)
            },
            NodeRank {
                computes: 2,
                ..NodeRank::holding(1, 900)
            },
            NodeRank::holding(2, 5),
            NodeRank {
                load: 1,
                ..NodeRank::holding(3, 900)
            },
            NodeRank {
                draw: (7, 0),
                ..NodeRank::holding(4, 900)
            },
            NodeRank::holding(6, 900),
            NodeRank::holding(5, 900),
        ];
        assert_eq!(best_nodes(all, 9), [5, 6, 4, 3, 2, 1, 0]);
        assert_eq!(best_nodes(all, 1), [5]);
    }
}
