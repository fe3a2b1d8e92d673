//! Marks against a small model of Slurm's reservations that follows the trials on real ones: a reservation ends to the
//! second, is not deleted while a job refers to it, does not overlap another, and jobs in it start on its idle nodes.

mod advised;
mod any_order;
mod clock;
mod delays;
mod late_calls;
mod left_out;
mod orders;
mod slow;

use super::*;
use tarn_slurm::{
    NodeBase, NodeFlag, PartitionState, PendingReason, SlurmJob, SlurmNode, SlurmNodeState,
    SlurmPartition, SlurmReservation,
};

const NODES: usize = 8;

fn node(at: usize) -> String {
    format!("n{at}")
}

fn refused(why: &str) -> CallError {
    CallError::Refused(why.to_owned())
}

fn nodes(of: impl IntoIterator<Item = usize>) -> BTreeSet<String> {
    of.into_iter().map(node).collect()
}

/// A Slurm whose clock is moved by hand.
struct Model {
    snapshot: SlurmSnapshot,
    now: u64,
    /// Of tarn's reservations: since when they have no job, and for how many seconds they may have none.
    unused: BTreeMap<String, (u64, u64)>,
}

impl Model {
    fn new() -> Self {
        Self::of(NODES)
    }

    fn of(nodes: usize) -> Self {
        let answers = tarn_slurm::Answers {
            config: b"SLURM_VERSION = 24.11.5\n".to_vec(),
            ..tarn_slurm::Answers::default()
        };
        let mut snapshot = SlurmSnapshot::from_fields(&answers).unwrap();
        for at in 1..=nodes {
            let state = SlurmNodeState::parse("idle");
            let node = SlurmNode {
                name: node(at),
                state,
                cpus: 8,
                cpus_allocated: 0,
                memory: 1 << 30,
                memory_allocated: 0,
                gres: String::new(),
                features: vec![node(at)],
                active_features: Vec::new(),
                partitions: ["p".to_owned()].into(),
                reason: String::new(),
                extra: String::new(),
                is_incomplete: false,
            };
            snapshot.nodes.insert(node.name.clone(), node);
        }
        let partition = SlurmPartition {
            name: "p".into(),
            nodes: (1..=nodes).map(node).collect(),
            max_time: None,
            tier: 1,
            state: PartitionState::Up,
            is_default: true,
            oversubscribe: "NO".into(),
        };
        snapshot.partitions.insert("p".into(), partition);
        let now = 1_000_000;
        snapshot.read_at = now;
        Self {
            snapshot,
            now,
            unused: BTreeMap::new(),
        }
    }

    /// A waiting job of user 1000 + `user` on so many nodes.
    fn submit(&mut self, number: u32, user: u32, wants: u32) {
        let job = SlurmJob {
            number,
            array: None,
            het: None,
            user: 1000 + user,
            user_name: format!("u{user}"),
            partitions: vec!["p".into()],
            qos: String::new(),
            account: String::new(),
            state: SlurmJobState::Pending,
            reason: PendingReason::Priority,
            description: String::new(),
            priority: 1,
            nice: 0,
            submitted: Some(self.now),
            eligible: Some(self.now),
            start: None,
            end: None,
            limit: Some(600),
            min_nodes: wants,
            max_nodes: wants,
            cpus: wants,
            memory: None,
            tres_per_node: String::new(),
            is_exclusive: true,
            features: String::new(),
            preferred: String::new(),
            excluded: Vec::new().into(),
            required: Vec::new().into(),
            nodes: Vec::new().into(),
            planned: Vec::new().into(),
            reservation: String::new(),
            licences: String::new(),
            dependency: String::new(),
            has_burst_buffer: true,
            admin_comment: String::new(),
            lacks_exclusions: false,
            is_incomplete: false,
        };
        self.snapshot.jobs.insert(number, job);
    }

