//! States of nodes and jobs, and the reasons why jobs wait, from every form in which Slurm writes them.

use std::collections::BTreeSet;

/// The base state of a node. Exactly one holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeBase {
    /// It has no job.
    Idle,
    /// All of its processors have jobs.
    Allocated,
    /// Some of its processors have jobs.
    Mixed,
    /// Slurm has given it up.
    Down,
    /// An error of its hardware.
    Error,
    /// Configured, but not there yet.
    Future,
    /// Not reported yet, or a state that tarn does not know.
    Unknown,
}

/// A flag of a node: it holds beside the base state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeFlag {
    /// It gets no new jobs, by its administrator.
    Drain,
    /// It is expected to fail; it gets no new jobs.
    Fail,
    /// It does not answer slurmctld.
    NotResponding,
    /// A job on it is ending.
    Completing,
    /// In a reservation for maintenance.
    Maintenance,
    /// In a reservation.
    Reserved,
    /// Backfill keeps it for a job of higher priority.
    Planned,
    /// It is to be powered down.
    PowerDown,
    /// It is being powered down.
    PoweringDown,
    /// It is powered down; Slurm wakes it for a job.
    PoweredDown,
    /// It is being powered up or configured.
    PoweringUp,
    /// It is to reboot.
    RebootRequested,
    /// It reboots.
    RebootIssued,
    /// It registered with less than its configuration promises.
    InvalidRegistration,
    /// Network performance counters are in use on it.
    PerformanceCounters,
    /// It comes from a cloud.
    Cloud,
    /// A dynamic node.
    Dynamic,
    /// A flag that tarn does not know.
    Unrecognized,
}

/// The state of a node.
///
/// ```
/// use tarn_slurm::{NodeBase, NodeFlag, SlurmNodeState};
///
/// let state = SlurmNodeState::parse("mixed+drain+not_responding");
/// assert_eq!(state.base, NodeBase::Mixed);
/// assert!(state.flags.contains(&NodeFlag::Drain) && !state.is_usable());
/// // As `sinfo -o %t` writes it: one sign at its end.
/// assert_eq!(SlurmNodeState::parse("idle~").flags, [NodeFlag::PoweredDown].into());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmNodeState {
    /// Its base state.
    pub base: NodeBase,
    /// The flags that hold beside it.
    pub flags: BTreeSet<NodeFlag>,
}

impl SlurmNodeState {
    /// Reads a state as `sinfo` (`%t`, `%T`, `StateComplete`), `scontrol` or JSON (its words joined by `+`) writes it, in
    /// any case. The short forms of `%t` and `%T` hide all flags but one, and for `drain`, `fail` and `inval` the base
    /// state too: it is [`NodeBase::Unknown`] then.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.trim().to_ascii_lowercase();
        let (words, sign) = match text.char_indices().last() {
            Some((at, sign)) => match sign_flag(sign) {
                Some(flag) => (&text[..at], Some(flag)),
                None => (&text[..], None),
            },
            None => ("", None),
        };
        let mut flags: BTreeSet<NodeFlag> = sign.into_iter().collect();
        let mut base = None;
        for word in words.split(['+', ',', '&']).filter(|w| !w.is_empty()) {
            let (its_base, flag) = word_meaning(word);
            base = base.or(its_base);
            flags.extend(flag);
        }
        Self {
            base: base.unwrap_or_else(|| implied_base(&flags)),
            flags,
        }
    }

    /// Whether Slurm may give it to a job, now or once others have ended or it is awake.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        let keeps_away = [
            NodeFlag::Drain,
            NodeFlag::Fail,
            NodeFlag::Maintenance,
            NodeFlag::InvalidRegistration,
        ];
        let has = |flag: &NodeFlag| self.flags.contains(flag);
        // Slurm sets both on a node that it wakes (`_do_power_work`): it answers once it has booted.
        let is_silent = has(&NodeFlag::NotResponding) && !has(&NodeFlag::PoweringUp);
        matches!(
            self.base,
            NodeBase::Idle | NodeBase::Allocated | NodeBase::Mixed
        ) && !is_silent
            && !keeps_away.iter().any(has)
    }

    /// Whether it has no job, awake or not, and nothing keeps it for others.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let taken = [
            NodeFlag::Completing,
            NodeFlag::Reserved,
            NodeFlag::Planned,
            NodeFlag::PerformanceCounters,
        ];
        self.base == NodeBase::Idle
            && self.is_usable()
            && !taken.iter().any(|flag| self.flags.contains(flag))
    }

    /// Whether it has no job, is awake, and nothing at all is going on with it.
    #[must_use]
    pub fn is_idle_and_awake(&self) -> bool {
        let kinds = [NodeFlag::Cloud, NodeFlag::Dynamic];
        self.base == NodeBase::Idle && self.flags.iter().all(|flag| kinds.contains(flag))
    }

    /// Whether anything can be started on it: it is not down and answers slurmctld.
    #[must_use]
    pub fn responds(&self) -> bool {
        self.base != NodeBase::Down && !self.flags.contains(&NodeFlag::NotResponding)
    }
}

