//! Facts of a host, one by one and in any order.

mod any_order;
mod sleep;

use super::super::Planner;
use super::super::state::{PlannerJob, PlannerJobStage};
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::policy::{Order, Policy};
use tarn_types::site::{
    FlowId, Input, Island, Item, ItemId, Job, JobId, JobNodes, Machine, Mode, ModeChange, NodeKind,
    NodeMask, NodePowerModel, NodeShare, Rates, SiteAction, SiteEvent, SiteEventError, Spread,
    Store, TierKind,
};
use tarn_types::units::{SECOND, Time};

const WHOLE: NodeShare = NodeShare {
    cores: 0,
    memory: 0,
    gpus: 0,
};

fn island(name: &str, nodes: u32, cores: u32) -> Island {
    Island {
        name: name.into(),
        nodes,
        kind: NodeKind {
            sockets: 1,
            cores,
            memory: 1 << 30,
            gpus: 1,
            tiers: vec![TierKind {
                name: "nvme".into(),
                capacity: 1000,
                rates: Rates::default(),
                app_direct: false,
            }],
            link: Rates::default(),
            mode: Mode::OneLevel,
            mode_change: None,
            power: NodePowerModel::default(),
            temperature: 20.0,
        },
    }
}

/// Four nodes of 4 cores, and two of 8 that can change their memory mode.
fn machine() -> Machine {
    let mut changeable = island("b", 2, 8);
    changeable.kind.mode_change = Some(ModeChange {
        time: 600 * SECOND,
        memory: 1 << 31,
    });
    Machine {
        name: "small".into(),
        islands: vec![island("a", 4, 4), changeable],
        store: Store {
            rates: Rates {
                read: 10,
                write: 10,
            },
            client: Rates {
                read: 10,
                write: 10,
            },
            saturates: 4,
        },
    }
}

fn job(nodes: u32, cores: u32) -> Job {
    Job {
        flow: None,
        nodes,
        cores,
        memory: 0,
        gpus: 0,
        mode: None,
        limit: 100 * SECOND,
        expect: 50 * SECOND,
        after: Vec::new(),
        continues: None,
        reads: Vec::new(),
        writes: Vec::new(),
        submitted: None,
        place: None,
        on: None,
        not_before: 0,
    }
}

fn nodes(numbers: &[u32]) -> JobNodes {
    numbers.iter().copied().map(NodeId).collect()
}

/// A planner and what it did.
struct Site {
    planner: Planner,
    now: Time,
    actions: Vec<SiteAction>,
}

impl Site {
    fn new() -> Self {
        Self::with(Policy::new(Order::Data, None))
    }

    fn with(policy: Policy) -> Self {
        Self {
            planner: Planner::new(&machine(), policy),
            now: 0,
            actions: Vec::new(),
        }
    }

    fn try_event(&mut self, event: SiteEvent) -> Result<(), SiteEventError> {
        self.actions.clear();
        self.planner.step(self.now, &event, &mut self.actions)
    }

    fn event(&mut self, event: SiteEvent) {
        self.try_event(event).expect("it can be");
    }

    fn submit(&mut self, jobs: &[(u32, Job)]) {
        self.submit_with(jobs, &[]);
    }

    fn submit_with(&mut self, jobs: &[(u32, Job)], items: &[(u32, u64, bool)]) {
        let jobs = jobs.iter().map(|(id, j)| (JobId(*id), Arc::new(j.clone())));
        let items = items.iter().map(|(id, bytes, outside)| {
            let item = Item {
                bytes: *bytes,
                outside: *outside,
                keep: false,
            };
            (ItemId(*id), item)
        });
        self.event(SiteEvent::Submitted {
            jobs: jobs.collect(),
            items: items.collect(),
        });
    }

    fn began(&mut self, id: u32, on: &[u32], share: NodeShare) -> Result<(), SiteEventError> {
        self.try_event(SiteEvent::Began {
            job: JobId(id),
            nodes: nodes(on),
            share,
            since: self.now,
        })
    }

    fn ended(&mut self, id: u32, ok: bool) {
        self.event(SiteEvent::Ended {
            job: JobId(id),
            ok,
            sizes: Vec::new(),
        });
    }

    fn job(&self, id: u32) -> &PlannerJob {
        self.planner.state.job(JobId(id)).expect("it is known")
    }