    fn reserve(
        &mut self,
        name: &str,
        nodes: &[String],
        user: &str,
        end: u64,
    ) -> Result<(), CallError> {
        let busy = self.snapshot.reservations.values();
        if busy.clone().any(|r| r.name == name) {
            return Err(CallError::Refused("duplicate name".into()));
        }
        if busy
            .clone()
            .any(|r| nodes.iter().any(|n| r.nodes.contains(n)))
        {
            return Err(CallError::Refused(
                "overlaps with another reservation".into(),
            ));
        }
        let reservation = SlurmReservation {
            name: name.into(),
            nodes: nodes.to_vec().into(),
            start: Some(self.now),
            end: Some(end),
            users: vec![user.into()],
            accounts: Vec::new(),
            flags: Vec::new(),
            licences: String::new(),
            is_active: true,
        };
        self.snapshot.reservations.insert(name.into(), reservation);
        Ok(())
    }

    fn perform(&mut self, action: &SlurmAction) -> Result<(), CallError> {
        let until = |seconds: u32| self.now + u64::from(seconds);
        match action {
            SlurmAction::Reserve {
                reservation,
                nodes,
                user,
                seconds,
            } => {
                let (end, limit) = (until(*seconds), u64::from(RENEWED_SECONDS));
                self.unused.insert(reservation.clone(), (self.now, limit));
                return self.reserve(reservation, nodes, user, end);
            }
            SlurmAction::Renew {
                reservation,
                seconds,
                age,
            } => {
                let end = until(*seconds);
                let of = self.found(reservation)?;
                if of.start.is_some_and(|start| start > end) {
                    return Err(refused("end time before start time"));
                }
                of.end = Some(end);
                let unused = self.unused.get_mut(reservation);
                unused.expect("its limit").1 = u64::from(age + RENEWED_SECONDS);
            }
            SlurmAction::Resize { reservation, nodes } => {
                let mut others = self.snapshot.reservations.values();
                if others
                    .any(|r| r.name != *reservation && nodes.iter().any(|n| r.nodes.contains(n)))
                {
                    return Err(CallError::Refused(
                        "overlaps with another reservation".into(),
                    ));
                }
                self.found(reservation)?.nodes = nodes.clone().into();
            }
            SlurmAction::NameFeature { node, .. } => {
                let node_of = self
                    .snapshot
                    .nodes
                    .get_mut(node)
                    .ok_or_else(|| refused("no node"))?;
                node_of.features.push(node.clone());
            }
            SlurmAction::Join {
                job, reservation, ..
            } => {
                let users = self.found(reservation)?.users.clone();
                let job = self
                    .snapshot
                    .jobs
                    .get_mut(job)
                    .ok_or_else(|| refused("no job"))?;
                if !users.contains(&job.user_name) {
                    return Err(CallError::Refused("access denied".into()));
                }
                job.reservation.clone_from(reservation);
                let job = job.number;
                if let Some(unused) = self.unused.get_mut(reservation) {
                    unused.0 = self.now;
                }
                self.begin_at(job, self.now)?;
            }
            SlurmAction::Leave { job } => {
                let job = self
                    .snapshot
                    .jobs
                    .get_mut(job)
                    .ok_or_else(|| refused("no job"))?;
                job.reservation.clear();
            }
            SlurmAction::Delete { reservation } => {
                self.found(reservation)?;
                if self
                    .snapshot
                    .jobs
                    .values()
                    .any(|j| j.reservation == *reservation)
                {
                    return Err(CallError::Refused("requested reservation is in use".into()));
                }
                self.snapshot.reservations.remove(reservation);
            }
            SlurmAction::Expire { reservation } => {
                self.found(reservation)?.end = Some(self.now + 1)
            }
            SlurmAction::DelayUntil { job, seconds } => self.begin_at(*job, until(*seconds))?,
            SlurmAction::Undelay { job } => self.begin_at(*job, self.now)?,
        }
        Ok(())
    }

    /// Gives a job that waits a begin time.
    fn begin_at(&mut self, job: u32, at: u64) -> Result<(), CallError> {
        let job = self.snapshot.jobs.get_mut(&job);
        let job = job.filter(|job| job.state == SlurmJobState::Pending);
        let job = job.ok_or_else(|| refused("Job is no longer pending execution"))?;
        job.eligible = Some(at);
        job.reason = match at > self.now {
            true => PendingReason::BeginTime,
            false => PendingReason::Priority,
        };
        Ok(())
    }

    fn found(&mut self, name: &str) -> Result<&mut SlurmReservation, CallError> {
        let found = self.snapshot.reservations.get_mut(name);
        found.ok_or_else(|| refused("no such reservation"))
    }