/// The base state where Slurm writes a flag in its place.
fn implied_base(flags: &BTreeSet<NodeFlag>) -> NodeBase {
    let idle = [
        NodeFlag::Maintenance,
        NodeFlag::Reserved,
        NodeFlag::Planned,
        NodeFlag::RebootRequested,
        NodeFlag::RebootIssued,
        NodeFlag::PerformanceCounters,
    ];
    let hides = [
        NodeFlag::Drain,
        NodeFlag::Fail,
        NodeFlag::InvalidRegistration,
        NodeFlag::Unrecognized,
    ];
    if hides.iter().any(|flag| flags.contains(flag)) {
        NodeBase::Unknown
    } else if flags.contains(&NodeFlag::Completing) {
        NodeBase::Allocated
    } else if idle.iter().any(|flag| flags.contains(flag)) {
        NodeBase::Idle
    } else {
        NodeBase::Unknown
    }
}

/// The sign at the end of a state of `sinfo` (sinfo(1), "NODE STATE CODES").
fn sign_flag(sign: char) -> Option<NodeFlag> {
    Some(match sign {
        '*' => NodeFlag::NotResponding,
        '~' => NodeFlag::PoweredDown,
        '#' => NodeFlag::PoweringUp,
        '!' => NodeFlag::PowerDown,
        '%' => NodeFlag::PoweringDown,
        '$' => NodeFlag::Maintenance,
        '@' => NodeFlag::RebootRequested,
        '^' => NodeFlag::RebootIssued,
        '-' => NodeFlag::Planned,
        '+' => NodeFlag::Completing,
        _ => return None,
    })
}

/// The base state that a word of a state stands for, its flag, or (short forms) both.
fn word_meaning(word: &str) -> (Option<NodeBase>, Option<NodeFlag>) {
    use NodeBase as Base;
    use NodeFlag as Flag;
    let base = |base| (Some(base), None);
    let flag = |flag| (None, Some(flag));
    let both = |base, flag| (Some(base), Some(flag));
    match word {
        "idle" => base(Base::Idle),
        "alloc" | "allocated" => base(Base::Allocated),
        "mix" | "mixed" => base(Base::Mixed),
        "down" => base(Base::Down),
        "err" | "error" => base(Base::Error),
        "futr" | "future" => base(Base::Future),
        "unk" | "unknown" => base(Base::Unknown),
        "drain" | "drained" => flag(Flag::Drain),
        "drng" | "draining" => both(Base::Allocated, Flag::Drain),
        "fail" => flag(Flag::Fail),
        "failg" | "failing" => both(Base::Allocated, Flag::Fail),
        "comp" | "completing" => flag(Flag::Completing),
        "not_responding" | "no_respond" => flag(Flag::NotResponding),
        "maint" | "maintenance" => flag(Flag::Maintenance),
        "resv" | "reserved" => flag(Flag::Reserved),
        "plnd" | "planned" => flag(Flag::Planned),
        "power_down" | "pow_dn" | "power_drain" => flag(Flag::PowerDown),
        "powering_down" | "powring_dn" => flag(Flag::PoweringDown),
        "powered_down" | "powered_dn" => flag(Flag::PoweredDown),
        "power_up" | "powering_up" | "pow_up" => flag(Flag::PoweringUp),
        "boot" | "reboot" | "reboot_requested" => flag(Flag::RebootRequested),
        "reboot_issued" => flag(Flag::RebootIssued),
        "inval" | "invalid_reg" => flag(Flag::InvalidRegistration),
        "npc" | "perfctrs" => flag(Flag::PerformanceCounters),
        "cloud" => flag(Flag::Cloud),
        "dynamic_future" | "dynamic_norm" => flag(Flag::Dynamic),
        _ => flag(Flag::Unrecognized),
    }
}

