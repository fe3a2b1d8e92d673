//! Marks under any order of events.

use super::*;
use proptest::prelude::*;
use tarn_slurm::{DELAY_SECONDS, MAX_RESERVATION_SECONDS};

/// Something that happens at a site.
#[derive(Debug, Clone)]
enum Happening {
    Pass(u64),
    Step,
    NodeWish {
        user: u32,
        workflow: u8,
        from: usize,
        count: usize,
        job: u32,
        is_staged: bool,
        delay: Option<u64>,
    },
    NoWish {
        user: u32,
        workflow: u8,
    },
    AdministratorReserves {
        from: usize,
        count: usize,
        seconds: u64,
    },
    AdministratorDeletes(usize),
    Drain(usize),
    Resume(usize),
    Hold(u32),
    End(u32),
    Submit {
        job: u32,
        user: u32,
        wants: u32,
    },
    UserJoins {
        job: u32,
        at: usize,
    },
    UserBegins {
        job: u32,
        seconds: u64,
    },
    ControllerRestarts,
    SlurmRestarts,
}

fn happening() -> impl Strategy<Value = Happening> {
    let (user, job) = (0..3_u32, 1..9_u32);
    prop_oneof![
        4 => (1..30_u64).prop_map(Happening::Pass),
        8 => Just(Happening::Step),
        6 => (user.clone(), 0..3_u8, 1..=NODES, 0..4_usize, job.clone(), any::<bool>(), proptest::option::of(1..300_u64))
            .prop_map(|(user, workflow, from, count, job, is_staged, delay)| Happening::NodeWish {
                user, workflow, from, count, job, is_staged, delay,
            }),
        1 => (user.clone(), 0..3_u8).prop_map(|(user, workflow)| Happening::NoWish { user, workflow }),
        1 => (1..=NODES, 1..3_usize, 1..300_u64)
            .prop_map(|(from, count, seconds)| Happening::AdministratorReserves { from, count, seconds }),
        1 => (0..4_usize).prop_map(Happening::AdministratorDeletes),
        1 => (1..=NODES).prop_map(Happening::Drain),
        1 => (1..=NODES).prop_map(Happening::Resume),
        1 => job.clone().prop_map(Happening::Hold),
        2 => job.clone().prop_map(Happening::End),
        4 => (job.clone(), user, 1..4_u32).prop_map(|(job, user, wants)| Happening::Submit { job, user, wants }),
        1 => (job.clone(), 0..4_usize).prop_map(|(job, at)| Happening::UserJoins { job, at }),
        1 => (job, 100..500_u64).prop_map(|(job, seconds)| Happening::UserBegins { job, seconds }),
        1 => Just(Happening::ControllerRestarts),
        1 => Just(Happening::SlurmRestarts),
    ]
}

/// A model, its controller and its wishes.
struct Site {
    slurm: Model,
    marks: Marks,
    epoch: u64,
    wishes: BTreeMap<WorkflowKey, ReservationWish>,
    /// Begin times that users set.
    begins: BTreeMap<u32, u64>,
}

