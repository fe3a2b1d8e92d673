//! Which nodes have jobs, and until when by their limits: the table in which the simulated Slurm looks for a place.

use tarn_types::site::promise::NodeResources;
use tarn_types::units::Time;

/// A time on a node; `share` is `None` for all of the node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OccupiedTime {
    pub(crate) begin: Time,
    pub(crate) end: Time,
    pub(crate) share: Option<NodeResources>,
}

/// The jobs of all nodes, those that are planned included.
#[derive(Debug)]
pub(crate) struct NodeOccupancy {
    resources: Vec<NodeResources>,
    taken: Vec<Vec<OccupiedTime>>,
}

impl NodeOccupancy {
    pub(crate) fn new(resources: &[NodeResources]) -> Self {
        Self {
            resources: resources.to_vec(),
            taken: vec![Vec::new(); resources.len()],
        }
    }

    pub(crate) fn take(
        &mut self,
        nodes: &[usize],
        (begin, end): (Time, Time),
        share: Option<NodeResources>,
    ) {
        for at in nodes {
            self.taken[*at].push(OccupiedTime { begin, end, share });
        }
    }

    /// When something on a node ends.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Time> {
        self.taken.iter().flatten().map(|time| time.end)
    }

    /// Whether a node has the resources for all of this time.
    pub(crate) fn fits(&self, node: usize, wanted: &OccupiedTime) -> bool {
        let all = self.resources[node];
        let share = wanted.share.unwrap_or(all);
        let beside = || {
            let taken = self.taken[node].iter();
            taken.filter(|other| other.begin < wanted.end && other.end > wanted.begin)
        };
        let begins = beside().map(|other| other.begin.max(wanted.begin));
        begins.chain([wanted.begin]).all(|moment| {
            let then = beside().filter(|other| other.begin <= moment && other.end > moment);
            let sum = then.fold(share, |mut sum, other| {
                for (sum, more) in sum.iter_mut().zip(other.share.unwrap_or(all)) {
                    *sum = sum.saturating_add(more);
                }
                sum
            });
            // A job that has all of a node has it alone, whatever it asks for.
            let is_alone = wanted.share.is_some() || beside().next().is_none();
            is_alone && sum.iter().zip(&all).all(|(sum, all)| sum <= all)
        })
    }
}
