//! The lists of nodes, made again.

use super::{MODES, NODE, NodeListing, PlannerNodes, slot};
use std::collections::BTreeSet;
use tarn_types::units::Time;

impl PlannerNodes {
    /// Makes the lists of every class again from the nodes and the jobs on them, and compares.
    ///
    /// # Panics
    /// When they differ.
    pub(crate) fn check_lists(&self) {
        for island in 0..self.islands.len() {
            for mode in MODES.map(slot) {
                self.check_class(island, mode);
            }
        }
        for (id, node) in self.all.iter() {
            for lacks in node.guests.iter().filter_map(|g| g.lacks.as_deref()) {
                let more = node.free().most_of(*lacks);
                assert!(more.is_nothing(), "{id} has {more:?} that a job lacks");
            }
        }
        let holds = |g: &super::NodeOccupant| g.whole && !self.whole.contains_key(&g.job);
        let lost = self
            .all
            .iter()
            .flat_map(|(_, n)| &n.guests)
            .find(|g| holds(g));
        assert!(lost.is_none(), "{lost:?} is in no list of jobs");
    }

    fn check_class(&self, island: usize, mode: usize) {
        let (mut idle, mut partly) = (BTreeSet::new(), BTreeSet::new());
        let mut ends: BTreeSet<(Time, u64, u32)> = BTreeSet::new();
        let mut unplanned = BTreeSet::new();
        for (id, node) in self.all.iter() {
            if (usize::from(node.island), slot(node.mode)) != (island, mode) {
                continue;
            }
            match node.listing() {
                NodeListing::Nowhere => {}
                NodeListing::Idle => {
                    idle.insert(id);
                }
                NodeListing::Ends {
                    until,
                    partly: some,
                } => {
                    ends.insert((until, NODE | u64::from(id.0), 1));
                    if some {
                        partly.insert((node.free().cores, id));
                    }
                }
            }
            if node.planned.is_empty() {
                unplanned.insert(id);
            }
        }
        for (job, whole) in &self.whole {
            let entries = self.entries_of(whole);
            assert_eq!(whole.entries, entries, "entries of job {job}");
            let here = entries.into_iter().filter(|e| (e.0, e.1) == (island, mode));
            let here = here.flat_map(|e| e.2);
            ends.extend(here.map(|(at, count)| (at, u64::from(job.0), count)));
        }
        let class = &self.islands[island].classes[mode];
        assert!(class.idle.iter().eq(idle.iter().copied()), "idle nodes");
        assert_eq!(class.partly, partly, "nodes with free cores");
        assert!(class.ends.iter().eq(ends), "when nodes come free");
        idle.retain(|n| unplanned.contains(n));
        partly.retain(|(_, n)| unplanned.contains(n));
        assert!(class.open.idle.iter().eq(idle), "idle nodes without plans");
        assert_eq!(class.open.partly, partly, "others without plans");
    }
}
