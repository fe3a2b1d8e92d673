//! Checkpoints of a step: the versions that its nodes have, and which of them a restart would take.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A version of a program's checkpoints, in the order of their making. Printed as people write it: 1.7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CheckpointId {
    /// The start of the program that made it, from 1.
    pub generation: u64,
    /// Its number within that start.
    pub number: u64,
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.number)
    }
}

/// A version as one node has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The program's name.
    pub program: String,
    /// The version.
    pub id: CheckpointId,
    /// The identity of the start that made it: two that knew nothing of each other have the same numbers.
    pub start: u128,
    /// Ranks of the program that made it.
    pub ranks: u32,
    /// Those of which all is there.
    pub here: BTreeSet<u32>,
}

/// The newest version of which these nodes together have all ranks.
pub fn newest(of_all: impl IntoIterator<Item = Checkpoint>) -> Option<CheckpointId> {
    let mut versions: BTreeMap<_, (u32, BTreeSet<u32>)> = BTreeMap::new();
    for one in of_all {
        let of_it = (one.id, one.program, one.start);
        let (ranks, here) = versions.entry(of_it).or_default();
        *ranks = one.ranks.max(*ranks);
        here.extend(one.here);
    }
    let whole = |(ranks, here): &(u32, BTreeSet<u32>)| here.len() == *ranks as usize;
    let mut newest = versions.into_iter().rev();
    newest.find(|(_, v)| whole(v)).map(|((id, ..), _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_a_node(generation: u64, number: u64, here: &[u32]) -> Checkpoint {
        Checkpoint {
            program: "heat".into(),
            id: CheckpointId { generation, number },
            start: 1,
            ranks: 3,
            here: here.iter().copied().collect(),
        }
    }

    #[test]
    fn the_newest_version_is_the_newest_that_all_ranks_have() {
        let one = [on_a_node(1, 9, &[0, 1]), on_a_node(2, 1, &[0, 1])];
        let other = [on_a_node(1, 9, &[2]), on_a_node(1, 10, &[2])];
        assert_eq!(newest(one.clone()), None);
        let both = newest(one.into_iter().chain(other));
        assert_eq!(both.map(|id| id.to_string()).as_deref(), Some("1.9"));
    }

    #[test]
    fn ranks_of_two_programs_or_starts_are_not_one_version() {
        let mut other = on_a_node(1, 1, &[2]);
        other.program = "wave".into();
        assert_eq!(newest([on_a_node(1, 1, &[0, 1]), other]), None);
        let mut other = on_a_node(1, 1, &[2]);
        other.start = 2;
        assert_eq!(newest([on_a_node(1, 1, &[0, 1]), other]), None);
    }
}