    fn stage(&self, id: u32) -> PlannerJobStage {
        self.job(id).stage
    }

    fn allocated(&self, id: u32) -> Option<Vec<u32>> {
        let of = |a: &SiteAction| match a {
            SiteAction::Allocate { job, nodes, .. } if *job == JobId(id) => {
                Some(nodes.iter().map(|n| n.0).collect())
            }
            _ => None,
        };
        self.actions.iter().find_map(of)
    }

    fn released(&self, id: u32) -> bool {
        let release = SiteAction::Release { job: JobId(id) };
        self.actions.contains(&release)
    }

    fn free_cores(&self, node: u32) -> u32 {
        self.planner.state.nodes.node(NodeId(node)).free().cores
    }
}

#[test]
fn a_begin_on_the_allocated_nodes_confirms_them() {
    let mut site = Site::new();
    site.submit(&[(0, job(2, 0))]);
    assert_eq!(site.allocated(0), Some(vec![0, 1]));
    site.now = 7 * SECOND;
    site.began(0, &[0, 1], WHOLE).expect("it begins");
    assert!(site.actions.is_empty(), "{:?}", site.actions);
    let known = site.job(0);
    assert!(known.by_host && known.began == site.now);
    // The begin is the host's, so is the expected end.
    site.submit(&[(1, job(4, 0))]);
    site.submit(&[(2, job(4, 8))]);
    let promise = site.planner.state.promises.promise().map(|p| p.begin);
    assert_eq!(promise, Some(107 * SECOND));
    site.ended(0, true);
    assert_eq!(site.allocated(1), Some(vec![0, 1, 2, 3]));
}

#[test]
fn a_begin_elsewhere_moves_a_job() {
    let mut site = Site::new();
    site.submit(&[(0, job(2, 0)), (1, job(2, 0))]);
    assert_eq!(site.allocated(0), Some(vec![0, 1]));
    assert_eq!(site.allocated(1), Some(vec![2, 3]));
    // The nodes of job 1 were a wish only: it makes way.
    site.began(0, &[3, 2], WHOLE).expect("it begins");
    assert!(site.released(0) && site.released(1));
    assert_eq!(site.allocated(1), Some(vec![0, 1]));
    assert_eq!(site.job(1).attempt, 1);
    assert_eq!(*site.job(0).nodes, *nodes(&[3, 2]));
}

#[test]
fn a_job_of_any_stage_begins() {
    let mut site = Site::new();
    let mut reader = job(1, 1);
    reader.reads.push(Input {
        item: ItemId(0),
        spread: Spread::Share,
    });
    let mut maker = job(1, 1);
    maker.writes.push(ItemId(0));
    let mut late = job(1, 1);
    late.not_before = 500 * SECOND;
    late.after.push(JobId(0));
    site.submit_with(&[(0, maker), (1, reader), (2, late)], &[(0, 10, false)]);
    assert_eq!(site.stage(1), PlannerJobStage::Blocked);
    assert_eq!(site.job(2).lacks, 2);
    let share = NodeShare { cores: 1, ..WHOLE };
    site.began(1, &[4], share)
        .expect("it begins without its data");
    site.began(2, &[4], share)
        .expect("it begins before its time");
    assert_eq!(site.stage(1), PlannerJobStage::Staging);
    assert_eq!(site.stage(2), PlannerJobStage::Running);
    assert_eq!(site.planner.deadline(), None);
    site.began(0, &[4], share).expect("it begins");
    site.ended(0, true);
    // Its data is there now, on the same node.
    assert_eq!(site.stage(1), PlannerJobStage::Running);
    site.ended(2, true);
    site.ended(1, true);
    assert_eq!(site.free_cores(4), 8);
}

#[test]
fn a_host_may_give_more_than_is_free() {
    let mut site = Site::new();
    let three = NodeShare { cores: 3, ..WHOLE };
    site.submit(&[(0, job(1, 3)), (1, job(1, 3)), (2, job(1, 0))]);
    site.began(0, &[0], three).expect("it begins");
    site.began(1, &[0], three).expect("it begins too");
    site.began(2, &[0], WHOLE).expect("and that");
    assert_eq!(site.free_cores(0), 0);
    // A job that got less takes the rest when it is given back, so nothing is free.
    site.ended(0, true);
    assert_eq!(site.free_cores(0), 0);
    site.ended(2, true);
    assert_eq!(site.free_cores(0), 1);
    site.ended(1, true);
    assert_eq!(site.free_cores(0), 4);
}

