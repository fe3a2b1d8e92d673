//! The accounts of the planner, counted again.

use super::state::{PlannerJob, PlannerJobStage, PlannerState};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::id::NodeId;
use tarn_types::ledger::NodeAvailability;
use tarn_types::site::{ItemId, JobId};

/// With more jobs, items or nodes than this, they are not counted: it is done after each event.
const MOST: usize = 256;

impl PlannerState {
    /// Counts what jobs, layouts and moves have taken, and compares it with the accounts.
    ///
    /// # Panics
    /// When they differ: something was given back twice, or is never given back.
    pub(crate) fn check_accounts(&self) {
        if [self.jobs.len(), self.items.len(), self.nodes.all.count()]
            .iter()
            .any(|n| *n > MOST)
        {
            return;
        }
        self.check_ledgers();
        self.nodes.check_lists();
        self.check_guests();
        self.check_pins();
        self.check_under_way();
        self.check_waiting();
        self.check_jobs();
    }

    fn check_ledgers(&self) {
        let mut used: BTreeMap<NodeId, u64> = BTreeMap::new();
        for layout in self.items.iter().flat_map(|(_, i)| &i.layouts) {
            for node in layout.nodes.iter() {
                *used.entry(*node).or_default() += layout.each;
            }
        }
        let mut reserved: BTreeMap<NodeId, u64> = BTreeMap::new();
        for job in self.jobs.iter().flatten().filter(|j| j.promised > 0) {
            for node in job.nodes.iter() {
                *reserved.entry(*node).or_default() += job.promised;
            }
        }
        for (id, node) in self.nodes.all.iter() {
            let counted = |of: &BTreeMap<NodeId, u64>| [of.get(&id).copied().unwrap_or(0)];
            let shares = node.guests.iter().map(|guest| guest.share);
            let reserved = counted(&reserved);
            node.ledger
                .check(id, shares, &counted(&used), Some(&reserved));
        }
    }

    /// Checks that the jobs that have nodes are those on the nodes. (A job of a script is on its first job's.)
    fn check_guests(&self) {
        let mut counted: BTreeSet<(NodeId, JobId)> = BTreeSet::new();
        for (id, job) in (0..).map(JobId).zip(&self.jobs) {
            let holds = |j: &&PlannerJob| has_nodes(j.stage) && !j.attached;
            if let Some(job) = job.as_deref().filter(holds) {
                counted.extend(job.nodes.iter().map(|n| (*n, id)));
            }
        }
        let nodes = self.nodes.all.iter();
        let guests = nodes.flat_map(|(id, n)| n.guests.iter().map(move |g| (id, g.job)));
        let guests: Vec<_> = guests.collect();
        let on_nodes: BTreeSet<_> = guests.iter().copied().collect();
        assert_eq!(guests.len(), on_nodes.len(), "jobs twice on a node");
        assert_eq!(on_nodes, counted, "jobs on nodes");
    }

    fn check_pins(&self) {
        let mut counted: BTreeMap<(ItemId, u64), u32> = BTreeMap::new();
        let of_jobs = self.jobs.iter().flatten().flat_map(|j| &j.pinned);
        let of_moves = self.outbox.orders().filter_map(|o| o.reads.as_ref());
        for pin in of_jobs.chain(of_moves) {
            *counted.entry((pin.item, pin.layout)).or_default() += 1;
        }
        for (item, state) in self.items.iter() {
            for layout in &state.layouts {
                let pins = counted.get(&(item, layout.number)).copied().unwrap_or(0);
                assert_eq!(layout.pins, pins, "pins of item {item}");
            }
        }
    }

    fn check_under_way(&self) {
        self.outbox.check();
        let jobs = self.jobs.iter().flatten();
        let jobs = jobs.filter(|j| has_nodes(j.stage)).count();
        let changes = |p: NodeAvailability| {
            matches!(p, NodeAvailability::Waking | NodeAvailability::Booting(_))
        };
        let nodes = self
            .nodes
            .all
            .iter()
            .filter(|(_, n)| changes(n.availability()))
            .count();
        let counted = jobs + nodes + self.outbox.orders().count();
        assert_eq!(self.under_way as usize, counted, "things under way");
    }