    /// Time passes: reservations end, and jobs in one start on its idle nodes.
    fn pass(&mut self, seconds: u64) {
        self.now += seconds;
        self.snapshot.read_at = self.now;
        let now = self.now;
        for job in self.snapshot.jobs.values() {
            if let Some(unused) = self.unused.get_mut(&job.reservation) {
                unused.0 = now;
            }
        }
        let unused = &self.unused;
        let is_unused = |name: &String| {
            let of = unused.get(name);
            of.is_some_and(|(since, limit)| now.saturating_sub(*since) > *limit)
        };
        self.snapshot
            .reservations
            .retain(|name, r| r.end.is_none_or(|end| end > now) && !is_unused(name));
        let known = &self.snapshot.reservations;
        let mut starts = Vec::new();
        for job in self.snapshot.jobs.values_mut() {
            if !known.contains_key(&job.reservation) {
                job.reservation.clear();
            }
            if job.state == SlurmJobState::Pending && !job.reservation.is_empty() {
                starts.push((job.number, known[&job.reservation].nodes.clone()));
            }
        }
        for (number, reserved) in starts {
            let idle: Vec<String> = reserved
                .iter()
                .filter(|n| check::is_idle(&self.snapshot, n))
                .cloned()
                .collect();
            let job = self.snapshot.jobs.get_mut(&number).unwrap();
            let wants = job.min_nodes as usize;
            let is_eligible = job.eligible.is_none_or(|at| at <= now);
            if idle.len() >= wants && job.priority > 0 && is_eligible {
                job.state = SlurmJobState::Running;
                job.nodes = idle[..wants].to_vec().into();
                for name in &idle[..wants] {
                    self.snapshot.nodes.get_mut(name).unwrap().state.base = NodeBase::Allocated;
                }
            }
        }
        let reserved: BTreeSet<String> = self
            .snapshot
            .reservations
            .values()
            .flat_map(|r| r.nodes.iter().cloned())
            .collect();
        for node in self.snapshot.nodes.values_mut() {
            match reserved.contains(&node.name) {
                true => node.state.flags.insert(NodeFlag::Reserved),
                false => node.state.flags.remove(&NodeFlag::Reserved),
            };
        }
    }

    fn end(&mut self, number: u32) {
        if let Some(job) = self.snapshot.jobs.remove(&number) {
            for name in job.nodes.iter() {
                self.snapshot.nodes.get_mut(name).unwrap().state.base = NodeBase::Idle;
            }
        }
    }

    fn time(&self) -> Time {
        self.now * SECOND
    }

    fn tarns(&self) -> Vec<&str> {
        let names = self.snapshot.reservations.keys();
        names
            .map(String::as_str)
            .filter(|n| epoch_of(n).is_some())
            .collect()
    }

    /// One step of the controller on a fresh snapshot. Returns its calls, and its notes.
    fn drive(&mut self, marks: &mut Marks, wishes: &[ReservationWish]) -> MarkStep {
        let step = marks.step(&self.snapshot.clone(), self.time(), wishes, self.time());
        for order in &step.orders {
            let result = self.perform(&order.action);
            marks.done(order, result, self.time());
        }
        step
    }
}

fn wish(
    user: u32,
    workflow: &str,
    of: impl IntoIterator<Item = usize>,
    job: u32,
) -> ReservationWish {
    let nodes = nodes(of);
    ReservationWish {
        workflow: (1000 + user, workflow.into()),
        user: format!("u{user}"),
        jobs: vec![JoinWish {
            job,
            nodes: nodes.clone(),
            is_called: true,
            is_staged: true,
            delay: None,
            needs_delay: false,
        }],
        nodes,
        seconds: 900,
        reason: "its data is there".into(),
    }
}

