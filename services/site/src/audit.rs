//! The accounts against a recount of all nodes, in debug builds.

use crate::state::Site;
use std::collections::BTreeMap;
use tarn_proto::site::{Owner, SlurmJobId};

/// With more parts and promises than so many each event would take too long.
const MAX_RECOUNTED: usize = 512;

impl Site {
    /// Stops where an account differs from the nodes: bytes of owners, bytes reserved for jobs, orders.
    pub(crate) fn recount(&self) {
        let nodes = self.nodes.values();
        let size: usize = nodes.map(|n| n.parts.len() + n.written.len()).sum();
        if size > MAX_RECOUNTED {
            return;
        }
        let mut stored: BTreeMap<Owner, u64> = BTreeMap::new();
        for (name, node) in &self.nodes {
            for (part, bytes) in &node.parts {
                *stored.entry(part.owner).or_default() += bytes;
                let places = node.places.get(part);
                assert!(
                    places.is_none_or(|p| !p.is_empty()),
                    "{part} is in no store of {name}"
                );
            }
            let placed = node
                .places
                .keys()
                .find(|part| !node.parts.contains_key(part));
            assert_eq!(
                placed, None,
                "a part is in a store of {name}, and not there"
            );
            let mut promised: BTreeMap<SlurmJobId, u64> = BTreeMap::new();
            for ((job, _), bytes) in &node.promised {
                *promised.entry(*job).or_default() += bytes;
            }
            let mut written: BTreeMap<SlurmJobId, u64> = BTreeMap::new();
            for ((job, _), (_, bytes)) in &node.written {
                *written.entry(*job).or_default() += bytes;
            }
            assert_eq!(promised, written, "promised on {name}");
        }
        for (owner, usage) in self.usage.iter() {
            let bytes = stored.get(&owner).copied().unwrap_or(0);
            assert_eq!(usage.stored, bytes, "bytes of {owner}");
        }
        let unknown = self
            .orders
            .values()
            .find(|o| !self.nodes.contains_key(&o.node));
        assert!(
            unknown.is_none(),
            "an order is under way on an unknown node"
        );
    }
}
