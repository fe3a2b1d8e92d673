//! The needs of a step: its datasets, and on each node the replicas of them that it sees.

use crate::storage::run_facts::RunFacts;
use std::collections::BTreeSet;
use tarn_types::action::{AttemptSpec, NodeReplica};
use tarn_types::event::RunError;
use tarn_types::id::DataId;
use tarn_types::workflow::{Distribution, Role, Step};

/// A dataset as the step uses it: all of its entries in `in`, or its one `out` or `inout`.
pub(crate) struct Need<'a> {
    pub(crate) data: DataId,
    pub(crate) name: &'a str,
    pub(crate) role: Role,
    pub(crate) distribution: Distribution,
    pub(crate) makes: Option<u32>,
    /// For each node, the replicas that it sees merged.
    pub(crate) held: Vec<Vec<&'a NodeReplica>>,
}

impl Need<'_> {
    /// Whether node number `at` of the step has this dataset at all.
    pub(crate) fn is_on(&self, at: usize) -> bool {
        at == 0 || self.distribution != Distribution::Single
    }

    /// Those in a namespace that a file system spreads over the nodes, as they are on several machines.
    pub(crate) fn spread<'n>(
        needs: &'n [Self],
        shared: &RunFacts,
        run: &AttemptSpec,
    ) -> impl Iterator<Item = &'n Self> {
        let apart = run.nodes.iter().any(|s| !shared.own.has(s.node));
        let is_shared = move |n: &&Self| apart && n.distribution == Distribution::Shared;
        needs.iter().filter(is_shared)
    }
}

/// The needs of a step, each dataset once, in the order of its uses.
pub(crate) fn needs<'a>(
    shared: &'a RunFacts,
    step: &Step,
    run: &'a AttemptSpec,
) -> Result<Vec<Need<'a>>, RunError> {
    let mut needs: Vec<Need<'a>> = Vec::new();
    for (n, used) in step.uses.iter().enumerate() {
        let at = match needs.iter().position(|need| need.data == used.data) {
            Some(at) => at,
            None => {
                needs.push(Need {
                    data: used.data,
                    name: &shared.dataset(used.data)?.name,
                    role: used.role,
                    distribution: used.distribution,
                    makes: used.makes,
                    held: vec![Vec::new(); run.nodes.len()],
                });
                needs.len() - 1
            }
        };
        for (held, seen) in needs[at]
            .held
            .iter_mut()
            .zip(run.views.get(n).into_iter().flatten())
        {
            // Entries selected twice are shown once; a first use cannot repeat anything.
            let before: BTreeSet<&str> = held.iter().map(|h| h.key.0.as_str()).collect();
            let fresh: Vec<&NodeReplica> = seen
                .iter()
                .filter(|h| !before.contains(h.key.0.as_str()))
                .collect();
            held.extend(fresh);
        }
    }
    Ok(needs)
}
