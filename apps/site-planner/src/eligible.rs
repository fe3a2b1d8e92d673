//! Jobs that Slurm would not start are not planned: holds, dependencies, limits, licences, partitions that are down.

use crate::marks::is_own_reservation;
use tarn_slurm::{PartitionState, PendingReason, SlurmJob, SlurmSnapshot};

/// Characters of a stage's text that are kept.
const MAX_TEXT: usize = 300;
const STAGE_FAILED: &str = "a stage of its data failed";

/// Why a job that waits gets no plan; `None` if it gets one.
pub(crate) fn why_not(job: &SlurmJob, snapshot: &SlurmSnapshot) -> Option<String> {
    if job.is_incomplete {
        return Some("Slurm's answer about it is cut or cannot be read".to_owned());
    }
    if job.het.is_some() {
        return Some("the parts of a heterogeneous job begin together".to_owned());
    }
    if let Some(why) = failed_stage(job) {
        return Some(why);
    }
    if job.priority == 0 {
        let why = refused_by(&job.reason, false);
        return Some(why.unwrap_or_else(|| "it is held".to_owned()));
    }
    let has_foreign = !job.reservation.is_empty() && !is_own_reservation(&job.reservation);
    if has_foreign && !snapshot.reservations.contains_key(&job.reservation) {
        return Some(format!("there is no reservation {}", job.reservation));
    }
    let starts = |name: &String| {
        let state = snapshot.partitions.get(name).map(|p| p.state);
        matches!(state, Some(PartitionState::Up | PartitionState::Drain))
    };
    if !job.partitions.iter().any(starts) {
        return Some("its partition starts no jobs".to_owned());
    }
    // Of a job whose begin time has passed Slurm shows that reason until its next pass, too.
    let has_begin = job.eligible.is_some();
    // Nodes that tarn reserves are missing to others only for a while: such a job keeps its place and its promise.
    // Slurm's text of them stays until it looks again; what is closed, or reserved by others, the planner knows by itself.
    if is_for_nodes(job) && job.required.is_empty() {
        return None;
    }
    // Of a job that waits for no other any more Slurm shows the reason until its next pass.
    if job.reason == PendingReason::Dependency && waits_for(job, snapshot).is_some() {
        return None;
    }
    refused_by(&job.reason, has_begin)
}

/// Slurm holds a job of which a stage failed, and shows the text of the stage in place of a reason.
fn failed_stage(job: &SlurmJob) -> Option<String> {
    let is_text = job.description.starts_with("burst_buffer/");
    let failed = is_text || job.reason == PendingReason::BurstBufferOperation;
    let text: String = job.description.chars().take(MAX_TEXT).collect();
    failed.then(|| {
        if is_text {
            format!("{STAGE_FAILED}: {text}")
        } else {
            STAGE_FAILED.to_owned()
        }
    })
}

/// Whether it waits as nodes that it could have are not available, or reserved.
fn is_for_nodes(job: &SlurmJob) -> bool {
    match &job.reason {
        PendingReason::RequiredNodeNotAvailable => true,
        PendingReason::Other(text) => text.starts_with("Nodes required for job are"),
        _ => false,
    }
}

/// The jobs whose good end, or any end, a job waits for; `None` if it waits for something else too, or if one of them
/// is not known.
pub(crate) fn waits_for(job: &SlurmJob, snapshot: &SlurmSnapshot) -> Option<Vec<u32>> {
    // Behind a question mark any one of several is enough.
    let text = job.dependency.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    if text.contains('?') {
        return None;
    }
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (kind, rest) = part.split_once(':')?;
        let number = rest.split(['(', '+']).next()?.parse().ok()?;
        let is_end = matches!(kind, "afterok" | "afterany" | "afterburstbuffer");
        if !is_end || rest.contains('+') || !snapshot.jobs.contains_key(&number) {
            return None;
        }
        numbers.push(number);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

/// Slurm's own reason, unless the job waits for nothing but nodes, for those before it, or for its begin time.
fn refused_by(reason: &PendingReason, has_begin: bool) -> Option<String> {
    match reason {
        PendingReason::None
        | PendingReason::Priority
        | PendingReason::Resources
        | PendingReason::BurstBufferResources
        | PendingReason::BurstBufferStageIn
        | PendingReason::Prolog
        | PendingReason::Cleaning => None,
        // The begin is a property of the plan, as far as it is known.
        PendingReason::BeginTime if has_begin => None,
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
        PendingReason::BurstBufferOperation => Some(STAGE_FAILED.to_owned()),
        PendingReason::AssociationLimit(name) | PendingReason::QosLimit(name) => {
            Some(format!("a limit of its account: {name}"))
        }
        PendingReason::Other(_) => Some("another reason of Slurm's".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_job_says_who_holds_it_or_which_stage_failed() {
        let snapshot = crate::tests::cluster(2);
        let why = |priority, reason, description: &str| {
            let job = SlurmJob {
                priority,
                reason,
                description: description.to_owned(),
                ..crate::tests::waiting(7, 1)
            };
            why_not(&job, &snapshot)
        };
        let is = |why: Option<String>, expected: &str| assert_eq!(why.as_deref(), Some(expected));
        is(why(0, PendingReason::HeldByUser, ""), "its user holds it");
        let administrator = why(0, PendingReason::HeldByAdministrator, "");
        is(administrator, "an administrator holds it");
        is(why(0, PendingReason::Priority, ""), "it is held");
        is(
            why(0, PendingReason::BurstBufferOperation, ""),
            STAGE_FAILED,
        );
        let text = "burst_buffer/lua: setup: error: too large";
        let failed = why(0, PendingReason::Other(text.to_owned()), text);
        is(failed, &format!("{STAGE_FAILED}: {text}"));
        assert_eq!(why(1, PendingReason::Priority, ""), None);
    }

    #[test]
    fn a_dependency_is_planned_if_it_is_on_ends_of_known_jobs_alone() {
        let mut snapshot = crate::tests::cluster(2);
        let job = crate::tests::waiting(7, 1);
        let of = |snapshot: &SlurmSnapshot, text: &str| {
            let dependency = text.to_owned();
            waits_for(
                &SlurmJob {
                    dependency,
                    ..job.clone()
                },
                snapshot,
            )
        };
        assert_eq!(of(&snapshot, ""), Some(Vec::new()));
        assert_eq!(of(&snapshot, "afterok:3(unfulfilled)"), None);
        for number in [3, 4] {
            snapshot
                .jobs
                .insert(number, crate::tests::waiting(number, 1));
        }
        let both = of(&snapshot, "afterok:3(unfulfilled),afterany:4(unfulfilled)");
        assert_eq!(both, Some(vec![3, 4]));
        for text in [
            "afterok:3(unfulfilled)?afterok:4(unfulfilled)",
            "afternotok:3(unfulfilled)",
            "after:3+5(unfulfilled)",
            "singleton(unfulfilled)",
            "afterok:3_1(unfulfilled)",
            "afterok:3(unfulfilled),afterok:5(unfulfilled)",
            "afterok:",
        ] {
            assert_eq!(of(&snapshot, text), None, "{text}");
        }
    }
}
