//! The earliest of many times that change often: a tournament tree over numbered slots.

use tarn_types::units::Time;

/// Times by slot; a slot without one has [`Time::MAX`].
#[derive(Debug, Default)]
pub(crate) struct Earliest {
    times: Vec<Time>,
    /// The winning slot of each subtree; the root is at 1, the leaves are implied.
    winners: Vec<u32>,
}

impl Earliest {
    /// Sets a slot's time.
    pub(crate) fn set(&mut self, slot: u32, time: Time) {
        if slot as usize >= self.times.len() {
            self.grow(slot);
        }
        self.times[slot as usize] = time;
        let mut at = (slot as usize + self.times.len()) / 2;
        while at > 0 {
            self.winners[at] = self.better(2 * at);
            at /= 2;
        }
    }

    /// The earliest time, and the lowest slot that has it.
    pub(crate) fn first(&self) -> Option<(Time, u32)> {
        let slot = *self.winners.get(1)?;
        let time = self.times[slot as usize];
        (time < Time::MAX).then_some((time, slot))
    }

    /// The slot that wins at a position of the tree.
    fn winner(&self, at: usize) -> u32 {
        match at.checked_sub(self.times.len()) {
            Some(leaf) => leaf as u32,
            None => self.winners[at],
        }
    }

    /// The better of a position and its right neighbour.
    fn better(&self, left: usize) -> u32 {
        let (a, b) = (self.winner(left), self.winner(left + 1));
        if self.times[b as usize] < self.times[a as usize] {
            b
        } else {
            a
        }
    }

    fn grow(&mut self, slot: u32) {
        let len = (slot as usize + 1).next_power_of_two().max(2);
        self.times.resize(len, Time::MAX);
        self.winners = vec![0; len];
        for at in (1..len).rev() {
            self.winners[at] = self.better(2 * at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_the_least_of_a_plain_list(sets in prop::collection::vec((0u32..40, 0u64..100), 1..200)) {
            let mut tree = Earliest::default();
            let mut plain = vec![Time::MAX; 40];
            for (slot, time) in sets {
                let time = if time < 30 { Time::MAX } else { time };
                tree.set(slot, time);
                plain[slot as usize] = time;
                let least = (0u32..).zip(&plain).map(|(s, t)| (*t, s)).min();
                prop_assert_eq!(tree.first(), least.filter(|l| l.0 < Time::MAX));
            }
        }
    }
}
