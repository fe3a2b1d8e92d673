//! When nodes come free, as far as is known: the expected ends of jobs, with their numbers of nodes. In blocks with
//! sums, so that the time at which so many nodes are free is found without walking through all jobs.

use tarn_types::units::Time;

/// Entries in a block; a full block is divided.
const BLOCK: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TimelineEntry {
    at: Time,
    who: u64,
    nodes: u32,
}

#[derive(Debug, Clone, Default)]
struct TimelineBlock {
    entries: Vec<TimelineEntry>,
    nodes: u64,
}

/// Ends in the order of time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline {
    blocks: Vec<TimelineBlock>,
}

impl Timeline {
    fn block_of(&self, at: Time, who: u64) -> usize {
        let after = self.blocks.partition_point(|b| {
            b.entries
                .first()
                .is_some_and(|e| (e.at, e.who) <= (at, who))
        });
        after.saturating_sub(1)
    }

    pub(crate) fn insert(&mut self, at: Time, who: u64, nodes: u32) {
        let index = self.block_of(at, who);
        if self.blocks.is_empty() {
            self.blocks.push(TimelineBlock::default());
        }
        let block = &mut self.blocks[index];
        let position = block.entries.partition_point(|e| (e.at, e.who) < (at, who));
        block
            .entries
            .insert(position, TimelineEntry { at, who, nodes });
        block.nodes += u64::from(nodes);
        if block.entries.len() > 2 * BLOCK {
            let upper = block.entries.split_off(BLOCK);
            let nodes = upper.iter().map(|e| u64::from(e.nodes)).sum();
            block.nodes -= nodes;
            let entries = upper;
            self.blocks
                .insert(index + 1, TimelineBlock { entries, nodes });
        }
    }

    pub(crate) fn remove(&mut self, at: Time, who: u64) {
        let index = self.block_of(at, who);
        let Some(block) = self.blocks.get_mut(index) else {
            return;
        };
        let found = block
            .entries
            .binary_search_by_key(&(at, who), |e| (e.at, e.who));
        if let Ok(position) = found {
            block.nodes -= u64::from(block.entries.remove(position).nodes);
            if block.entries.is_empty() {
                self.blocks.remove(index);
            }
        }
    }

    /// When `want` nodes have ended, and how many have by then in all; `None` if there are not so many.
    pub(crate) fn earliest(&self, want: u64) -> Option<(Time, u64)> {
        if want == 0 {
            return Some((0, 0));
        }
        let mut sum = 0;
        for block in &self.blocks {
            if sum + block.nodes < want {
                sum += block.nodes;
                continue;
            }
            let mut at = None;
            for e in &block.entries {
                // Jobs that end at the same moment count too.
                if at.is_some_and(|at| e.at > at) {
                    break;
                }
                sum += u64::from(e.nodes);
                if at.is_none() && sum >= want {
                    at = Some(e.at);
                }
            }
            return at.map(|at| (at, sum));
        }
        None
    }

    /// Nodes that have ended by `at`.
    pub(crate) fn by(&self, at: Time) -> u64 {
        let mut sum = 0;
        for block in &self.blocks {
            if block.entries.last().is_some_and(|e| e.at <= at) {
                sum += block.nodes;
                continue;
            }
            let entries = block.entries.iter().take_while(|e| e.at <= at);
            return sum + entries.map(|e| u64::from(e.nodes)).sum::<u64>();
        }
        sum
    }

    /// All ends in order: (time, job, nodes).
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Time, u64, u32)> {
        let entries = self.blocks.iter().flat_map(|b| &b.entries);
        entries.map(|e| (e.at, e.who, e.nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a sorted list that is walked through.
        #[test]
        fn agrees_with_a_plain_list(
            ends in prop::collection::vec((0u64..1000, 1u32..10), 1..800),
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
            want in 0u64..5000,
            at in 0u64..1100,
        ) {
            let mut line = Timeline::default();
            let mut plain: Vec<(u64, u64, u32)> = Vec::new();
            for (who, (end, nodes)) in (0u64..).zip(ends) {
                line.insert(end, who, nodes);
                plain.push((end, who, nodes));
            }
            for index in gone {
                if !plain.is_empty() {
                    let (end, who, _) = plain.swap_remove(index.index(plain.len()));
                    line.remove(end, who);
                }
            }
            plain.sort_unstable();
            prop_assert!(line.iter().eq(plain.iter().copied()));
            let by = |t: u64| plain.iter().filter(|e| e.0 <= t).map(|e| u64::from(e.2)).sum::<u64>();
            prop_assert_eq!(line.by(at), by(at));
            let first = plain.iter().map(|e| e.0).find(|t| by(*t) >= want);
            if want > 0 {
                // Jobs that end at the same moment may continue in the next block: at least `want` are counted.
                let found = line.earliest(want);
                prop_assert_eq!(found.map(|f| f.0), first);
                prop_assert!(found.is_none_or(|(t, sum)| sum >= want && sum <= by(t)));
            }
        }
    }
}
