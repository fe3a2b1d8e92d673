use super::states::{NodeBase, NodeFlag, SlurmJobState, SlurmNodeState};
use proptest::prelude::*;

fn state(base: NodeBase, flags: &[NodeFlag]) -> SlurmNodeState {
    SlurmNodeState {
        base,
        flags: flags.iter().copied().collect(),
    }
}

/// All that `node_state_string_compact` of Slurm 22.05 gives, without the signs of power and maintenance.
#[test]
fn short_states_are_read() {
    let known = [
        ("IDLE", NodeBase::Idle, None),
        ("ALLOC", NodeBase::Allocated, None),
        ("ALLOC+", NodeBase::Allocated, Some(NodeFlag::Completing)),
        ("MIX", NodeBase::Mixed, None),
        ("MIX-", NodeBase::Mixed, Some(NodeFlag::Planned)),
        ("COMP", NodeBase::Allocated, Some(NodeFlag::Completing)),
        ("DOWN", NodeBase::Down, None),
        ("DOWN*", NodeBase::Down, Some(NodeFlag::NotResponding)),
        ("DRAIN", NodeBase::Unknown, Some(NodeFlag::Drain)),
        ("DRNG", NodeBase::Allocated, Some(NodeFlag::Drain)),
        ("FAIL", NodeBase::Unknown, Some(NodeFlag::Fail)),
        ("FAILG", NodeBase::Allocated, Some(NodeFlag::Fail)),
        ("MAINT", NodeBase::Idle, Some(NodeFlag::Maintenance)),
        ("RESV", NodeBase::Idle, Some(NodeFlag::Reserved)),
        ("PLND", NodeBase::Idle, Some(NodeFlag::Planned)),
        ("NPC", NodeBase::Idle, Some(NodeFlag::PerformanceCounters)),
        (
            "INVAL",
            NodeBase::Unknown,
            Some(NodeFlag::InvalidRegistration),
        ),
        ("FUTR", NodeBase::Future, None),
        ("UNK", NodeBase::Unknown, None),
        ("idle~", NodeBase::Idle, Some(NodeFlag::PoweredDown)),
        ("idle#", NodeBase::Idle, Some(NodeFlag::PoweringUp)),
        ("idle%", NodeBase::Idle, Some(NodeFlag::PoweringDown)),
        ("idle!", NodeBase::Idle, Some(NodeFlag::PowerDown)),
        ("mix@", NodeBase::Mixed, Some(NodeFlag::RebootRequested)),
        ("alloc$", NodeBase::Allocated, Some(NodeFlag::Maintenance)),
    ];
    for (text, base, flag) in known {
        let flags: Vec<NodeFlag> = flag.into_iter().collect();
        assert_eq!(SlurmNodeState::parse(text), state(base, &flags), "{text}");
    }
    let issued = state(
        NodeBase::Idle,
        &[NodeFlag::RebootIssued, NodeFlag::RebootRequested],
    );
    assert_eq!(SlurmNodeState::parse("boot^"), issued);
}

#[test]
fn complete_states_have_all_flags() {
    let drained = [
        NodeFlag::Drain,
        NodeFlag::Maintenance,
        NodeFlag::NotResponding,
    ];
    let text = "down+drain+maintenance+not_responding";
    assert_eq!(SlurmNodeState::parse(text), state(NodeBase::Down, &drained));
    let unknown = SlurmNodeState::parse("idle+of_tomorrow");
    assert_eq!(
        unknown,
        state(NodeBase::Idle, &[NodeFlag::Unrecognized]),
        "a flag of a later release does not hide the base state"
    );
}

#[test]
fn a_node_that_gets_no_job_is_not_usable() {
    for usable in ["idle", "mix", "alloc", "idle~", "comp", "plnd", "boot"] {
        assert!(SlurmNodeState::parse(usable).is_usable(), "{usable}");
    }
    for away in [
        "down", "down*", "drain", "drng", "fail", "failg", "maint", "idle*", "unk", "futr",
        "inval", "",
    ] {
        assert!(!SlurmNodeState::parse(away).is_usable(), "{away}");
    }
}

#[test]
fn a_node_that_boots_is_usable_although_it_does_not_answer_yet() {
    let usable = |text| SlurmNodeState::parse(text).is_usable();
    assert!(usable("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP"));
    assert!(usable("MIXED+NOT_RESPONDING+POWERING_UP"));
    for not in [
        "IDLE+NOT_RESPONDING",
        "DOWN+NOT_RESPONDING+POWERING_UP",
        "IDLE+DRAIN+NOT_RESPONDING+POWERING_UP",
    ] {
        assert!(!usable(not), "{not}");
    }
}

#[test]
fn an_idle_node_may_sleep_and_an_awake_one_does_not() {
    let idle = |text| SlurmNodeState::parse(text).is_idle();
    let awake = |text| SlurmNodeState::parse(text).is_idle_and_awake();
    assert!(idle("idle") && idle("idle~") && !idle("mix") && !idle("resv") && !idle("comp"));
    assert!(awake("idle") && awake("idle+cloud"));
    for not in ["idle~", "mix", "idle*", "idle#", "plnd", "idle+drain"] {
        assert!(!awake(not), "{not}");
    }
}

#[test]
fn of_several_words_of_a_job_the_one_that_squeue_shows_counts() {
    assert_eq!(SlurmJobState::parse("PENDING"), SlurmJobState::Pending);
    let completing = SlurmJobState::parse("COMPLETED+COMPLETING");
    assert_eq!(completing, SlurmJobState::Completing);
    assert_eq!(
        SlurmJobState::parse("TIMEOUT"),
        SlurmJobState::Ended("TIMEOUT".into())
    );
    assert_eq!(
        SlurmJobState::parse("RUNNING,POWER_UP_NODE"),
        SlurmJobState::Running
    );
    assert_eq!(
        SlurmJobState::parse(""),
        SlurmJobState::Other(String::new())
    );
    assert!(SlurmJobState::parse("PENDING,REQUEUE_HOLD").is_waiting());
}

proptest! {
    #[test]
    fn any_text_is_some_state(text in "\\PC{0,40}") {
        let node = SlurmNodeState::parse(&text);
        prop_assert!(!node.is_idle() || node.is_usable());
        let _ = SlurmJobState::parse(&text);
        let _ = super::reasons::PendingReason::parse(&text);
    }
}