#[test]
fn a_reservation_is_made_joined_renewed_and_given_up() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(3));
    slurm.submit(7, 0, 2);
    let wishes = [wish(0, "wing", [1, 2], 7)];
    slurm.drive(&mut marks, &wishes);
    assert_eq!(slurm.tarns(), ["tarn_3_workflow_1"]);
    // Joined on a snapshot that is newer than the reservation, not before.
    assert!(slurm.snapshot.jobs[&7].reservation.is_empty());
    slurm.pass(1);
    slurm.drive(&mut marks, &wishes);
    assert_eq!(slurm.snapshot.jobs[&7].reservation, "tarn_3_workflow_1");
    slurm.pass(1);
    assert_eq!(slurm.snapshot.jobs[&7].state, SlurmJobState::Running);
    assert_eq!(slurm.snapshot.jobs[&7].nodes[..], [node(1), node(2)]);
    // It leaves at once, and runs on.
    slurm.drive(&mut marks, &wishes);
    assert!(slurm.snapshot.jobs[&7].reservation.is_empty());
    // The reservation lasts as long as it is wished for, which is longer than a minute.
    for _ in 0..100 {
        slurm.pass(2);
        slurm.drive(&mut marks, &wishes);
    }
    assert_eq!(slurm.tarns().len(), 1);
    // It goes when nobody has wished for it for a while.
    assert!(slurm.drive(&mut marks, &[]).orders.is_empty());
    slurm.pass(2);
    assert!(slurm.drive(&mut marks, &[]).orders.is_empty());
    slurm.pass(1);
    let last = slurm.drive(&mut marks, &[]);
    let texts: Vec<String> = last.orders.iter().map(|o| o.action.to_string()).collect();
    assert_eq!(texts, ["scontrol delete reservationname=tarn_3_workflow_1"]);
    assert!(slurm.tarns().is_empty() && marks.reservations() == 0);
    assert_eq!(slurm.snapshot.jobs[&7].state, SlurmJobState::Running);
}

#[test]
fn a_reservation_reaches_as_far_as_its_jobs_need_it_and_no_farther_than_its_bound() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(3));
    slurm.submit(7, 0, 2);
    slurm.snapshot.jobs.get_mut(&7).unwrap().priority = 0;
    let lasts = |slurm: &Model| {
        let end = slurm.snapshot.reservations["tarn_3_workflow_1"].end;
        end.unwrap() - slurm.now
    };
    let wish_of = |seconds| {
        let wish = wish(0, "wing", [1, 2], 7);
        [ReservationWish { seconds, ..wish }]
    };
    slurm.drive(&mut marks, &wish_of(1));
    assert_eq!(lasts(&slurm), u64::from(RESERVATION_SECONDS));
    // A job that needs it for longer: at once, and not again with every second that passes.
    slurm.pass(1);
    slurm.drive(&mut marks, &wish_of(300));
    assert_eq!(lasts(&slurm), 300);
    slurm.pass(1);
    assert!(slurm.drive(&mut marks, &wish_of(300)).orders.is_empty());
    slurm.drive(&mut marks, &wish_of(u32::MAX));
    assert_eq!(lasts(&slurm), u64::from(MAX_RESERVATION_SECONDS));
    // It is renewed in time for as long as the controller lives, and without one it is over long before its end.
    for _ in 0..90 {
        slurm.pass(2);
        slurm.drive(&mut marks, &wish_of(u32::MAX));
    }
    assert_eq!(slurm.tarns().len(), 1);
    slurm.pass(u64::from(RENEWED_SECONDS) + 1);
    assert!(slurm.tarns().is_empty());
}

#[test]
fn nothing_is_done_on_an_old_snapshot_and_all_lapses_without_a_controller() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    let wishes = [wish(0, "wing", [1, 2], 7)];
    let late = slurm.time() + MAX_AGE + 1;
    let old = marks.step(&slurm.snapshot, slurm.time(), &wishes, late);
    assert_eq!(old, MarkStep::default());
    slurm.drive(&mut marks, &wishes);
    assert_eq!(slurm.tarns().len(), 1);
    slurm.pass(u64::from(RENEWED_SECONDS) + 1);
    assert!(slurm.tarns().is_empty());
    // The controller was only slow: nobody deleted it, and it is made again.
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    slurm.drive(&mut marks, &wishes);
    assert_eq!(slurm.tarns().len(), 1);
}

#[test]
fn an_administrator_who_deletes_a_reservation_is_obeyed_for_ten_minutes() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    slurm.snapshot.jobs.get_mut(&7).unwrap().priority = 0;
    let wishes = [wish(0, "wing", [1, 2], 7)];
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    slurm.snapshot.reservations.clear();
    let step = slurm.drive(&mut marks, &wishes);
    assert!(step.notes[0].contains("deleted reservation"), "{step:?}");
    for _ in 0..59 {
        slurm.pass(10);
        slurm.drive(&mut marks, &wishes);
        assert!(slurm.tarns().is_empty());
    }
    slurm.pass(11);
    slurm.drive(&mut marks, &wishes);
    assert_eq!(slurm.tarns().len(), 1);
}

