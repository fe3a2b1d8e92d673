//! Connections that have not proven who they are.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The connection to close when there are too many, numbered as they came: the oldest of the address that has most of them. So a
/// crowd makes space for itself, and does not push out connections from elsewhere.
pub fn sent_away(strangers: impl IntoIterator<Item = (u64, IpAddr)>) -> Option<u64> {
    let mut of: BTreeMap<IpAddr, (usize, Reverse<u64>)> = BTreeMap::new();
    for (number, from) in strangers {
        let (count, oldest) = of.entry(from).or_insert((0, Reverse(number)));
        *count += 1;
        *oldest = (*oldest).max(Reverse(number));
    }
    let most = of.into_values().max()?;
    Some(most.1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_largest_crowd_goes() {
        let from = |last: u8| IpAddr::from([10, 0, 0, last]);
        let crowd = [(3, 1), (4, 2), (5, 2), (6, 1), (7, 2)].map(|(n, last)| (n, from(last)));
        assert_eq!(sent_away(crowd), Some(4));
        // Of two equal crowds, the one with the oldest connection.
        assert_eq!(sent_away(crowd[..4].to_vec()), Some(3));
        assert_eq!(sent_away([]), None);
    }
}