#[test]
fn a_job_that_was_not_begun_waits_in_its_place() {
    let mut site = Site::new();
    site.submit(&[(0, job(4, 0))]);
    site.submit(&[(1, job(4, 0))]);
    assert_eq!(site.job(0).attempt, 1);
    let close = |node| SiteEvent::Closed {
        node: NodeId(node),
        until: None,
    };
    site.event(close(3));
    site.event(SiteEvent::NotBegun { job: JobId(0) });
    assert!(site.released(0));
    assert_eq!(
        (site.stage(0), site.job(0).attempt),
        (PlannerJobStage::Queued, 0)
    );
    assert_eq!(site.stage(1), PlannerJobStage::Queued);
    site.event(SiteEvent::Opened { node: NodeId(3) });
    assert_eq!(site.allocated(0), Some(vec![0, 1, 2, 3]));
    assert_eq!(site.job(0).attempt, 1);
}

#[test]
fn a_failed_job_of_the_host_is_never_given_up() {
    let mut site = Site::new();
    site.submit(&[(0, job(1, 0))]);
    for _ in 0..5 {
        site.began(0, &[0], WHOLE).expect("it begins");
        site.ended(0, false);
        let given_up = SiteAction::GiveUp { job: JobId(0) };
        assert!(!site.actions.contains(&given_up));
        assert!(!site.job(0).by_host);
    }
    site.event(SiteEvent::Withdrawn { job: JobId(0) });
    assert!(site.planner.state.job(JobId(0)).is_none());
    site.submit(&[(0, job(1, 0))]);
    assert_eq!(site.allocated(0), Some(vec![0]));
}

#[test]
fn the_rest_waits_until_a_withdrawn_job_comes_again() {
    let mut site = Site::new();
    let mut second = job(1, 0);
    second.after.push(JobId(0));
    let mut third = job(1, 0);
    third.after.push(JobId(0));
    let first = job(1, 0);
    site.submit(&[(0, first.clone()), (1, second), (2, third.clone())]);
    site.event(SiteEvent::Withdrawn { job: JobId(0) });
    assert!(site.released(0));
    assert_eq!(site.job(1).lacks, 1);
    site.event(SiteEvent::Withdrawn { job: JobId(2) });
    site.submit(&[(0, first)]);
    site.submit(&[(2, third)]);
    site.began(0, &[1], WHOLE).expect("it begins");
    site.ended(0, true);
    assert!(site.allocated(1).is_some() && site.allocated(2).is_some());
    assert!(site.planner.state.orphans.is_empty());
}

#[test]
fn a_withdrawn_workflow_is_forgotten() {
    let mut site = Site::new();
    let flow = Some(FlowId(0));
    let mut maker = job(1, 0);
    (maker.flow, maker.writes) = (flow, vec![ItemId(0)]);
    let mut reader = job(1, 0);
    reader.flow = flow;
    reader.reads.push(Input {
        item: ItemId(0),
        spread: Spread::Share,
    });
    let items = [(0, 10, false)];
    site.submit_with(&[(0, maker.clone()), (1, reader.clone())], &items);
    for id in [1, 0] {
        site.event(SiteEvent::Withdrawn { job: JobId(id) });
    }
    let state = &site.planner.state;
    assert!(state.flows.is_empty() && state.item(ItemId(0)).is_none());
    site.submit_with(&[(0, maker), (1, reader)], &items);
    site.began(0, &[2], WHOLE).expect("it begins");
    site.ended(0, true);
    assert_eq!(site.allocated(1), Some(vec![2]));
}