#[test]
fn a_reservation_that_slurm_lost_when_it_was_started_again_is_made_again() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    slurm.snapshot.settings.boot_time = Some(1);
    let wishes = [wish(0, "wing", [1, 2], 7)];
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    slurm.snapshot.settings.boot_time = Some(2);
    slurm.snapshot.reservations.clear();
    // The job may still name it.
    slurm.snapshot.jobs.get_mut(&7).unwrap().reservation = "tarn_1_workflow_1".into();
    slurm.drive(&mut marks, &wishes);
    assert!(slurm.snapshot.jobs[&7].reservation.is_empty());
    slurm.pass(1);
    slurm.drive(&mut marks, &wishes);
    assert_eq!(slurm.tarns(), ["tarn_1_workflow_2"]);
}

#[test]
fn the_newer_of_two_controllers_deletes_the_marks_of_the_older_which_stops() {
    let (mut slurm, mut old, mut new) = (Model::new(), Marks::new(1), Marks::new(2));
    slurm.submit(7, 0, 2);
    slurm.submit(8, 1, 2);
    slurm.drive(&mut old, &[wish(0, "wing", [1, 2], 7)]);
    slurm.pass(1);
    slurm.drive(&mut new, &[wish(1, "sea", [3, 4], 8)]);
    assert_eq!(slurm.tarns(), ["tarn_2_workflow_1"]);
    slurm.pass(1);
    let step = slurm.drive(&mut old, &[wish(0, "wing", [1, 2], 7)]);
    assert!(
        step.orders.is_empty() && step.notes[0].contains("epoch 2"),
        "{step:?}"
    );
}

#[test]
fn a_reservation_for_nodes_that_go_to_sleep_is_its_own_controllers_alone() {
    let (mut slurm, mut own, mut next) = (Model::new(), Marks::new(3), Marks::new(4));
    let name = sleep_reservation(3, 1);
    slurm
        .reserve(&name, &[node(1)], "root", slurm.now + 60)
        .unwrap();
    slurm.submit(7, 0, 2);
    let wishes = [wish(0, "wing", [1, 2], 7)];
    let step = slurm.drive(&mut own, &wishes);
    assert!(step.notes[0].contains("another reservation"), "{step:?}");
    assert_eq!(slurm.tarns(), [&name]);
    slurm.drive(&mut next, &[]);
    assert_eq!(slurm.tarns(), [""; 0]);
}

#[test]
fn what_slurm_or_its_administrator_would_refuse_is_not_called_for() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    for job in 1..=9 {
        slurm.submit(job, 0, 2);
    }
    slurm
        .reserve("maintenance", &[node(1)], "root", u64::MAX)
        .unwrap();
    slurm.snapshot.nodes.get_mut("n2").unwrap().state = SlurmNodeState::parse("idle+drain");
    slurm.snapshot.jobs.get_mut(&3).unwrap().required = vec![node(3)].into();
    slurm.snapshot.jobs.get_mut(&4).unwrap().has_burst_buffer = false;
    slurm.snapshot.jobs.get_mut(&5).unwrap().user = 9;
    slurm.snapshot.jobs.get_mut(&6).unwrap().min_nodes = 3;
    slurm.snapshot.jobs.get_mut(&7).unwrap().partitions = vec!["q".into()];
    let cases = [
        (wish(0, "a", [1, 3], 1), "another reservation"),
        (wish(0, "b", [2, 3], 1), "takes no jobs"),
        (wish(0, "c", [3, 4], 3), "does not touch"),
        (wish(0, "d", [3, 4], 4), "does not touch"),
        (wish(0, "e", [3, 4], 5), "another user"),
        (wish(0, "f", [3, 4], 6), "more nodes"),
        (wish(0, "g", [3, 4], 7), "another partition"),
        (wish(0, "h", [3, 99], 1), "no node n99"),
        (wish(0, "i", [3, 4], 99), "not known"),
        (wish(0, "j", [], 1), "names no node"),
    ];
    for (wish, why) in cases {
        let step = slurm.drive(&mut marks, &[wish]);
        assert!(step.orders.is_empty(), "{why}: {:?}", step.orders);
        assert!(step.notes[0].contains(why), "{why}: {:?}", step.notes);
    }
}

