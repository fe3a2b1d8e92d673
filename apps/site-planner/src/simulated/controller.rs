//! The controller of a simulated cluster: the site service's core, the planner, and what the controller remembers beside them.

use super::ClusterSettings;
use super::daemons::OrderInHand;
use crate::{Marks, SitePlanner, SiteRates};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::Stage;
use tarn_simulator::site::MachineStream;
use tarn_site::{Config, Site, SiteServiceEvent, Token};
use tarn_slurm::SlurmSnapshot;
use tarn_types::policy::Policy;
use tarn_types::site::{Machine, Rates};
use tarn_types::units::Time;

/// A stage that Slurm has called, and that waits for a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StageCall {
    pub(super) job: u32,
    pub(super) stage: Stage,
}

/// The controller.
pub(super) struct SimulatedController {
    pub(super) site: Site,
    pub(super) epoch: u64,
    pub(super) planner: SitePlanner,
    pub(super) marks: Marks,
    pub(super) policy: Policy,
    pub(super) next_token: Token,
    pub(super) calls: BTreeMap<Token, StageCall>,
    /// All events, as the log has them; only if the controller may be started again.
    pub(super) log: Vec<(Time, SiteServiceEvent)>,
    pub(super) keeps_log: bool,
    /// Jobs whose script was read.
    pub(super) looked_at: BTreeSet<u32>,
    /// The newest reading, when it began, and whether the planner has seen it.
    pub(super) reading: Option<(Time, SlurmSnapshot)>,
    pub(super) under_way: Option<(Time, SlurmSnapshot)>,
    pub(super) is_seen: bool,
    pub(super) is_requested: bool,
    pub(super) last_reading: Option<Time>,
    pub(super) next_reading: Option<Time>,
    pub(super) last_plan: Option<Time>,
    pub(super) is_plan_due: bool,
    pub(super) in_hand: BTreeMap<(String, u64), (OrderInHand, BTreeSet<MachineStream>)>,
}

impl SimulatedController {
    pub(super) fn new(settings: ClusterSettings) -> Self {
        Self {
            site: Site::new(config()),
            epoch: 1,
            planner: SitePlanner::new(settings.policy, SiteRates::default()),
            marks: Marks::new(1),
            policy: settings.policy,
            next_token: 0,
            calls: BTreeMap::new(),
            log: Vec::new(),
            keeps_log: false,
            looked_at: BTreeSet::new(),
            reading: None,
            under_way: None,
            is_seen: true,
            is_requested: false,
            last_reading: None,
            next_reading: None,
            last_plan: None,
            is_plan_due: false,
            in_hand: BTreeMap::new(),
        }
    }

    /// Nothing is left to a new controller but the log, and Slurm's scripts that ask it again.
    pub(super) fn begin_again(&mut self, site: Site, machine: &Machine) -> Vec<StageCall> {
        self.site = site;
        self.epoch += 1;
        self.planner = SitePlanner::new(self.policy, rates_of(machine));
        self.marks = Marks::new(self.epoch);
        self.looked_at.clear();
        (self.reading, self.is_seen) = (None, true);
        std::mem::take(&mut self.calls).into_values().collect()
    }
}

/// The settings of a site that sets none.
pub(super) fn config() -> Config {
    Config::default()
}

/// The bandwidths that the planner estimates with: those of the first island.
pub(super) fn rates_of(machine: &Machine) -> SiteRates {
    let unlimited = |rates: Rates| Rates {
        read: if rates.read == 0 {
            u64::MAX / 4
        } else {
            rates.read
        },
        write: if rates.write == 0 {
            u64::MAX / 4
        } else {
            rates.write
        },
    };
    let kind = machine.islands.first().map(|island| &island.kind);
    let tier = kind.and_then(|kind| kind.tiers.first());
    SiteRates {
        link: unlimited(kind.map(|kind| kind.link).unwrap_or_default()),
        tier: unlimited(tier.map(|tier| tier.rates).unwrap_or_default()),
        external: unlimited(machine.store.client),
    }
}