    fn jobs_in(&self, stage: PlannerJobStage) -> impl Iterator<Item = (JobId, &PlannerJob)> {
        let jobs = (0..).map(JobId).zip(&self.jobs);
        let jobs = jobs.filter_map(|(id, job)| Some((id, job.as_deref()?)));
        jobs.filter(move |(_, job)| job.stage == stage)
    }

    /// Checks the queued jobs, the planned ones, and the open needs of the blocked ones.
    fn check_waiting(&self) {
        let queued: BTreeSet<JobId> = self
            .jobs_in(PlannerJobStage::Queued)
            .map(|(id, _)| id)
            .collect();
        assert_eq!(self.queue.len(), queued.len(), "jobs in the queue");
        for id in self.promises.queued() {
            assert!(queued.contains(&id), "ordinary job {id} is not queued");
        }
        let planned = || self.jobs_in(PlannerJobStage::Planned);
        let until: BTreeSet<_> = planned().map(|(id, job)| (job.max_wait, id)).collect();
        assert!(self.plans.iter().eq(until), "planned jobs");
        for (number, node) in self.nodes.all.iter() {
            let here = planned().filter(|(_, job)| job.nodes.contains(&number));
            let here = here.map(|(id, _)| id);
            assert!(node.planned.iter().copied().eq(here), "plans on {number}");
        }
        let mut later = 0;
        for (id, job) in self.jobs_in(PlannerJobStage::Blocked) {
            let waits = self.later.has(id, &job.job);
            later += usize::from(waits);
            let inputs: BTreeSet<ItemId> = job.job.reads.iter().map(|i| i.item).collect();
            let missing = inputs.iter().filter_map(|i| self.item(*i));
            let missing = missing.filter(|i| !i.made).count();
            let before = (0..).map(JobId).zip(&self.jobs);
            let before = before.filter_map(|(b, j)| Some((b, &j.as_deref()?.followers)));
            let before = before.chain(self.orphans.iter().map(|(b, f)| (*b, f)));
            let before = before.filter(|(b, f)| f.contains(&id) && self.waits_for(id, *b));
            let lacks = missing + before.count() + usize::from(waits);
            assert_eq!(job.lacks as usize, lacks, "what {id} lacks");
        }
        assert_eq!(self.later.len(), later, "jobs that may not begin yet");
        for (id, followers) in &self.orphans {
            assert!(self.job(*id).is_none(), "job {id} was withdrawn");
            let waits = |f: &JobId| self.job(*f).is_some();
            assert!(
                !followers.is_empty() && followers.iter().all(waits),
                "waiting for {id}"
            );
        }
    }

    fn check_jobs(&self) {
        for (id, flow) in &self.flows {
            let jobs = flow.jobs.iter().filter_map(|j| self.job(*j));
            let left = jobs.filter(|j| j.stage != PlannerJobStage::Done).count();
            assert_eq!(flow.left as usize, left, "jobs left of workflow {id:?}");
        }
    }
}

