//! What Slurm would not start is not planned: holds, dependencies, limits, licences, partitions that are down.

use tarn_slurm::{PartitionState, PendingReason, SlurmJob, SlurmSnapshot};

/// Why a job that waits gets no plan; `None` if it gets one.
pub(crate) fn why_not(job: &SlurmJob, snapshot: &SlurmSnapshot, now: u64) -> Option<String> {
    if job.is_incomplete {
        return Some("Slurm's answer about it is cut".to_owned());
    }
    if job.het.is_some() {
        return Some("the parts of a heterogeneous job begin together".to_owned());
    }
    if job.priority == 0 {
        return Some("it is held".to_owned());
    }
    if !job.reservation.is_empty() && !snapshot.reservations.contains_key(&job.reservation) {
        return Some(format!("there is no reservation {}", job.reservation));
    }
    let starts = |name: &String| {
        let state = snapshot.partitions.get(name).map(|p| p.state);
        matches!(state, Some(PartitionState::Up | PartitionState::Drain))
    };
    if !job.partitions.iter().any(starts) {
        return Some("its partition starts no jobs".to_owned());
    }
    refused_by(&job.reason, job.eligible.is_some_and(|at| at > now))
}

/// Slurm's own reason, unless the job waits for nothing but nodes, for those before it, or for its begin time.
fn refused_by(reason: &PendingReason, is_later: bool) -> Option<String> {
    match reason {
        PendingReason::None
        | PendingReason::Priority
        | PendingReason::Resources
        | PendingReason::BurstBufferResources
        | PendingReason::BurstBufferStageIn
        | PendingReason::Prolog
        | PendingReason::Cleaning => None,
        // The begin is a property of the plan.
        PendingReason::BeginTime if is_later => None,
        PendingReason::BeginTime => Some("its begin time has not come".to_owned()),
        PendingReason::Dependency => Some("it waits for another job".to_owned()),
        PendingReason::DependencyNeverSatisfied => {
            Some("the job that it waits for ended otherwise".to_owned())
        }
        PendingReason::HeldByUser => Some("its user holds it".to_owned()),
        PendingReason::HeldByAdministrator => Some("an administrator holds it".to_owned()),
        PendingReason::HeldAfterRequeues => Some("it was requeued too often".to_owned()),
        PendingReason::Licences => Some("its licences are taken".to_owned()),
        PendingReason::Reservation => Some("its reservation has not begun, or is full".to_owned()),
        PendingReason::ReservationDeleted => Some("its reservation was deleted".to_owned()),
        PendingReason::RequiredNodeNotAvailable => {
            Some("a node that it requires is not available".to_owned())
        }
        PendingReason::PartitionDown | PendingReason::PartitionInactive => {
            Some("its partition is down".to_owned())
        }
        PendingReason::PartitionNodeLimit => {
            Some("it asks for more nodes than its partition gives".to_owned())
        }
        PendingReason::PartitionTimeLimit => {
            Some("it asks for more time than its partition gives".to_owned())
        }
        PendingReason::BadConstraints => Some("no node fits its request".to_owned()),
        PendingReason::ArrayTaskLimit => {
            Some("as many tasks of its array run as it allows".to_owned())
        }
        PendingReason::BurstBufferOperation => Some("a stage of its data failed".to_owned()),
        PendingReason::AssociationLimit(name) | PendingReason::QosLimit(name) => {
            Some(format!("a limit of its account: {name}"))
        }
        PendingReason::Other(_) => Some("another reason of Slurm's".to_owned()),
    }
}