impl Site {
    fn happen(&mut self, what: Happening) {
        let slurm = &mut self.slurm;
        match what {
            Happening::Pass(seconds) => slurm.pass(seconds),
            Happening::Step => {
                let wishes: Vec<ReservationWish> = self.wishes.values().cloned().collect();
                slurm.drive(&mut self.marks, &wishes);
                slurm.pass(0);
            }
            Happening::NodeWish {
                user,
                workflow,
                from,
                count,
                job,
                is_staged,
                delay,
            } => {
                let mut wish = wish(user, &format!("w{workflow}"), from..from + count, job);
                wish.jobs[0].is_staged = is_staged;
                wish.jobs[0].delay = delay.map(|seconds| seconds * SECOND);
                wish.jobs[0].needs_delay = delay.is_some_and(|seconds| seconds % 2 == 0);
                self.wishes.insert(wish.workflow.clone(), wish);
            }
            Happening::NoWish { user, workflow } => {
                self.wishes.remove(&(1000 + user, format!("w{workflow}")));
            }
            Happening::AdministratorReserves {
                from,
                count,
                seconds,
            } => {
                let nodes: Vec<String> = (from..from + count).map(node).collect();
                let (name, end) = (format!("admin{}", slurm.now), slurm.now + seconds);
                let _ = slurm.reserve(&name, &nodes, "root", end);
            }
            Happening::AdministratorDeletes(at) => {
                let name = slurm.snapshot.reservations.keys().nth(at).cloned();
                name.map(|name| slurm.snapshot.reservations.remove(&name));
                slurm.pass(0);
            }
            Happening::Drain(at) => {
                let node = slurm.snapshot.nodes.get_mut(&node(at)).unwrap();
                node.state.flags.insert(NodeFlag::Drain);
            }
            Happening::Resume(at) => {
                let node = slurm.snapshot.nodes.get_mut(&node(at)).unwrap();
                node.state.flags.remove(&NodeFlag::Drain);
            }
            Happening::Hold(job) => {
                if let Some(job) = slurm.snapshot.jobs.get_mut(&job) {
                    job.priority = 0;
                }
            }
            Happening::End(job) => {
                slurm.end(job);
                self.begins.remove(&job);
            }
            Happening::UserBegins { job, seconds } => {
                let at = slurm.now + seconds;
                if slurm.begin_at(job, at).is_ok() {
                    self.begins.insert(job, at);
                }
            }
            Happening::Submit { job, user, wants } => {
                if !slurm.snapshot.jobs.contains_key(&job) {
                    slurm.submit(job, user, wants);
                }
            }
            Happening::UserJoins { job, at } => {
                let name = slurm.snapshot.reservations.keys().nth(at).cloned();
                if let (Some(name), Some(job)) = (name, slurm.snapshot.jobs.get_mut(&job))
                    && slurm.snapshot.reservations[&name]
                        .users
                        .contains(&job.user_name)
                {
                    job.reservation = name;
                }
            }
            Happening::ControllerRestarts => {
                self.epoch += 1;
                self.marks = Marks::new(self.epoch);
            }
            Happening::SlurmRestarts => {
                slurm.snapshot.settings.boot_time = Some(slurm.now);
                slurm.snapshot.reservations.pop_last();
            }
        }
    }

    fn check(&self) {
        let now = self.slurm.now;
        let mut of_users: BTreeMap<&str, usize> = BTreeMap::new();
        for name in self.slurm.tarns() {
            let reservation = &self.slurm.snapshot.reservations[name];
            let last = now + u64::from(MAX_RESERVATION_SECONDS);
            assert!(
                reservation.end.is_some_and(|end| end <= last),
                "{name} stays"
            );
            if epoch_of(name) == Some(self.epoch) {
                *of_users.entry(&reservation.users[0]).or_default() += 1;
            }
        }
        assert!(
            of_users.values().all(|n| *n <= MAX_USER_RESERVATIONS),
            "{of_users:?}"
        );
        assert!(self.marks.reservations() <= MAX_RESERVATIONS);
        for job in self.slurm.snapshot.jobs.values() {
            let user = self.begins.get(&job.number).filter(|at| **at > now);
            let begin = job.eligible.unwrap();
            match user {
                Some(at) => assert_eq!(begin, *at, "the begin time of a user is changed"),
                None => assert!(begin <= now + u64::from(DELAY_SECONDS), "it waits for long"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// In any order of events no mark reaches farther than its bound, wishes that end leave nothing, and a dead controller leaves nothing.
    #[test]
    fn whatever_happens_marks_lapse_and_stay_within_their_bounds(
        happenings in proptest::collection::vec(happening(), 1..80)
    ) {
        let mut site = Site { slurm: Model::new(), marks: Marks::new(1), epoch: 1, wishes: BTreeMap::new(), begins: BTreeMap::new() };
        for happening in happenings {
            site.happen(happening);
            site.check();
        }
        let mut dead = site.slurm.snapshot.clone();
        let end = site.slurm.now + u64::from(MAX_RESERVATION_SECONDS);
        dead.reservations.retain(|_, r| r.end.is_none_or(|at| at > end));
        prop_assert!(dead.reservations.keys().all(|name| epoch_of(name).is_none()));
        let delayed = site.marks.delayed();
        // Switching off: no wishes. The second step ends what was in use, which takes a second.
        for _ in 0..10 {
            site.slurm.drive(&mut site.marks, &[]);
            site.slurm.pass(1);
        }
        prop_assert!(site.slurm.tarns().is_empty(), "{:?}", site.slurm.tarns());
        let jobs = site.slurm.snapshot.jobs.values();
        prop_assert!(jobs.clone().all(|job| epoch_of(&job.reservation).is_none()));
        let mut own = jobs.filter(|job| delayed.contains(&job.number));
        let is_users = |job: &SlurmJob| site.begins.get(&job.number).is_some_and(|at| *at > site.slurm.now);
        prop_assert!(own.all(|job| is_users(job) || job.eligible.unwrap() <= site.slurm.now));
        prop_assert!(!site.marks.has_any());
    }
}
