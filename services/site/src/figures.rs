//! Figures of the whole site, for a monitoring system: few, whatever users do.

use crate::model::job::SiteJobPhase;
use crate::state::Site;
use tarn_types::units::SECOND;

pub use crate::model::flow::{FlowSums, TIME_CLASSES, WantedAccount};

/// The site at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteFigures {
    /// Workflows that are over, since the log began.
    pub workflows: FlowSums,
    /// Workflows that are not.
    pub open_workflows: u64,
    /// Jobs of which the accounting is awaited.
    pub awaited_accounts: u64,
    /// Jobs without nodes.
    pub queued_jobs: u64,
    /// Jobs whose nodes get their inputs.
    pub staging_jobs: u64,
    /// Jobs that run.
    pub running_jobs: u64,
    /// Jobs whose outputs are published, go out or are removed.
    pub ending_jobs: u64,
    /// Nodes that answer.
    pub nodes_up: u64,
    /// Nodes that do not.
    pub nodes_away: u64,
    /// Bytes of the stores of nodes that answer.
    pub store_bytes: u64,
    /// Bytes of these that are taken or promised.
    pub taken_bytes: u64,
    /// Bytes that came from outside for users' jobs, went there, and went between nodes.
    pub moved_bytes: [u64; 3],
    /// Node-seconds of jobs with data lines, by tarn's log.
    pub node_seconds: u64,
}

impl Site {
    /// The figures now.
    #[must_use]
    pub fn figures(&self) -> SiteFigures {
        let mut figures = SiteFigures {
            workflows: self.flows.sums.clone(),
            open_workflows: self.flows.open_runs(),
            awaited_accounts: self.flows.wanted_count(),
            ..SiteFigures::default()
        };
        for job in self.jobs.values() {
            match job.phase {
                SiteJobPhase::Queued => figures.queued_jobs += 1,
                SiteJobPhase::Staging => figures.staging_jobs += 1,
                SiteJobPhase::Running => figures.running_jobs += 1,
                SiteJobPhase::Publishing
                | SiteJobPhase::Published
                | SiteJobPhase::Sending
                | SiteJobPhase::Sent
                | SiteJobPhase::Leaving => figures.ending_jobs += 1,
                SiteJobPhase::Ended => {}
            }
        }
        let ledgers = self.stock().ledgers();
        let (all, up) = (ledgers.count() as u64, ledgers.usable().count() as u64);
        (figures.nodes_up, figures.nodes_away) = (up, all - up);
        let space = ledgers.space();
        (figures.store_bytes, figures.taken_bytes) = (space.capacity(), space.taken());
        let used = self.usage_of_users();
        figures.moved_bytes = [used.read_outside, used.written_outside, used.between_nodes];
        let seconds = used.node_nanos / u128::from(SECOND);
        figures.node_seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        figures
    }
}