#[test]
fn nodes_do_not_stay_idle_for_a_job_that_slurm_does_not_come_to() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    let mut wishes = [wish(0, "wing", [1, 2], 7)];
    (wishes[0].jobs[0].is_called, wishes[0].jobs[0].is_staged) = (false, false);
    let mut idle = 0;
    for _ in 0..300 {
        slurm.drive(&mut marks, &wishes);
        idle += u32::from(!slurm.tarns().is_empty());
        slurm.pass(1);
    }
    assert!((55..80).contains(&idle), "{idle} s of 300");
    // Its data is on its way, however long that takes.
    wishes[0].jobs[0].is_called = true;
    slurm.pass(100);
    for _ in 0..200 {
        slurm.drive(&mut marks, &wishes);
        slurm.pass(1);
    }
    assert_eq!(slurm.tarns().len(), 1);
}

#[test]
fn a_job_joins_only_when_slurm_can_start_it_inside_and_leaves_if_it_does_not() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    slurm.snapshot.nodes.get_mut("n1").unwrap().state = SlurmNodeState::parse("allocated");
    let mut wishes = [wish(0, "wing", [1, 2], 7)];
    wishes[0].jobs[0].is_staged = false;
    let joined = |slurm: &Model| !slurm.snapshot.jobs[&7].reservation.is_empty();
    for _ in 0..3 {
        slurm.drive(&mut marks, &wishes);
        slurm.pass(1);
    }
    assert!(!joined(&slurm));
    wishes[0].jobs[0].is_staged = true;
    slurm.drive(&mut marks, &wishes);
    assert!(!joined(&slurm));
    slurm.snapshot.nodes.get_mut("n1").unwrap().state = SlurmNodeState::parse("idle+completing");
    slurm.drive(&mut marks, &wishes);
    assert!(!joined(&slurm));
    slurm.snapshot.nodes.get_mut("n1").unwrap().state = SlurmNodeState::parse("idle+reserved");
    slurm.snapshot.nodes.get_mut("n1").unwrap().features.clear();
    let step = slurm.drive(&mut marks, &wishes);
    assert!(joined(&slurm));
    assert!(matches!(
        step.orders[0].action,
        SlurmAction::NameFeature { .. }
    ));
    // A node dies in that moment: Slurm does not start the job.
    slurm.snapshot.nodes.get_mut("n2").unwrap().state = SlurmNodeState::parse("down");
    slurm.pass(9);
    slurm.drive(&mut marks, &wishes);
    slurm.pass(2);
    slurm.drive(&mut marks, &wishes);
    assert!(!joined(&slurm));
    slurm.pass(3);
    slurm.drive(&mut marks, &wishes);
    assert!(slurm.tarns().is_empty());
}

#[test]
fn a_reservation_that_is_in_use_is_made_to_end() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    slurm.submit(8, 0, 2);
    let wishes = [wish(0, "wing", [1, 2], 7)];
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    slurm.drive(&mut marks, &[]);
    slurm.pass(3);
    // The user puts in another job between the snapshot and the call.
    let before = slurm.snapshot.clone();
    slurm.snapshot.jobs.get_mut(&8).unwrap().reservation = "tarn_1_workflow_1".into();
    let step = marks.step(&before, slurm.time(), &[], slurm.time());
    for order in &step.orders {
        let result = slurm.perform(&order.action);
        marks.done(order, result, slurm.time());
    }
    assert_eq!(slurm.tarns().len(), 1);
    slurm.snapshot.jobs.get_mut(&8).unwrap().state = SlurmJobState::Running;
    let step = slurm.drive(&mut marks, &[]);
    assert!(
        step.orders
            .iter()
            .any(|o| matches!(o.action, SlurmAction::Expire { .. }))
    );
    slurm.pass(1);
    assert!(slurm.tarns().is_empty());
}

