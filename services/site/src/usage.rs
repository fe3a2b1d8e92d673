//! The use of owners: the base on which a site would charge. docs/guide/on-a-site.md, "Usage".

use crate::model::flow::WantedAccount;
use crate::model::requester::Requester;
use crate::model::usage::{DAY, OwnerUsage, UsageCounts};
use crate::state::Site;
use std::collections::BTreeMap;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{ControllerReply, Owner, Part, SlurmJobId, Uid, UsageInfo};
use tarn_types::site::JobResult;
use tarn_types::units::{SECOND, Time};

const MIB: u128 = 1 << 20;

impl Site {
    /// Counts bytes that were just moved for a job: for its user, and for its group.
    pub(crate) fn count_moved(&mut self, id: SlurmJobId, what: impl Fn(&mut UsageCounts)) {
        let now = self.now;
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        for owner in [job.owner, Owner::Project(job.group)] {
            what(self.usage.meter(owner, now).day(now / DAY));
        }
    }

    /// A job's nodes are not its any more: their time is its user's, and its group's.
    pub(crate) fn count_nodes(&mut self, id: SlurmJobId) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let Some(began) = job.began.take() else {
            return;
        };
        let nodes = job.nodes.len() as u64;
        let (owner, partitions) = (job.owner, job.partition_bytes().saturating_mul(nodes));
        for owner in [job.owner, Owner::Project(job.group)] {
            let meter = self.usage.meter(owner, now);
            meter.spread((began, now), nodes, |c| &mut c.node_nanos);
        }
        let meter = self.usage.meter(owner, now);
        meter.spread((began, now), partitions, |c| &mut c.byte_nanos);
    }

    /// The sums of all users since the log began, jobs that have nodes now not included.
    pub(crate) fn usage_of_users(&self) -> UsageCounts {
        let users = self.usage.iter();
        let users = users.filter(|(owner, _)| matches!(owner, Owner::User(_)));
        let mut sums = UsageCounts::default();
        users.for_each(|(_, usage)| sums.add(&usage.sum(0)));
        sums
    }

    /// The jobs that have left, of which Slurm's accounting is to say how they ended.
    #[must_use]
    pub fn wanted_accounts(&self) -> Vec<WantedAccount> {
        self.flows.wanted()
    }

    /// Whether there are any.
    #[must_use]
    pub fn wants_accounts(&self) -> bool {
        self.flows.wanted_count() > 0
    }

    /// Of the results that Slurm's accounting has, those that are new.
    #[must_use]
    pub fn new_accounts(
        &self,
        mut jobs: BTreeMap<SlurmJobId, JobResult>,
    ) -> BTreeMap<SlurmJobId, JobResult> {
        jobs.retain(|job, result| self.flows.is_wanted_end(*job, result));
        jobs
    }

    /// Slurm's accounting has the ends of jobs.
    pub(crate) fn accounted(&mut self, jobs: &BTreeMap<SlurmJobId, JobResult>) {
        for (job, result) in jobs {
            self.flows.account(*job, result);
        }
        self.expire_flows();
    }

    pub(crate) fn expire_flows(&mut self) {
        let workflows = &self.catalog.workflows;
        let has_ended = |user: Uid, name: &str| {
            let found = workflows.get(&(Owner::User(user), name.to_owned()));
            found.is_none_or(|workflow| workflow.has_ended)
        };
        self.flows.expire(self.now, has_ended);
    }

    /// Which jobs had data lines: for root, who audits them.
    pub(crate) fn data_jobs(&self, requester: &Requester<'_>) -> ControllerReply {
        if requester.user != 0 && !requester.trusted {
            let text = "only root learns which jobs of all users have data lines";
            return ControllerReply::Refused(RequestError::new(Code::Denied, text));
        }
        ControllerReply::DataJobs {
            known_since: self.flows.known_since,
            jobs: self.flows.numbers(),
        }
    }

    /// Bytes that an owner has on all nodes, and was promised.
    pub(crate) fn held_by(&self, owner: Owner) -> u64 {
        let stored = self.usage.stored(owner);
        let promised = self.nodes.values().flat_map(|n| &n.promised);
        let promised = promised.filter(|((_, whose), _)| *whose == owner);
        let kept = self.nodes.values().flat_map(|n| &n.checkpoints);
        let kept = kept.filter(|((user, _), _)| Owner::User(*user) == owner);
        let kept = kept.map(|(_, (_, bytes))| bytes);
        let promised = promised.map(|(_, bytes)| bytes);
        promised
            .chain(kept)
            .fold(stored, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// A node has a part now, in this store. In how many of the node's stores a part is does not matter to its owner.
    pub(crate) fn place(&mut self, (node, store): (&str, &str), part: &Part, bytes: u64) {
        let Some(there) = self.nodes.get_mut(node) else {
            return;
        };
        let places = there.places.entry(part.clone()).or_default();
        places.insert(store.to_owned());
        let before = there.parts.insert(part.clone(), bytes).unwrap_or(0);
        self.usage.store(part.owner, self.now, (before, bytes));
    }

    /// A store of a node has it no more.
    pub(crate) fn unplace(&mut self, (name, store): (&str, &str), part: &Part) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let is_last = node.places.get_mut(part).is_none_or(|places| {
            places.remove(store);
            places.is_empty()
        });
        if is_last {
            self.displace(name, part);
        }
    }

    /// A node has it no more.
    pub(crate) fn displace(&mut self, node: &str, part: &Part) {
        let Some(node) = self.nodes.get_mut(node) else {
            return;
        };
        node.places.remove(part);
        node.unused.remove(part);
        let Some(bytes) = node.parts.remove(part) else {
            return;
        };
        self.usage.store(part.owner, self.now, (bytes, 0));
    }

    /// All that these have used since the beginning of a day, jobs that have nodes now included.
    pub(crate) fn report_usage(
        &self,
        since: Time,
        may_see: impl Fn(Owner) -> bool,
    ) -> Vec<UsageInfo> {
        let seen = self.usage.iter().filter(|(owner, _)| may_see(*owner));
        let mut meters: BTreeMap<Owner, OwnerUsage> = seen.map(|(o, m)| (o, m.clone())).collect();
        for job in self.jobs.values() {
            let Some(began) = job.began else { continue };
            for owner in [job.owner, Owner::Project(job.group)] {
                if may_see(owner) {
                    let meter = meters.entry(owner).or_default();
                    let nodes = job.nodes.len() as u64;
                    meter.spread((began, self.now), nodes, |c| &mut c.node_nanos);
                }
            }
            if may_see(job.owner) {
                let partitions = job.partition_bytes().saturating_mul(job.nodes.len() as u64);
                let meter = meters.entry(job.owner).or_default();
                meter.spread((began, self.now), partitions, |c| &mut c.byte_nanos);
            }
        }
        let mut infos = Vec::with_capacity(meters.len());
        for (owner, mut meter) in meters {
            meter.advance(self.now);
            let sum = meter.sum(since);
            let whole = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
            infos.push(UsageInfo {
                owner,
                node_seconds: whole(sum.node_nanos / u128::from(SECOND)),
                mib_seconds: whole(sum.byte_nanos / MIB / u128::from(SECOND)),
                read_outside: sum.read_outside,
                written_outside: sum.written_outside,
                between_nodes: sum.between_nodes,
            });
        }
        infos
    }
}