#[test]
fn a_changed_job_has_its_new_place() {
    let mut site = Site::new();
    let big = |place| Job {
        place: Some(place),
        ..job(4, 0)
    };
    site.submit(&[(0, job(4, 0))]);
    site.began(0, &[0, 1, 2, 3], WHOLE).expect("it begins");
    site.submit(&[(1, big(10)), (2, big(20))]);
    let change = |id, spec: Job| SiteEvent::Changed {
        job: JobId(id),
        spec: Arc::new(spec),
    };
    site.event(change(2, big(5)));
    site.ended(0, true);
    assert_eq!(site.allocated(2), Some(vec![0, 1, 2, 3]));
    // A longer limit moves the promise of the next.
    site.began(2, &[0, 1, 2, 3], WHOLE).expect("it begins");
    let mut longer = big(5);
    longer.limit = 300 * SECOND;
    site.event(change(2, longer));
    let now = site
        .planner
        .state
        .promises
        .promise()
        .and_then(|p| p.now.clone());
    assert_eq!(now.map(|s| s.at), Some(300 * SECOND));
    // It can never run, so it is out.
    let mut nowhere = big(10);
    nowhere.on = Some(Arc::new([NodeId(0)].into_iter().collect()));
    site.event(change(1, nowhere));
    assert!(matches!(
        site.actions.as_slice(),
        [SiteAction::Refuse { job: JobId(1), .. }]
    ));
}

#[test]
fn a_job_begins_on_the_nodes_that_it_may_have() {
    let mut site = Site::new();
    let mask: NodeMask = [1, 3, 4].map(NodeId).into_iter().collect();
    let mask = Arc::new(mask);
    let on = |nodes, cores| Job {
        on: Some(mask.clone()),
        ..job(nodes, cores)
    };
    site.submit(&[(0, on(2, 0))]);
    assert_eq!(site.allocated(0), Some(vec![1, 3]));
    site.submit(&[(1, on(1, 2))]);
    assert_eq!(site.allocated(1), Some(vec![4]));
    site.submit(&[(2, on(2, 0))]);
    assert_eq!(site.allocated(2), None);
    // It waits for its own nodes, though others are idle.
    let promise = site.planner.state.promises.promise().map(|p| p.begin);
    assert_eq!(promise, Some(100 * SECOND));
    site.now = 30 * SECOND;
    let mut short = job(2, 0);
    short.limit = 60 * SECOND;
    site.submit(&[(3, short)]);
    assert_eq!(site.allocated(3), Some(vec![0, 2]));
}

#[test]
fn it_is_known_when_a_part_of_the_nodes_comes_free() {
    let mut site = Site::new();
    let mut long = job(2, 0);
    long.limit = 200 * SECOND;
    site.submit(&[(0, job(2, 0)), (1, long)]);
    site.began(0, &[0, 1], WHOLE).expect("it begins");
    site.began(1, &[2, 3], WHOLE).expect("it begins");
    for (id, on, nodes, begins) in [
        (2, &[0, 2, 3][..], 1, 100),
        (3, &[0, 2, 3], 2, 200),
        (4, &[0, 2], 1, 100),
        (5, &[0, 2], 2, 200),
        (6, &[0, 1, 2], 2, 100),
    ] {
        let on: NodeMask = on.iter().copied().map(NodeId).collect();
        let spec = Job {
            on: Some(Arc::new(on)),
            ..job(nodes, 0)
        };
        site.submit(&[(id, spec)]);
        let state = &site.planner.state;
        let w = state.waiting(JobId(id)).expect("it waits");
        let at = state.earliest(&w).map(|s| s.at);
        assert_eq!(at, Some(begins * SECOND), "job {id}");
    }
}

#[test]
fn a_job_waits_for_its_time() {
    let mut site = Site::new();
    let mut late = job(1, 0);
    late.not_before = 60 * SECOND;
    site.submit(&[(0, late)]);
    assert_eq!(site.allocated(0), None);
    assert_eq!(site.planner.deadline(), Some(60 * SECOND));
    site.now = 60 * SECOND;
    site.event(SiteEvent::Timer);
    assert_eq!(site.allocated(0), Some(vec![0]));
}

