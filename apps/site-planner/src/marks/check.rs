//! Which wishes Slurm's rules allow: what it would refuse, or carry out otherwise, is not called for.

use super::{JoinWish, ReservationWish};
use std::collections::{BTreeMap, BTreeSet};
use tarn_slurm::{
    NodeBase, NodeFlag, PartitionState, PendingReason, SlurmJob, SlurmJobState, SlurmNode,
    SlurmSnapshot,
};

/// Seconds within which another reservation is in the way.
const AHEAD: u64 = 60;

/// Why a wish is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum WishError {
    #[error("its reservation has just gone, or Slurm refused it; it is only advised for a while")]
    LeftAlone,
    #[error("it has a reservation already")]
    Twice,
    #[error("there are {0} reservations")]
    TooMany(usize),
    #[error("Slurm is slow: only {0} reservations can be renewed in time")]
    TooSlow(usize),
    #[error("its user has {0} reservations")]
    TooManyOfUser(usize),
    #[error("its user's reservations have kept nodes idle for too long today")]
    IdleTooLong,
    #[error("it names no node")]
    NoNode,
    #[error("there is no node {0}")]
    UnknownNode(String),
    #[error("node {0} takes no jobs")]
    UnusableNode(String),
    #[error("node {0} is in another reservation")]
    Reserved(String),
    #[error("job {0} is not known, or has ended")]
    UnknownJob(u32),
    #[error("job {0} is of another user")]
    OtherUser(u32),
    #[error("job {0} has nodes, a reservation or a kind that tarn does not touch")]
    Untouchable(u32),
    #[error("job {0} asks for more nodes, or nodes of another partition")]
    OtherNodes(u32),
}

/// The nodes of partitions, by their names.
type PartitionNodes<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The wishes that a snapshot allows.
pub(super) struct SnapshotCheck<'a> {
    snapshot: &'a SlurmSnapshot,
    /// Nodes of others' reservations that have begun or begin soon.
    reserved: BTreeSet<&'a str>,
    /// The names of own reservations.
    own: BTreeSet<&'a str>,
}

impl<'a> SnapshotCheck<'a> {
    pub(super) fn new(snapshot: &'a SlurmSnapshot, own: impl Iterator<Item = &'a String>) -> Self {
        let own: BTreeSet<&str> = own.map(String::as_str).collect();
        let soon = snapshot.read_at.saturating_add(AHEAD);
        let others = snapshot.reservations.values().filter(|reservation| {
            let begins = reservation.start.is_none_or(|start| start <= soon);
            let has_ended = reservation.end.is_some_and(|end| end <= snapshot.read_at);
            !own.contains(reservation.name.as_str()) && begins && !has_ended
        });
        let reserved = others
            .flat_map(|r| r.nodes.iter().map(String::as_str))
            .collect();
        Self {
            snapshot,
            reserved,
            own,
        }
    }

    /// Whether a wish can be followed.
    pub(super) fn of(&self, wish: &ReservationWish) -> Result<(), WishError> {
        if wish.nodes.is_empty() || wish.jobs.is_empty() {
            return Err(WishError::NoNode);
        }
        wish.nodes.iter().try_for_each(|name| self.node(name))?;
        let mut partitions = PartitionNodes::default();
        for join in &wish.jobs {
            self.job(wish, join)?;
            if !self.is_whole(wish, join, &mut partitions) {
                return Err(WishError::OtherNodes(join.job));
            }
        }
        Ok(())
    }

    /// The wish without the jobs because of which it could not be followed, and why each is left out. A wish that can be
    /// followed stays as it is, and so does one of which nothing would be left.
    pub(super) fn suitable(&self, wish: &ReservationWish) -> (ReservationWish, Vec<WishError>) {
        let mut left_out = Vec::new();
        let mut kept = ReservationWish {
            nodes: BTreeSet::new(),
            jobs: Vec::new(),
            ..wish.clone()
        };
        if self.of(wish).is_ok() {
            return (wish.clone(), left_out);
        }
        for join in &wish.jobs {
            let mut more = kept.clone();
            more.nodes.extend(join.nodes.iter().cloned());
            more.jobs.push(join.clone());
            match self.of(&more) {
                Ok(()) => kept = more,
                Err(why) => left_out.push(why),
            }
        }
        if kept.jobs.is_empty() {
            return (wish.clone(), Vec::new());
        }
        (kept, left_out)
    }

    fn node(&self, name: &str) -> Result<(), WishError> {
        let node = self.snapshot.nodes.get(name);
        let node = node.ok_or_else(|| WishError::UnknownNode(name.to_owned()))?;
        // One that sleeps is not woken for a job that waits beside its reservation. One that boots may fail to.
        if !node.state.is_usable() || is_asleep(node) {
            return Err(WishError::UnusableNode(name.to_owned()));
        }
        if self.reserved.contains(name) {
            return Err(WishError::Reserved(name.to_owned()));
        }
        Ok(())
    }

    fn job(&self, wish: &ReservationWish, join: &JoinWish) -> Result<(), WishError> {
        let job = self.snapshot.jobs.get(&join.job);
        let job = job.ok_or(WishError::UnknownJob(join.job))?;
        if job.user != wish.workflow.0 || job.user_name != wish.user {
            return Err(WishError::OtherUser(join.job));
        }
        if !self.is_touchable(job) {
            return Err(WishError::Untouchable(join.job));
        }
        let is_enough = join.nodes.len() >= job.min_nodes as usize;
        if !is_enough || !join.nodes.is_subset(&wish.nodes) {
            return Err(WishError::OtherNodes(join.job));
        }
        Ok(())
    }