/// The state of a job, as `squeue` shows it: what is going on with it hides whether it waits or runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlurmJobState {
    /// It waits.
    Pending,
    /// It has nodes, which are being made ready.
    Configuring,
    /// It runs.
    Running,
    /// It has its nodes and is stopped.
    Suspended,
    /// It ends on its nodes.
    Completing,
    /// Its burst buffer writes its results.
    StageOut,
    /// It is to wait again.
    Requeued,
    /// It is to wait again, held.
    RequeueHold,
    /// It waits, held, as it ended in a special way.
    SpecialExit,
    /// It waits, held, as its reservation was deleted.
    ReservationDeleted,
    /// It has ended; how, as Slurm writes it (`COMPLETED`, `TIMEOUT`, ...).
    Ended(String),
    /// Another state, as Slurm writes it.
    Other(String),
}

/// Flags and base states of jobs, the first that holds is shown (`job_state_string` of Slurm 22.05 and 24.11).
const JOB_WORDS: [&str; 15] = [
    "COMPLETING",
    "STAGE_OUT",
    "CONFIGURING",
    "RESIZING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "STOPPED",
    "REVOKED",
    "RESV_DEL_HOLD",
    "SIGNALING",
    "PENDING",
    "RUNNING",
    "SUSPENDED",
];

impl SlurmJobState {
    /// Reads one word of Slurm's, or several joined by `+` or `,` of which the one that `squeue` shows counts.
    ///
    /// ```
    /// use tarn_slurm::SlurmJobState;
    ///
    /// assert_eq!(SlurmJobState::parse("RUNNING,CONFIGURING"), SlurmJobState::Configuring);
    /// assert!(SlurmJobState::parse("OUT_OF_MEMORY").has_ended());
    /// ```
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.trim().to_ascii_uppercase();
        let words: Vec<&str> = text.split(['+', ',']).filter(|w| !w.is_empty()).collect();
        let shown = JOB_WORDS.iter().find(|word| words.contains(word)).copied();
        match shown.or_else(|| words.first().copied()).unwrap_or_default() {
            "PENDING" => Self::Pending,
            "CONFIGURING" => Self::Configuring,
            "RUNNING" => Self::Running,
            "SUSPENDED" => Self::Suspended,
            "COMPLETING" => Self::Completing,
            "STAGE_OUT" => Self::StageOut,
            "REQUEUED" => Self::Requeued,
            "REQUEUE_HOLD" => Self::RequeueHold,
            "SPECIAL_EXIT" => Self::SpecialExit,
            "RESV_DEL_HOLD" => Self::ReservationDeleted,
            ended @ ("COMPLETED" | "CANCELLED" | "FAILED" | "TIMEOUT" | "NODE_FAIL"
            | "PREEMPTED" | "BOOT_FAIL" | "DEADLINE" | "OUT_OF_MEMORY" | "REVOKED"
            | "LAUNCH_FAILED") => Self::Ended(ended.to_owned()),
            other => Self::Other(other.to_owned()),
        }
    }

    /// Whether it has ended for good and holds nothing any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// Whether it has no nodes and waits for them, held or not.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(
            self,
            Self::Pending
                | Self::Requeued
                | Self::RequeueHold
                | Self::SpecialExit
                | Self::ReservationDeleted
        )
    }
}