#[test]
fn a_closed_node_keeps_its_jobs_and_takes_no_others() {
    let mut site = Site::new();
    site.submit(&[(0, job(4, 0))]);
    site.began(0, &[0, 1, 2, 3], WHOLE).expect("it begins");
    let close = |node, until| SiteEvent::Closed {
        node: NodeId(node),
        until,
    };
    site.event(close(0, Some(400 * SECOND)));
    site.event(close(1, None));
    site.submit(&[(1, job(3, 0)), (2, job(4, 0))]);
    let begin = |s: &Site| s.planner.state.promises.promise().map(|p| p.begin);
    assert_eq!(begin(&site), Some(400 * SECOND));
    assert_eq!(site.stage(0), PlannerJobStage::Running);
    site.ended(0, true);
    assert_eq!(site.allocated(1), None);
    site.event(SiteEvent::Opened { node: NodeId(1) });
    assert_eq!(site.allocated(1), Some(vec![1, 2, 3]));
    let twice = site.try_event(close(0, Some(400 * SECOND)));
    assert_eq!(twice, Err(SiteEventError::ClosedAlready(NodeId(0))));
    // No promise can be kept now, and none is taken back.
    site.event(close(0, None));
    assert_eq!(begin(&site), Some(400 * SECOND));
    let promise = site.planner.state.promises.promise();
    assert!(promise.is_some_and(|p| p.now.is_none()));
}

#[test]
fn data_that_the_host_found_is_used() {
    let mut site = Site::new();
    let mut reader = job(1, 2);
    reader.reads.push(Input {
        item: ItemId(0),
        spread: Spread::Share,
    });
    site.submit_with(&[], &[(0, 500, false)]);
    let stored = |on: &[u32], bytes| SiteEvent::Stored {
        item: ItemId(0),
        nodes: nodes(on),
        spread: Spread::Share,
        bytes,
    };
    let gone = |on: &[u32]| SiteEvent::Gone {
        item: ItemId(0),
        nodes: nodes(on),
        spread: Spread::Share,
    };
    site.event(stored(&[2], 400));
    site.submit(&[(0, reader.clone())]);
    assert_eq!(site.allocated(0), Some(vec![2]));
    let used = |s: &Site, node| s.planner.state.nodes.node(NodeId(node)).space().used();
    assert_eq!(used(&site, 2), 400);
    site.event(stored(&[2], 600));
    assert_eq!(used(&site, 2), 600);
    site.ended(0, true);
    // Nobody needs it any more.
    assert_eq!(used(&site, 2), 0);
    site.event(stored(&[], 600));
    site.event(stored(&[3], 600));
    site.event(gone(&[3]));
    assert_eq!(
        site.try_event(gone(&[3])),
        Err(SiteEventError::NotStored(ItemId(0)))
    );
    site.submit(&[(1, reader)]);
    let moves = site
        .actions
        .iter()
        .any(|a| matches!(a, SiteAction::Move(_)));
    assert!(moves || site.stage(1) != PlannerJobStage::Blocked);
}

#[test]
fn a_lost_input_is_fetched_again() {
    let mut site = Site::new();
    let mut reader = job(1, 2);
    reader.reads.push(Input {
        item: ItemId(0),
        spread: Spread::Share,
    });
    site.submit_with(&[(0, reader)], &[(0, 500, true)]);
    let brought = |s: &Site| {
        let mut moves = s.actions.iter().filter_map(|a| match a {
            SiteAction::Move(m) => Some(m.clone()),
            _ => None,
        });
        moves.next()
    };
    let order = brought(&site).expect("its data is brought");
    let node = match &order.to {
        tarn_types::site::Where::Nodes(to) => to.clone(),
        tarn_types::site::Where::Outside => panic!("{order:?}"),
    };
    // The host has brought it by itself: the move is over.
    if !order.direct {
        site.event(SiteEvent::Stored {
            item: ItemId(0),
            nodes: node.clone(),
            spread: Spread::Share,
            bytes: 500,
        });
        assert_eq!(site.stage(0), PlannerJobStage::Running);
        site.event(SiteEvent::Moved { id: order.id });
    }
    assert_eq!(
        site.planner.state.outbox.orders().count(),
        usize::from(order.direct)
    );
}

#[test]
fn a_promise_is_kept_from_before() {
    let mut site = Site::new();
    site.submit(&[(0, job(4, 0))]);
    site.began(0, &[0, 1, 2, 3], WHOLE).expect("it begins");
    site.submit(&[(1, job(4, 0))]);
    let promised = |begin| SiteEvent::Promised {
        job: JobId(1),
        begin,
    };
    site.event(promised(80 * SECOND));
    let begin = |s: &Site| s.planner.state.promises.promise().map(|p| (p.job, p.begin));
    assert_eq!(begin(&site), Some((JobId(1), 80 * SECOND)));
    site.event(promised(90 * SECOND));
    assert_eq!(begin(&site), Some((JobId(1), 80 * SECOND)));
    let other = site.try_event(SiteEvent::Promised {
        job: JobId(0),
        begin: 0,
    });
    assert_eq!(other, Err(SiteEventError::NotPromised(JobId(0))));
}