#[test]
fn one_user_gets_four_reservations_however_many_workflows_there_are() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    let mut wishes = Vec::new();
    for at in 1..=NODES {
        slurm.submit(at as u32, 0, 1);
        wishes.push(wish(0, &format!("w{at}"), [at], at as u32));
    }
    slurm.drive(&mut marks, &wishes);
    assert_eq!(slurm.tarns().len(), MAX_USER_RESERVATIONS);
    slurm.pass(1);
    let step = slurm.drive(&mut marks, &wishes);
    assert!(
        step.notes.iter().any(|n| n.contains("4 reservations")),
        "{step:?}"
    );
}

#[test]
fn a_job_that_its_user_puts_in_is_taken_out_and_its_workflow_left_alone() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    for job in 7..17 {
        slurm.submit(job, 0, 2);
    }
    let mut wishes = [wish(0, "wing", [1, 2], 7)];
    wishes[0].jobs[0].is_staged = false;
    slurm.drive(&mut marks, &wishes);
    for job in 8..17 {
        let job = slurm.snapshot.jobs.get_mut(&job).unwrap();
        job.reservation = "tarn_1_workflow_1".into();
        // Slurm has not looked yet.
        job.priority = 0;
    }
    slurm.drive(&mut marks, &wishes);
    assert!(marks.is_left_alone(&wishes[0].workflow, slurm.time()));
    for _ in 0..10 {
        slurm.pass(1);
        slurm.drive(&mut marks, &wishes);
    }
    assert!(slurm.tarns().is_empty(), "{:?}", slurm.tarns());
    assert!(
        slurm
            .snapshot
            .jobs
            .values()
            .all(|job| job.reservation.is_empty())
    );
    // A list of reservations is the user's own.
    slurm.snapshot.jobs.get_mut(&8).unwrap().reservation = "tarn_1_workflow_1,other".into();
    assert!(slurm.drive(&mut marks, &[]).orders.is_empty());
}

#[test]
fn a_job_whose_place_in_its_reservation_slurm_lost_does_not_have_nodes_kept_for_ever() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    let wishes = [wish(0, "wing", [1, 2], 7)];
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    slurm.drive(&mut marks, &wishes);
    slurm.snapshot.jobs.get_mut(&7).unwrap().reservation.clear();
    slurm.pass(1);
    slurm.drive(&mut marks, &wishes);
    assert!(marks.is_left_alone(&wishes[0].workflow, slurm.time()));
    for _ in 0..4 {
        slurm.pass(1);
        slurm.drive(&mut marks, &wishes);
    }
    assert!(slurm.tarns().is_empty());
}

#[test]
fn nodes_that_sleep_are_not_reserved_and_those_of_another_workflow_are_waited_for() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    slurm.submit(8, 1, 2);
    slurm.snapshot.nodes.get_mut("n1").unwrap().state = SlurmNodeState::parse("idle~");
    let step = slurm.drive(&mut marks, &[wish(0, "wing", [1, 2], 7)]);
    assert!(
        step.orders.is_empty() && step.notes[0].contains("takes no jobs"),
        "{step:?}"
    );
    slurm.drive(&mut marks, &[wish(0, "wing", [2, 3], 7)]);
    slurm.pass(1);
    // The first is not wished for any more, and lingers: Slurm would refuse the second.
    let next = [wish(1, "sea", [3, 4], 8)];
    let step = slurm.drive(&mut marks, &next);
    assert!(
        step.orders.is_empty() && step.notes[0].contains("another reservation"),
        "{step:?}"
    );
    assert!(!marks.is_left_alone(&next[0].workflow, slurm.time()));
    for _ in 0..5 {
        slurm.pass(1);
        slurm.drive(&mut marks, &next);
    }
    assert_eq!(slurm.tarns(), ["tarn_1_workflow_2"]);
}

#[test]
fn jobs_join_one_after_the_other() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    slurm.submit(8, 1, 2);
    let wishes = [wish(0, "wing", [1, 2], 7), wish(1, "sea", [3, 4], 8)];
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    let joins = |step: &MarkStep| {
        let is_join = |o: &&MarkOrder| matches!(o.action, SlurmAction::Join { .. });
        step.orders.iter().filter(is_join).count()
    };
    assert_eq!(joins(&slurm.drive(&mut marks, &wishes)), 1);
    slurm.pass(1);
    assert_eq!(joins(&slurm.drive(&mut marks, &wishes)), 1);
}
