//! Sets of nodes as bits: a job of thousands of nodes takes them in microseconds.

use tarn_types::id::NodeId;
use tarn_types::site::NodeMask;

/// A set of nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeSet {
    words: Vec<u64>,
    len: usize,
}

impl NodeSet {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn insert(&mut self, id: NodeId) {
        let (word, bit) = (id.at() / 64, 1u64 << (id.at() % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.len += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    pub(crate) fn contains(&self, id: NodeId) -> bool {
        let word = self.words.get(id.at() / 64);
        word.is_some_and(|w| w & 1 << (id.at() % 64) != 0)
    }

    pub(crate) fn remove(&mut self, id: NodeId) {
        let (word, bit) = (id.at() / 64, 1u64 << (id.at() % 64));
        if let Some(w) = self.words.get_mut(word) {
            self.len -= usize::from(*w & bit != 0);
            *w &= !bit;
        }
    }

    /// How many of its nodes are in a mask.
    pub(crate) fn count_in(&self, mask: &NodeMask) -> usize {
        let words = self.words.iter().zip(mask.words());
        words.map(|(a, b)| (a & b).count_ones() as usize).sum()
    }

    /// Its nodes in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> {
        self.iter_in(None)
    }

    /// Its nodes that are in a mask, in order; all of them without one.
    pub(crate) fn iter_in(&self, mask: Option<&NodeMask>) -> impl Iterator<Item = NodeId> {
        let words = self.words.iter().enumerate();
        words.flat_map(move |(at, word)| {
            let among = mask.map_or(u64::MAX, |m| m.words().get(at).copied().unwrap_or(0));
            let mut left = word & among;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    NodeId((at * 64) as u32 + bit)
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(ops in prop::collection::vec((0u32..300, any::<bool>()), 0..500)) {
            let (mut set, mut plain) = (NodeSet::default(), BTreeSet::new());
            for (n, add) in ops {
                if add {
                    set.insert(NodeId(n));
                    plain.insert(NodeId(n));
                } else {
                    set.remove(NodeId(n));
                    plain.remove(&NodeId(n));
                }
                prop_assert_eq!(set.len(), plain.len());
                prop_assert_eq!(set.contains(NodeId(n)), add);
            }
            let mask: NodeMask = (0..200).step_by(3).map(NodeId).collect();
            let both = || plain.iter().copied().filter(|n| mask.contains(*n));
            prop_assert_eq!(set.count_in(&mask), both().count());
            prop_assert!(set.iter_in(Some(&mask)).eq(both()));
            prop_assert!(set.iter().eq(plain.into_iter()));
        }
    }
}
