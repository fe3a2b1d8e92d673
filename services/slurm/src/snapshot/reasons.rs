//! Why a job waits.

/// Why a job waits, as slurmctld gives it (squeue(1), "JOB REASON CODES").
///
/// ```
/// use tarn_slurm::PendingReason;
///
/// let reason = PendingReason::parse("ReqNodeNotAvail, UnavailableNodes:n[1-2]");
/// assert_eq!(reason, PendingReason::RequiredNodeNotAvailable);
/// assert!(PendingReason::parse("JobHeldUser").is_held());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PendingReason {
    /// None was given yet.
    None,
    /// Jobs of higher priority wait.
    Priority,
    /// Its nodes are not free.
    Resources,
    /// Another job has not ended.
    Dependency,
    /// The other job ended in a way that it does not wait for.
    DependencyNeverSatisfied,
    /// Its begin time is not reached.
    BeginTime,
    /// Its user holds it.
    HeldByUser,
    /// An administrator, or Slurm itself, holds it.
    HeldByAdministrator,
    /// It was requeued too often, and is held.
    HeldAfterRequeues,
    /// Its licences are taken.
    Licences,
    /// Its reservation has not begun, or is full.
    Reservation,
    /// Its reservation was deleted.
    ReservationDeleted,
    /// A node that it requires is not available, or is reserved for others.
    RequiredNodeNotAvailable,
    /// Its partition is down.
    PartitionDown,
    /// Its partition is inactive.
    PartitionInactive,
    /// It wants more nodes, or nodes of other kinds, than its partition gives.
    PartitionNodeLimit,
    /// It wants more time than its partition gives.
    PartitionTimeLimit,
    /// No node fits its request.
    BadConstraints,
    /// As many tasks of its array run as its user allows.
    ArrayTaskLimit,
    /// Its burst buffer has no space.
    BurstBufferResources,
    /// Its burst buffer reads its data.
    BurstBufferStageIn,
    /// An operation of its burst buffer failed.
    BurstBufferOperation,
    /// Its nodes are being cleaned up.
    Cleaning,
    /// The prolog of its nodes runs.
    Prolog,
    /// A limit of its association, as Slurm names it (`AssocGrpCpuLimit`).
    AssociationLimit(String),
    /// A limit of its quality of service, as Slurm names it (`QOSMaxJobsPerUserLimit`).
    QosLimit(String),
    /// Another reason, or a text in place of one.
    Other(String),
}

impl PendingReason {
    /// Reads the text of `squeue -O Reason`, or a name of JSON.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        // Slurm puts details behind a comma: `ReqNodeNotAvail, May be reserved for other job`.
        let name = text.split(',').next().unwrap_or_default().trim();
        match name {
            "" | "None" | "(null)" => Self::None,
            "Priority" => Self::Priority,
            "Resources" => Self::Resources,
            "Dependency" => Self::Dependency,
            "DependencyNeverSatisfied" => Self::DependencyNeverSatisfied,
            "BeginTime" => Self::BeginTime,
            "JobHeldUser" => Self::HeldByUser,
            "JobHeldAdmin" => Self::HeldByAdministrator,
            "JobHoldMaxRequeue" => Self::HeldAfterRequeues,
            "Licenses" => Self::Licences,
            "Reservation" => Self::Reservation,
            "ReservationDeleted" => Self::ReservationDeleted,
            "ReqNodeNotAvail" => Self::RequiredNodeNotAvailable,
            "PartitionDown" => Self::PartitionDown,
            "PartitionInactive" => Self::PartitionInactive,
            "PartitionNodeLimit" | "PartitionConfig" => Self::PartitionNodeLimit,
            "PartitionTimeLimit" => Self::PartitionTimeLimit,
            "BadConstraints" => Self::BadConstraints,
            "JobArrayTaskLimit" => Self::ArrayTaskLimit,
            "BurstBufferResources" => Self::BurstBufferResources,
            "BurstBufferStageIn" => Self::BurstBufferStageIn,
            "BurstBufferOperation" => Self::BurstBufferOperation,
            "Cleaning" => Self::Cleaning,
            "Prolog" => Self::Prolog,
            name if is_name(name) && name.starts_with("Assoc") => {
                Self::AssociationLimit(name.to_owned())
            }
            name if is_name(name) && name.starts_with("QOS") => Self::QosLimit(name.to_owned()),
            _ => Self::Other(text.to_owned()),
        }
    }

    /// Whether somebody has to release the job before it can begin.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(
            self,
            Self::HeldByUser | Self::HeldByAdministrator | Self::HeldAfterRequeues
        )
    }
}

/// Whether a text is one word, as the names of Slurm's reasons are.
fn is_name(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_by_its_name_and_a_text_as_it_is() {
        let limit = PendingReason::AssociationLimit("AssocGrpCpuLimit".into());
        assert_eq!(PendingReason::parse("AssocGrpCpuLimit"), limit);
        let limit = PendingReason::QosLimit("QOSMaxJobsPerUserLimit".into());
        assert_eq!(PendingReason::parse("QOSMaxJobsPerUserLimit"), limit);
        let text = "burst_buffer/lua: slurm_bb_pre_run: no space, 3 nodes";
        assert_eq!(
            PendingReason::parse(text),
            PendingReason::Other(text.into())
        );
        assert_eq!(PendingReason::parse("None"), PendingReason::None);
    }
}