    /// Whether all nodes of the wish are of a partition of this job: Slurm starts it in no other reservation.
    fn is_whole(
        &self,
        wish: &ReservationWish,
        join: &JoinWish,
        partitions: &mut PartitionNodes<'a>,
    ) -> bool {
        let Some(job) = self.snapshot.jobs.get(&join.job) else {
            return false;
        };
        job.partitions.iter().any(|name| {
            let of_partition = partitions.entry(name).or_insert_with(|| {
                let partition = self.snapshot.partitions.get(name);
                let partition = partition.filter(|p| p.state == PartitionState::Up);
                let nodes = partition.into_iter().flat_map(|p| p.nodes.iter());
                nodes.map(String::as_str).collect()
            });
            let mut nodes = wish.nodes.iter();
            nodes.all(|node| of_partition.contains(node.as_str()))
        })
    }

    /// Only jobs with data lines, without nodes or a reservation of their user's choice, and no part of anything larger.
    fn is_touchable(&self, job: &SlurmJob) -> bool {
        let is_own = job.reservation.is_empty() || self.own.contains(job.reservation.as_str());
        job.has_burst_buffer
            && is_own
            && job.required.is_empty()
            && job.array.is_none()
            && job.het.is_none()
            && !job.is_incomplete
            && !matches!(job.state, SlurmJobState::Ended(_))
    }
}

/// Whether Slurm starts a job at its next pass once it has joined this reservation, which ends tarn's own delay of it.
pub(super) fn can_join(
    snapshot: &SlurmSnapshot,
    reservation: &str,
    (join, is_delayed): (&JoinWish, bool),
) -> bool {
    let Some(job) = snapshot.jobs.get(&join.job) else {
        return false;
    };
    let reserved = snapshot
        .reservations
        .get(reservation)
        .filter(|r| r.is_active);
    let holds = |node: &String| reserved.is_some_and(|r| r.nodes.contains(node));
    let is_ready = matches!(
        job.reason,
        PendingReason::None
            | PendingReason::Priority
            | PendingReason::Resources
            | PendingReason::RequiredNodeNotAvailable
    ) || is_delayed && job.reason == PendingReason::BeginTime;
    let another = snapshot.jobs.values().any(|other| {
        other.state == SlurmJobState::Pending
            && super::epoch_of(&other.reservation).is_some()
            && other.number != job.number
    });
    job.state == SlurmJobState::Pending
        && job.priority > 0
        && job.reservation.is_empty()
        && join.is_staged
        && is_ready
        && !another
        && join.nodes.len() >= job.min_nodes as usize
        && join.nodes.iter().all(|node| {
            let is_read = snapshot.nodes.get(node).is_some_and(|n| !n.is_incomplete);
            is_read && holds(node) && is_idle(snapshot, node)
        })
}

/// Seconds until somebody else's reservation of a wish's nodes begins: Slurm refuses one that overlaps it.
pub(super) fn until_another(snapshot: &SlurmSnapshot, wish: &ReservationWish) -> u32 {
    let others = snapshot.reservations.values().filter(|other| {
        super::epoch_of(&other.name).is_none()
            && other.nodes.iter().any(|node| wish.nodes.contains(node))
    });
    let begins = others.filter_map(|other| other.start);
    let ahead = begins.filter_map(|at| at.checked_sub(snapshot.read_at));
    let soonest = ahead.filter(|seconds| *seconds > 0).min();
    soonest.map_or(u32::MAX, |seconds| {
        u32::try_from(seconds).unwrap_or(u32::MAX)
    })
}

/// Whether a node has no job and can get one now: it is `idle`, reserved, and nothing else.
pub(super) fn is_idle(snapshot: &SlurmSnapshot, node: &str) -> bool {
    let harmless = [
        NodeFlag::Reserved,
        NodeFlag::Planned,
        NodeFlag::Cloud,
        NodeFlag::Dynamic,
    ];
    snapshot.nodes.get(node).is_some_and(|node| {
        let mut flags = node.state.flags.iter();
        node.state.base == NodeBase::Idle && flags.all(|flag| harmless.contains(flag))
    })
}

fn is_asleep(node: &SlurmNode) -> bool {
    let asleep = [
        NodeFlag::PowerDown,
        NodeFlag::PoweringDown,
        NodeFlag::PoweredDown,
        NodeFlag::PoweringUp,
    ];
    asleep.iter().any(|flag| node.state.flags.contains(flag))
}

/// Whether no job has a reserved node.
pub(super) fn is_kept(snapshot: &SlurmSnapshot, node: &str) -> bool {
    let node = snapshot.nodes.get(node);
    node.is_some_and(|node| node.state.base == NodeBase::Idle)
}

/// The features of a node that has none of its own name.
pub(super) fn features_without_name(snapshot: &SlurmSnapshot, name: &str) -> Option<Vec<String>> {
    // Of a list that is cut the rest would be lost.
    let node = snapshot
        .nodes
        .get(name)
        .filter(|node| !node.is_incomplete)?;
    let has = node.features.iter().any(|feature| feature == name);
    (!has).then(|| node.features.clone())
}
