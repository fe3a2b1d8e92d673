//! Jobs that Slurm would not start, or not there, are not planned.

use super::*;
use tarn_slurm::{HetComponent, SlurmReservation};

fn unplanned(snapshot: &SlurmSnapshot) -> BTreeMap<u32, String> {
    let mut planner = planner();
    see(&mut planner, snapshot, &empty_view(snapshot));
    let plan = planner.plan(100 * 3600 * SECOND);
    plan.unplanned
        .into_iter()
        .map(|job| (job.job, job.why))
        .collect()
}

#[test]
fn each_reason_of_slurms_is_kept() {
    let reasons = [
        PendingReason::Dependency,
        PendingReason::HeldByUser,
        PendingReason::Licences,
        PendingReason::AssociationLimit("AssocGrpCpuLimit".into()),
        PendingReason::QosLimit("QOSMaxJobsPerUserLimit".into()),
        PendingReason::PartitionDown,
        PendingReason::ArrayTaskLimit,
        PendingReason::Other("no".into()),
    ];
    let jobs = (1..).zip(reasons.clone()).map(|(number, reason)| SlurmJob {
        dependency: match reason {
            PendingReason::Dependency => "afternotok:99(unfulfilled)".to_owned(),
            _ => String::new(),
        },
        reason,
        ..waiting(number, 1)
    });
    let mut jobs: Vec<SlurmJob> = jobs.collect();
    jobs.push(SlurmJob {
        het: Some(HetComponent {
            leader: 90,
            offset: 0,
        }),
        ..waiting(90, 1)
    });
    jobs.push(SlurmJob {
        is_incomplete: true,
        ..waiting(91, 1)
    });
    jobs.push(waiting(92, 1));
    let found = unplanned(&with(cluster(1), jobs));
    assert_eq!(found.len(), reasons.len() + 2, "{found:?}");
    assert!(found[&4].contains("AssocGrpCpuLimit"), "{found:?}");
    assert!(!found.contains_key(&92));
}

#[test]
fn nodes_are_those_of_partition_feature_and_lists() {
    let mut snapshot = cluster(6);
    for (name, node) in &mut snapshot.nodes {
        if ["n1", "n3", "n5"].contains(&&name[..]) {
            node.active_features.push("fast".to_owned());
        }
    }
    for name in ["n0", "n1", "n2", "n3"] {
        let node = snapshot.nodes.get_mut(name).unwrap();
        node.partitions.insert("small".to_owned());
    }
    let mut small = snapshot.partitions["all"].clone();
    (small.name, small.nodes) = ("small".to_owned(), names(&["n0", "n1", "n2", "n3"]));
    snapshot.partitions.insert("small".to_owned(), small);
    let job = |number: u32| SlurmJob {
        partitions: vec!["small".to_owned()],
        ..waiting(number, 1)
    };
    let fast = SlurmJob {
        features: "fast".to_owned(),
        excluded: names(&["n1"]),
        ..job(1)
    };
    let required = SlurmJob {
        required: names(&["n2"]),
        ..job(2)
    };
    let nowhere = SlurmJob {
        features: "slow".to_owned(),
        ..job(3)
    };
    let unread = SlurmJob {
        features: "[a|b]".to_owned(),
        ..job(4)
    };
    let snapshot = with(snapshot, vec![fast, required, nowhere, unread]);
    let mut planner = planner();
    see(&mut planner, &snapshot, &empty_view(&snapshot));
    let plan = planner.plan(3600 * SECOND);
    let nodes: Vec<&str> = plan.jobs.iter().map(|job| &job.nodes[0][..]).collect();
    assert_eq!(nodes, ["n3", "n2"]);
    let why: Vec<&str> = plan.unplanned.iter().map(|job| &job.why[..]).collect();
    assert!(why[0].starts_with("no node is left"), "{why:?}");
    assert!(why[1].contains("`[a|b]`"), "{why:?}");
}

#[test]
fn reserved_nodes_are_for_jobs_that_end_before_or_are_in_it() {
    let mut snapshot = cluster(2);
    let reservation = SlurmReservation {
        name: "course".to_owned(),
        nodes: names(&["n0"]),
        start: Some(START + 500),
        end: Some(START + 5_000),
        users: Vec::new(),
        accounts: Vec::new(),
        flags: Vec::new(),
        licences: String::new(),
        is_active: false,
    };
    snapshot
        .reservations
        .insert("course".to_owned(), reservation);
    let short = SlurmJob {
        limit: Some(400),
        ..waiting(1, 2)
    };
    let long = waiting(2, 2);
    let within = SlurmJob {
        reservation: "course".to_owned(),
        ..waiting(3, 1)
    };
    let snapshot = with(snapshot, vec![short, long, within]);
    let mut planner = planner();
    see(&mut planner, &snapshot, &empty_view(&snapshot));
    let plan = planned(&mut planner);
    assert_eq!(plan[&1].0.len(), 2, "it ends before the reservation begins");
    assert!(!plan.contains_key(&2), "it would not");
    assert_eq!(plan[&3].0, ["n0"]);
}

#[test]
fn nothing_begins_on_a_drained_node() {
    let mut snapshot = with(cluster(2), vec![waiting(1, 1), waiting(2, 1)]);
    let view = empty_view(&snapshot);
    let drained = snapshot.nodes.get_mut("n0").unwrap();
    drained.state = SlurmNodeState::parse("idle+drain");
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    let plan = planned(&mut planner);
    assert_eq!((&plan[&1].0[0][..], &plan[&2].0[0][..]), ("n1", "n1"));
    let drained = snapshot.nodes.get_mut("n0").unwrap();
    drained.state = SlurmNodeState::parse("idle");
    see(&mut planner, &snapshot, &view);
    let plan = planned(&mut planner);
    assert_ne!(plan[&1].0, plan[&2].0);
}