#[test]
fn events_that_cannot_be_are_refused() {
    let mut site = Site::new();
    let unknown = SiteEventError::UnknownJob(JobId(9));
    assert_eq!(site.began(9, &[0], WHOLE), Err(unknown));
    site.submit(&[(0, job(1, 0))]);
    assert_eq!(
        site.began(0, &[], WHOLE),
        Err(SiteEventError::NoNodes(JobId(0)))
    );
    let twice = site.began(0, &[1, 1], WHOLE);
    assert_eq!(twice, Err(SiteEventError::NodeTwice(NodeId(1))));
    let far = site.began(0, &[6], WHOLE);
    assert_eq!(far, Err(SiteEventError::UnknownNode(NodeId(6))));
    site.event(SiteEvent::NodeLost { node: NodeId(5) });
    let lost = site.began(0, &[5], WHOLE);
    assert_eq!(lost, Err(SiteEventError::NodeIsLost(NodeId(5))));
    site.began(0, &[1], WHOLE).expect("it begins");
    let again = site.began(0, &[1], WHOLE);
    assert_eq!(again, Err(SiteEventError::HasBegun(JobId(0))));
    let not = site.try_event(SiteEvent::NotBegun { job: JobId(0) });
    assert_eq!(not, Err(SiteEventError::HasBegun(JobId(0))));
    let mut other = job(2, 0);
    other.limit = 1;
    let changed = |spec: Job| SiteEvent::Changed {
        job: JobId(0),
        spec: Arc::new(spec),
    };
    let resources = site.try_event(changed(other));
    assert_eq!(resources, Err(SiteEventError::OtherResources(JobId(0))));
    let mut needs = job(1, 0);
    needs.after.push(JobId(3));
    let needs = site.try_event(changed(needs));
    assert_eq!(needs, Err(SiteEventError::OtherNeeds(JobId(0))));
    let known = SiteEvent::Submitted {
        jobs: vec![(JobId(0), Arc::new(job(1, 0)))],
        items: Vec::new(),
    };
    assert_eq!(
        site.try_event(known),
        Err(SiteEventError::KnownJob(JobId(0)))
    );
    let mut first = job(1, 0);
    first.continues = Some(JobId(2));
    let mut second = job(1, 0);
    second.continues = Some(JobId(1));
    let circle = SiteEvent::Submitted {
        jobs: vec![(JobId(1), Arc::new(first)), (JobId(2), Arc::new(second))],
        items: Vec::new(),
    };
    assert_eq!(
        site.try_event(circle),
        Err(SiteEventError::ContinuesItself(JobId(1)))
    );
    assert_eq!(site.free_cores(1), 0);
}

#[test]
fn a_job_that_was_refused_never_makes_an_item_again() {
    let mut site = Site::new();
    let item = |keep: bool| Item {
        bytes: 0,
        outside: false,
        keep,
    };
    let submitted = |id: u32, keep: bool| SiteEvent::Submitted {
        jobs: Vec::new(),
        items: vec![(ItemId(id), item(keep))],
    };
    site.event(submitted(4, true));
    site.event(submitted(0, false));
    site.event(SiteEvent::Stored {
        item: ItemId(4),
        nodes: nodes(&[5]),
        spread: Spread::Share,
        bytes: 0,
    });
    site.submit(&[(1, job(1, 0))]);
    let second = Job {
        after: vec![JobId(1)],
        reads: vec![Input {
            item: ItemId(0),
            spread: Spread::Share,
        }],
        writes: vec![ItemId(4)],
        ..job(1, 0)
    };
    site.submit(&[(2, second)]);
    let refused =
        |action: &SiteAction| matches!(action, SiteAction::Refuse { job, .. } if job.0 == 2);
    assert!(site.actions.iter().any(refused), "its input is nowhere");
    // The item that it would have written was there before, and is lost.
    site.event(SiteEvent::NodeLost { node: NodeId(5) });
    assert_eq!(site.stage(2), PlannerJobStage::Done);
}