fn has_nodes(stage: PlannerJobStage) -> bool {
    matches!(
        stage,
        PlannerJobStage::Staging
            | PlannerJobStage::Running
            | PlannerJobStage::Draining
            | PlannerJobStage::Handed
    )
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::PlannerState;
    use std::sync::Arc;
    use tarn_types::id::NodeId;
    use tarn_types::policy::{Order, Policy};
    use tarn_types::site::{
        Input, Island, Item, ItemId, Job, JobId, JobNodes, Machine, Mode, NodeKind, NodePowerModel,
        Rates, Spread, Store, TierKind,
    };

    const ITEM: ItemId = ItemId(0);

    /// Two nodes, of which the first has an item of 10 bytes.
    fn state() -> (PlannerState, JobNodes) {
        let kind = NodeKind {
            sockets: 1,
            cores: 4,
            memory: 1 << 30,
            gpus: 0,
            tiers: vec![TierKind {
                name: "nvme".into(),
                capacity: 100,
                rates: Rates::default(),
                app_direct: false,
            }],
            link: Rates::default(),
            mode: Mode::OneLevel,
            mode_change: None,
            power: NodePowerModel::default(),
            temperature: 20.0,
        };
        let machine = Machine {
            name: "small".into(),
            islands: vec![Island {
                name: "n".into(),
                nodes: 2,
                kind,
            }],
            store: Store {
                rates: Rates::default(),
                client: Rates::default(),
                saturates: 1,
            },
        };
        let mut state = PlannerState::new(&machine, Policy::new(Order::Data, None));
        let item = Item {
            bytes: 10,
            outside: true,
            keep: false,
        };
        state.submitted(&[], &[(ITEM, item)]);
        let nodes: JobNodes = Arc::from([NodeId(0)]);
        state.lay(ITEM, &nodes, Spread::Share, None);
        state.check_accounts();
        (state, nodes)
    }

    #[test]
    #[should_panic(expected = "bytes reserved: 20 cannot be taken from 0")]
    fn space_that_is_given_back_twice_is_noticed() {
        let (mut state, nodes) = state();
        state.promise_space(&nodes, 20, true);
        state.promise_space(&nodes, 20, false);
        state.promise_space(&nodes, 20, false);
    }

    #[test]
    #[should_panic(expected = "pins of a layout: 1 cannot be taken from 0")]
    fn a_pin_that_is_given_back_twice_is_noticed() {
        let (mut state, nodes) = state();
        let pin = state.pin(ITEM, &nodes, Spread::Share).expect("it is there");
        state.unpin(&pin);
        state.unpin(&pin);
    }

    #[test]
    fn a_pin_of_a_layout_that_is_gone_frees_no_other() {
        let (mut state, nodes) = state();
        let old = state.pin(ITEM, &nodes, Spread::Share).expect("it is there");
        state.unlay(ITEM, &nodes, Spread::Share);
        state.lay(ITEM, &nodes, Spread::Share, None);
        let new = state.pin(ITEM, &nodes, Spread::Share).expect("it is there");
        state.unpin(&old);
        let pins = state.item(ITEM).map(|i| i.layouts[0].pins);
        assert_eq!(pins, Some(1));
        state.unpin(&new);
        state.check_accounts();
    }

    #[test]
    #[should_panic(expected = "bytes promised of")]
    fn space_that_is_never_given_back_is_noticed() {
        let (mut state, nodes) = state();
        state.promise_space(&nodes, 20, true);
        state.check_accounts();
    }

    fn job(reads: &[ItemId], writes: &[ItemId]) -> Arc<Job> {
        let input = |item: &ItemId| Input {
            item: *item,
            spread: Spread::Share,
        };
        Arc::new(Job {
            flow: None,
            nodes: 1,
            cores: 0,
            memory: 0,
            gpus: 0,
            mode: None,
            limit: 1,
            expect: 1,
            after: Vec::new(),
            continues: None,
            submitted: None,
            place: None,
            on: None,
            not_before: 0,
            reads: reads.iter().map(input).collect(),
            writes: writes.to_vec(),
        })
    }

    #[test]
    fn a_reader_counts_an_item_that_is_lost_once() {
        let (mut state, nodes) = state();
        let (made, reader) = (ItemId(1), JobId(1));
        let item = Item {
            bytes: 10,
            outside: false,
            keep: false,
        };
        let jobs = [(JobId(0), job(&[], &[made])), (reader, job(&[made], &[]))];
        state.submitted(&jobs, &[(made, item)]);
        state.check_accounts();
        // As if its producer had run.
        state.lay(made, &nodes, Spread::Share, None);
        state.item_mut(made).expect("it is there").made = true;
        state.job_mut(reader).expect("it is there").lacks = 0;
        state.ready(reader);
        state.check_accounts();
        state.unlay(made, &nodes, Spread::Share);
        for _ in 0..2 {
            state.make_again(made);
            assert_eq!(state.job(reader).map(|j| j.lacks), Some(1));
            state.check_accounts();
        }
    }
}
