//! The time for reading and writing in a job that is alone on the machine.

use tarn_types::site::Store;
use tarn_types::units::{Nanos, SECOND};

/// The external store as one transfer of a job sees it when nobody else moves anything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alone(pub(crate) Store);

impl Alone {
    /// Bytes a second towards `nodes` nodes; 0 for no limit.
    pub(crate) fn read_rate(self, nodes: u32) -> u64 {
        self.rate(self.0.client.read, self.0.rates.read, nodes)
    }

    /// Bytes a second from `nodes` nodes; 0 for no limit.
    pub(crate) fn write_rate(self, nodes: u32) -> u64 {
        self.rate(self.0.client.write, self.0.rates.write, nodes)
    }

    /// The lesser rate of the job's nodes and of one transfer's share of the store.
    fn rate(self, client: u64, store: u64, nodes: u32) -> u64 {
        let clients = client.saturating_mul(u64::from(nodes));
        let share = store.div_ceil(u64::from(self.0.saturates.max(1)));
        let limits = [clients, share].into_iter().filter(|limit| *limit > 0);
        limits.min().unwrap_or(0)
    }

    /// How long a job on `nodes` nodes reads and writes so many bytes.
    pub(crate) fn time(self, nodes: u32, read: u64, written: u64) -> Nanos {
        let reading = duration(read, self.read_rate(nodes));
        reading.saturating_add(duration(written, self.write_rate(nodes)))
    }
}

/// Bytes at a rate; rounded up. A rate of 0 takes no time.
fn duration(bytes: u64, rate: u64) -> Nanos {
    if rate == 0 {
        return 0;
    }
    let nanos = (u128::from(bytes) * u128::from(SECOND)).div_ceil(u128::from(rate));
    Nanos::try_from(nanos).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::site::Rates;

    fn alone(client: u64, store: u64, saturates: u32) -> Alone {
        let rates = |r| Rates { read: r, write: r };
        Alone(Store {
            rates: rates(store),
            client: rates(client),
            saturates,
        })
    }

    #[test]
    fn the_narrowest_place_decides() {
        assert_eq!(alone(0, 0, 4).read_rate(2), 0);
        assert_eq!(alone(10, 0, 4).read_rate(2), 20);
        assert_eq!(alone(0, 100, 4).read_rate(2), 25);
        assert_eq!(alone(10, 100, 4).read_rate(2), 20);
        assert_eq!(alone(10, 100, 4).write_rate(8), 25);
        assert_eq!(alone(10, 100, 1).time(2, 40, 30), 7 * SECOND / 2);
        assert_eq!(alone(0, 0, 1).time(1, u64::MAX, u64::MAX), 0);
        assert_eq!(alone(1, 0, 1).time(1, u64::MAX, u64::MAX), Nanos::MAX);
    }
}
