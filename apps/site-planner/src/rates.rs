//! Bandwidths by which the time of copies is estimated.

use tarn_types::site::Rates;

/// Bytes a second where nothing else is known.
const UNKNOWN: u64 = 1_000_000_000;

/// The bandwidths of a site, bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteRates {
    /// Between two nodes.
    pub link: Rates,
    /// Of a node's stores.
    pub tier: Rates,
    /// Of one node, to and from the external store.
    pub external: Rates,
}

impl Default for SiteRates {
    /// 1 GB/s everywhere.
    fn default() -> Self {
        let rates = Rates {
            read: UNKNOWN,
            write: UNKNOWN,
        };
        Self {
            link: rates,
            tier: rates,
            external: rates,
        }
    }
}
