//! Divides energy by cores among all activities that run at a time.

use std::collections::BTreeMap;

/// The activities on a machine, and the energy that each of them has had so far.
#[derive(Debug, Default)]
pub struct EnergyAccount {
    running: BTreeMap<u64, Share>,
    begun: u64,
}

#[derive(Debug)]
struct Share {
    cores: u32,
    /// None once some of it is not known.
    microjoules: Option<u64>,
}

impl EnergyAccount {
    /// An activity begins that uses so many cores. Returns its id.
    pub fn begin(&mut self, cores: u32) -> u64 {
        let id = self.begun;
        self.begun += 1;
        let share = Share {
            cores: cores.max(1),
            microjoules: Some(0),
        };
        self.running.insert(id, share);
        id
    }

    /// So much energy was drawn since the last call; `None`: nobody's share is known any more. Energy that is drawn while nothing
    /// runs belongs to nobody.
    pub fn drawn(&mut self, microjoules: Option<u64>) {
        let cores: u64 = self.running.values().map(|s| u64::from(s.cores)).sum();
        let (mut before, mut given) = (0u64, 0u64);
        for share in self.running.values_mut() {
            // Up to a whole number each time, so that nothing is lost.
            before += u64::from(share.cores);
            let part = microjoules.map(|all| {
                let upto = u128::from(all) * u128::from(before) / u128::from(cores.max(1));
                let upto = u64::try_from(upto).unwrap_or(u64::MAX);
                let part = upto - given;
                given = upto;
                part
            });
            let sum = share.microjoules.zip(part);
            share.microjoules = sum.map(|(had, more)| had.saturating_add(more));
        }
    }

    /// Something ends: its share in microjoules, if all of that is known.
    pub fn end(&mut self, id: u64) -> Option<u64> {
        self.running.remove(&id)?.microjoules
    }

    /// Whether nothing runs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn energy_is_divided_by_cores_while_several_run() {
        let mut account = EnergyAccount::default();
        account.drawn(Some(1000));
        let one = account.begin(1);
        account.drawn(Some(100));
        let three = account.begin(3);
        account.drawn(Some(400));
        assert_eq!(account.end(one), Some(200));
        account.drawn(Some(50));
        assert_eq!(account.end(three), Some(350));
        assert_eq!(account.end(three), None, "it has ended before");
        assert!(account.is_idle());
    }

    #[test]
    fn what_is_unknown_stays_unknown_for_those_that_ran() {
        let mut account = EnergyAccount::default();
        let first = account.begin(2);
        account.drawn(None);
        let second = account.begin(0);
        account.drawn(Some(90));
        assert_eq!(account.end(first), None);
        assert_eq!(account.end(second), Some(30));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
        /// The activities have had all the energy that was drawn, to the microjoule.
        #[test]
        fn nothing_is_lost_and_nothing_counted_twice(
            cores in prop::collection::vec(0u32..200, 1..20),
            drawn in prop::collection::vec(0u64..u64::MAX >> 8, 1..20),
        ) {
            let mut account = EnergyAccount::default();
            let ids: Vec<u64> = cores.iter().map(|c| account.begin(*c)).collect();
            drawn.iter().for_each(|d| account.drawn(Some(*d)));
            let sum: u64 = ids.into_iter().map(|id| account.end(id).unwrap()).sum();
            prop_assert_eq!(sum, drawn.iter().sum::<u64>());
        }
    }
}
