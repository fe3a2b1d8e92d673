//! Sets of nodes that jobs are bound to: partitions, features, lists of excluded nodes.

use crate::id::NodeId;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Bits in a word.
const WORD: u32 = u64::BITS;

/// A set of nodes that never changes, as bits. How many of its nodes are in a range is known without counting them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "Vec<(u32, u32)>", try_from = "Vec<(u32, u32)>")]
pub struct NodeMask {
    words: Vec<u64>,
    /// Nodes in the words before each, and in all of them.
    before: Vec<u32>,
}

/// Why a text is no set of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "nodes {from} to {to} are no range of at most {} nodes: give the first and the last of each range, in ascending order",
    NodeMask::MOST
)]
pub struct NodeMaskError {
    from: u32,
    to: u32,
}

impl NodeMask {
    /// Numbers of nodes that a set that is read may have: a bound on its memory (2 MiB and a half).
    pub const MOST: u32 = 1 << 24;

    fn of_words(words: Vec<u64>) -> Self {
        let mut before = Vec::with_capacity(words.len() + 1);
        let mut sum = 0;
        before.push(sum);
        for word in &words {
            sum += word.count_ones();
            before.push(sum);
        }
        Self { words, before }
    }

    /// Whether a node is in it.
    pub fn contains(&self, node: NodeId) -> bool {
        let word = self.words.get((node.0 / WORD) as usize);
        word.is_some_and(|w| w & 1 << (node.0 % WORD) != 0)
    }

    /// How many nodes it has.
    pub fn len(&self) -> u32 {
        self.before.last().copied().unwrap_or(0)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of its nodes are below this one.
    fn below(&self, node: u32) -> u32 {
        let at = (node / WORD) as usize;
        let Some(word) = self.words.get(at) else {
            return self.len();
        };
        self.before[at] + (word & ((1 << (node % WORD)) - 1)).count_ones()
    }

    /// How many of its nodes are in a range of numbers.
    pub fn count_in(&self, range: Range<u32>) -> u32 {
        self.below(range.end)
            .saturating_sub(self.below(range.start))
    }

    /// The nodes in a range of numbers that are in it, or that are not, in order.
    pub fn nodes_in(&self, range: Range<u32>, are_in: bool) -> impl Iterator<Item = NodeId> {
        let words = range.start / WORD..range.end.div_ceil(WORD);
        words.flat_map(move |at| {
            let word = self.words.get(at as usize).copied().unwrap_or(0);
            let mut left = if are_in { word } else { !word };
            let range = range.clone();
            let bits = std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    at * WORD + bit
                })
            });
            bits.filter(move |n| range.contains(n)).map(NodeId)
        })
    }

    /// Its nodes as bits, 64 of them in each word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Its nodes in order.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> {
        let words = (0u32..).zip(&self.words);
        words.flat_map(|(at, word)| {
            let bits = (0..WORD).filter(move |bit| word & 1 << bit != 0);
            bits.map(move |bit| NodeId(at * WORD + bit))
        })
    }
}

impl FromIterator<NodeId> for NodeMask {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut words: Vec<u64> = Vec::new();
        for node in nodes {
            let at = (node.0 / WORD) as usize;
            if words.len() <= at {
                words.resize(at + 1, 0);
            }
            words[at] |= 1 << (node.0 % WORD);
        }
        Self::of_words(words)
    }
}

/// Ranges: the first and the last node of each.
impl From<NodeMask> for Vec<(u32, u32)> {
    fn from(mask: NodeMask) -> Self {
        let mut ranges: Self = Self::new();
        for NodeId(node) in mask.iter() {
            match ranges.last_mut() {
                Some((_, to)) if *to + 1 == node => *to = node,
                _ => ranges.push((node, node)),
            }
        }
        ranges
    }
}

impl TryFrom<Vec<(u32, u32)>> for NodeMask {
    type Error = NodeMaskError;

    fn try_from(ranges: Vec<(u32, u32)>) -> Result<Self, NodeMaskError> {
        let mut least = 0;
        for (from, to) in &ranges {
            if *from < least || to < from || *to >= Self::MOST {
                return Err(NodeMaskError {
                    from: *from,
                    to: *to,
                });
            }
            least = to + 1;
        }
        let nodes = ranges.into_iter().flat_map(|(from, to)| from..=to);
        Ok(nodes.map(NodeId).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(nodes in prop::collection::btree_set(0u32..400, 0..200), a in 0u32..450, b in 0u32..450) {
            let mask: NodeMask = nodes.iter().copied().map(NodeId).collect();
            prop_assert_eq!(mask.len() as usize, nodes.len());
            prop_assert_eq!(mask.is_empty(), nodes.is_empty());
            prop_assert_eq!(mask.contains(NodeId(a)), nodes.contains(&a));
            let (from, to) = (a.min(b), a.max(b));
            prop_assert_eq!(mask.count_in(from..to) as usize, nodes.range(from..to).count());
            for are_in in [false, true] {
                let expected = (from..to).filter(|n| nodes.contains(n) == are_in);
                prop_assert!(mask.nodes_in(from..to, are_in).map(|n| n.0).eq(expected));
            }
            prop_assert!(mask.iter().map(|n| n.0).eq(nodes.iter().copied()));
            let text = serde_json::to_string(&mask).expect("it can be written");
            let read: NodeMask = serde_json::from_str(&text).expect("it can be read");
            prop_assert_eq!(read, mask);
            let plain: BTreeSet<u32> = nodes;
            prop_assert_eq!(text == "[]", plain.is_empty());
        }
    }

    #[test]
    fn a_text_of_too_many_nodes_is_refused() {
        for text in [
            "[[0,4294967295]]",
            "[[5,4]]",
            "[[4,5],[5,6]]",
            "[[16777216,16777216]]",
        ] {
            let read: Result<NodeMask, _> = serde_json::from_str(text);
            assert!(read.is_err(), "{text}");
        }
    }
}
