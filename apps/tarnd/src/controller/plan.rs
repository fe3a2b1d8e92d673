//! The planner, by a thread of its own: it sees the newest state of Slurm and of the site, logs what it would do, and
//! keeps the plan for those who ask. In mode `drive` it has Slurm follow. Nothing waits for it.

use super::ControllerInput;
use super::drive::{DriveWishes, SlurmDriver};
use super::mode::{SharedSiteMode, SiteMode};
use super::plan_log::PlanLog;
use super::promise_file::PromiseFile;
use super::reader::SlurmReading;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_proto::local::Code;
use tarn_proto::site::{
    ControllerReply, ControllerRequest, JobInfo, MAX_PLAN_JOBS, MAX_PLAN_NODES, PlanInfo,
    PlanStatusInfo, PlannedJobInfo, SlurmJobId, Uid,
};
use tarn_site::PlanningView;
use tarn_site_planner::{
    PlanAccuracy, PlannedJob, PowerOrder, RebuildReason, SitePlan, SitePlanner, SitePower,
    SiteRates,
};
use tarn_slurm::SlurmSnapshot;
use tarn_types::policy::Policy;
use tarn_types::units::{Elapsed, Nanos, SECOND, Time};

/// How far a plan reaches.
const HORIZON: Nanos = 24 * 3600 * SECOND;
/// Between two plans at least; more if making one takes long.
const EVERY: Duration = Duration::from_secs(2);
/// The same where tarn drives Slurm: a step that has ended keeps nodes idle until the next one has them.
const EVERY_DRIVEN: Duration = Duration::from_millis(250);
/// The longest pause after a plan.
const MAX_REST: Duration = Duration::from_secs(10);
/// A plan may take this share of the time, one in so many.
const SHARE: u32 = 10;

/// The state that the planner sees next.
struct PlanInput {
    reading: Arc<SlurmReading>,
    view: PlanningView,
    /// By the clock that Slurm has, which may jump.
    now: Time,
}

/// A plan, as it was made.
#[derive(Default)]
struct MadePlan {
    plan: SitePlan,
    accuracy: PlanAccuracy,
    took: Duration,
    /// When: by a clock that does not jump.
    at: Option<Instant>,
}

#[derive(Default)]
struct PlanExchange {
    next: Option<PlanInput>,
    made: Arc<MadePlan>,
}

/// The planner's thread.
#[derive(Clone)]
pub(super) struct PlanThread {
    exchange: Arc<(Mutex<PlanExchange>, Condvar)>,
    mode: SharedSiteMode,
    policy: Policy,
    power: SitePower,
    rates: SiteRates,
}

impl PlanThread {
    pub(super) fn start(
        state: &Path,
        mode: SharedSiteMode,
        (policy, power, rates): (Policy, SitePower, SiteRates),
        driver: SlurmDriver,
        inputs: Sender<ControllerInput>,
    ) -> Self {
        let this = Self {
            exchange: Arc::default(),
            mode,
            policy,
            power,
            rates,
        };
        let own = this.clone();
        let log = PlanLog::new(state);
        let promises = PromiseFile::new(state);
        let thread = std::thread::Builder::new().name("plan".into());
        if let Err(e) = thread.spawn(move || own.plan_on(log, promises, driver, &inputs)) {
            tracing::error!("nothing is planned: no thread: {e}");
        }
        this
    }

    fn exchange(&self) -> MutexGuard<'_, PlanExchange> {
        let exchange = self.exchange.0.lock();
        exchange.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may put nodes to sleep.
    pub(super) fn has_sleepers(&self) -> bool {
        self.policy.has_sleepers()
    }

    /// Gives the planner the newest state; an older one that it has not taken yet is forgotten.
    pub(super) fn offer(&self, reading: Arc<SlurmReading>, view: PlanningView, now: Time) {
        self.exchange().next = Some(PlanInput { reading, view, now });
        self.exchange.1.notify_all();
    }

    fn wait(&self, until: Option<Instant>) -> Option<PlanInput> {
        let mut exchange = self.exchange();
        loop {
            if let Some(next) = exchange.next.take() {
                return Some(next);
            }
            let left = until.map(|at| at.saturating_duration_since(Instant::now()));
            exchange = match left {
                Some(left) if left.is_zero() => return None,
                Some(left) => {
                    let waited = self.exchange.1.wait_timeout(exchange, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.exchange.1.wait(exchange);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    fn plan_on(
        &self,
        mut log: PlanLog,
        mut promises: PromiseFile,
        mut driver: SlurmDriver,
        inputs: &Sender<ControllerInput>,
    ) {
        let planner = SitePlanner::new(self.policy, self.rates);
        let mut planner = planner.with_power(self.power);
        if let Some(promise) = promises.read() {
            planner.restore_promise(promise);
        }
        // The site's time when the newest state came, and when that was.
        let mut clock: Option<(Time, Instant)> = None;
        let mut rest: Option<Instant> = None;
        loop {
            let every = match self.mode.get() {
                SiteMode::Drive => EVERY_DRIVEN,
                SiteMode::Observe | SiteMode::Advise => EVERY,
            };
            let now = |at: Instant| {
                let (time, then) = clock.unwrap_or((0, at));
                time.saturating_add(nanos(at.saturating_duration_since(then)))
            };
            let deadline = planner.deadline().zip(clock).map(|(at, (time, then))| {
                then + Duration::from_nanos(at.saturating_sub(time).min(HORIZON))
            });
            // While nothing came there is nothing to pass.
            let due = deadline.map(|at| rest.map_or(at, |rest| at.max(rest)));
            match self.wait(due) {
                Some(input) => {
                    if let Some(pause) = rest {
                        std::thread::sleep(pause.saturating_duration_since(Instant::now()));
                    }
                    // A state that came meanwhile is newer.
                    let input = self.exchange().next.take().unwrap_or(input);
                    clock = Some((input.now, Instant::now()));
                    let began = Instant::now();
                    let (snapshot, delayed) = driver.undelayed(&input.reading.snapshot);
                    let snapshot = &snapshot;
                    let orders = see(&mut planner, &mut log, (&input, snapshot));
                    order_power(orders, &mut log, input.now, inputs);
                    promises.keep(planner.promise());
                    let mut took = began.elapsed();
                    // Nothing that follows is done in another mode.
                    let mode = self.mode.with_generation();
                    let wishes = wishes(mode.0, &mut planner, (&input, snapshot), &delayed);
                    self.drive(mode, &wishes, &mut driver, &mut log, &input);
                    let began = Instant::now();
                    self.publish(&mut planner, &mut log, began);
                    took += began.elapsed();
                    // Reservations must be renewed meanwhile.
                    rest = Some(Instant::now() + every.max(took * SHARE).min(MAX_REST));
                }
                None => {
                    let now = now(Instant::now());
                    let actions = planner.pass(now);
                    order_power(planner.power_orders(&actions), &mut log, now, inputs);
                    promises.keep(planner.promise());
                    // The next deadline may be at once.
                    rest = Some(Instant::now() + every);
                }
            }
        }
    }

    /// Has Slurm follow. In another mode all marks go, and the reservations that an earlier controller left too; one that only
    /// observes leaves these to lapse.
    fn drive(
        &self,
        (mode, generation): (SiteMode, u64),
        wishes: &DriveWishes,
        driver: &mut SlurmDriver,
        log: &mut PlanLog,
        input: &PlanInput,
    ) {
        if mode != SiteMode::Observe || driver.has_marks() {
            let may_call = || self.mode.call(generation);
            driver.follow(&input.reading, wishes, may_call, log, input.now);
        }
    }

    fn publish(&self, planner: &mut SitePlanner, log: &mut PlanLog, began: Instant) {
        let plan = planner.plan(HORIZON);
        log.note_plan(&plan);
        let made = MadePlan {
            plan,
            accuracy: planner.accuracy(),
            took: began.elapsed(),
            at: Some(Instant::now()),
        };
        self.exchange().made = Arc::new(made);
    }

    fn made(&self) -> Arc<MadePlan> {
        Arc::clone(&self.exchange().made)
    }

    /// The state of the planning.
    fn status_of(&self, made: &MadePlan) -> PlanStatusInfo {
        let waiting = made.plan.jobs.iter().filter(|job| !job.has_begun);
        PlanStatusInfo {
            mode: self.mode.get().name().to_owned(),
            policy: self.policy.to_string(),
            made: made.plan.made,
            age: made.at.map_or(0, |at| nanos(at.elapsed())),
            took: nanos(made.took),
            waiting: u32::try_from(waiting.count()).unwrap_or(u32::MAX),
            begun: made.accuracy.jobs,
            on_planned_nodes: made.accuracy.on_planned_nodes,
            median_error: made.accuracy.median_error,
        }
    }

    /// Replies to a request about plans; `None` to another one. The asker is a user, and whether they may see all.
    pub(super) fn answer(
        &self,
        asker: (Uid, bool),
        ask: &ControllerRequest,
    ) -> Option<ControllerReply> {
        match ask {
            ControllerRequest::Plan => Some(ControllerReply::Plan(Box::new(self.info(asker)))),
            ControllerRequest::PlanStatus => {
                let status = self.status_of(&self.made());
                Some(ControllerReply::PlanStatus(Box::new(status)))
            }
            _ => None,
        }
    }

    /// The site's reply about a job, with what is planned for it. A job without data lines is known here only.
    pub(super) fn completed(
        &self,
        (user, all): (Uid, bool),
        ask: &ControllerRequest,
        reply: ControllerReply,
    ) -> ControllerReply {
        let ControllerRequest::Job(id) = ask else {
            return reply;
        };
        let planned = self.of_job(*id).filter(|(of, _)| all || *of == user);
        match (reply, planned) {
            (ControllerReply::Job(info), Some((_, planned))) => {
                ControllerReply::Job(Box::new(JobInfo {
                    planned: Some(planned),
                    ..*info
                }))
            }
            (ControllerReply::Refused(why), Some((user, planned)))
                if why.code == Code::NotFound =>
            {
                ControllerReply::Job(Box::new(JobInfo {
                    user,
                    phase: "in Slurm's queue, with no data that tarn has taken in".to_owned(),
                    history: Vec::new(),
                    waits: None,
                    ending: Vec::new(),
                    planned: Some(planned),
                }))
            }
            (reply, _) => reply,
        }
    }

    /// The plan, as this user may see it: all of it if Slurm or root asks.
    fn info(&self, (user, all): (Uid, bool)) -> PlanInfo {
        let made = self.made();
        let may_see = |of: Uid| all || of == user;
        let mut info = PlanInfo {
            status: self.status_of(&made),
            until: made.plan.until,
            nodes: made
                .plan
                .nodes
                .iter()
                .take(MAX_PLAN_NODES)
                .cloned()
                .collect(),
            ..PlanInfo::default()
        };
        let numbers: BTreeMap<&str, u32> = info.nodes.iter().map(|n| &n[..]).zip(0..).collect();
        let mut names = 0;
        for job in &made.plan.jobs {
            names += job.nodes.len();
            if info.jobs.len() == MAX_PLAN_JOBS || names > MAX_PLAN_NODES {
                info.left_out = (made.plan.jobs.len() - info.jobs.len()) as u32;
                break;
            }
            let nodes = job.nodes.iter().filter_map(|name| numbers.get(&name[..]));
            let is_seen = may_see(job.user);
            info.jobs.push(PlannedJobInfo {
                job: job.job,
                user: is_seen.then_some(job.user),
                workflow: job.workflow.clone().filter(|_| is_seen),
                nodes: nodes.copied().collect(),
                has_begun: job.has_begun,
                begin: job.begin,
                end: job.end,
                why: if is_seen {
                    job.why.clone()
                } else {
                    String::new()
                },
            });
        }
        for job in &made.plan.unplanned {
            if may_see(job.user) {
                info.unplanned.push((job.job, job.why.clone()));
            } else {
                info.others_unplanned += 1;
            }
        }
        info
    }

    /// The plan for a job, and its user; `None` where it is in no plan.
    fn of_job(&self, id: SlurmJobId) -> Option<(Uid, String)> {
        let made = self.made();
        let jobs = &made.plan.jobs;
        if let Some(job) = jobs.iter().find(|job| job.job == id) {
            return Some((job.user, sentence(job, made.plan.made)));
        }
        let unplanned = made.plan.unplanned.iter().find(|job| job.job == id)?;
        Some((unplanned.user, format!("no nodes: {}", unplanned.why)))
    }
}

fn sentence(job: &PlannedJob, made: Time) -> String {
    let nodes = job.nodes.join(", ");
    let end = Elapsed(job.end.saturating_sub(made));
    if job.has_begun {
        return format!("it has {nodes}, expected to end in {end}");
    }
    match job.begin.saturating_sub(made) {
        0 => format!("{nodes} now, as {}", job.why),
        wait => format!("{nodes} in {}, as {}", Elapsed(wait), job.why),
    }
}

/// The wishes of drive; another mode has none.
fn wishes(
    mode: SiteMode,
    planner: &mut SitePlanner,
    (input, snapshot): (&PlanInput, &SlurmSnapshot),
    delayed: &BTreeSet<u32>,
) -> DriveWishes {
    match mode {
        SiteMode::Observe | SiteMode::Advise => DriveWishes::default(),
        SiteMode::Drive => DriveWishes {
            reservations: planner.reservation_wishes(snapshot, &input.view, delayed),
            delays: planner.delay_wishes(snapshot, &input.view),
        },
    }
}

/// Returns the planner's decisions about nodes' sleep.
fn see(
    planner: &mut SitePlanner,
    log: &mut PlanLog,
    (input, snapshot): (&PlanInput, &SlurmSnapshot),
) -> Vec<PowerOrder> {
    let seen = planner.see(snapshot, &input.view, input.now);
    if let Some(why) = &seen.rebuilt {
        log.note_rebuilt(input.now, &rebuilt(why));
    }
    log.note_transitions(input.now, &seen.transitions);
    if let Some(first) = seen.refused.first() {
        let all = seen.refused.len();
        tracing::warn!("the planner refused {all} facts of Slurm's, the first: {first}");
    }
    planner.power_orders(&seen.actions)
}

/// Logs decisions about nodes' sleep, and has the controller follow.
fn order_power(
    orders: Vec<PowerOrder>,
    log: &mut PlanLog,
    now: Time,
    inputs: &Sender<ControllerInput>,
) {
    if !orders.is_empty() {
        log.note_power(now, &orders);
        // It ends only with the program.
        let _ = inputs.send(ControllerInput::Power(orders));
    }
}

fn rebuilt(why: &RebuildReason) -> String {
    match why {
        RebuildReason::First => "there was none".to_owned(),
        RebuildReason::NodesChanged => "the nodes, or their kinds, changed".to_owned(),
        RebuildReason::SlurmRestarted => "slurmctld was started again".to_owned(),
        RebuildReason::ClockSetBack => "the clock was set back".to_owned(),
        RebuildReason::NumbersUsedUp => "its numbers were used up".to_owned(),
        RebuildReason::Disagreement(what) => format!("it differed from Slurm: {what}"),
    }
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_site_planner::UnplannedJob;
    use tarn_types::policy::Order;

    fn thread() -> PlanThread {
        let job = |job: u32, user: Uid, node: &str| PlannedJob {
            job,
            user,
            workflow: Some("secretive".to_owned()),
            nodes: vec![node.to_owned()],
            has_begun: false,
            begin: 130 * SECOND,
            end: 190 * SECOND,
            why: "its data is there".to_owned(),
        };
        let unplanned = |job: u32, user: Uid| UnplannedJob {
            job,
            user,
            why: "its user holds it".to_owned(),
        };
        let plan = SitePlan {
            made: 100 * SECOND,
            until: 200 * SECOND,
            nodes: vec!["n1".to_owned(), "n2".to_owned()],
            jobs: vec![job(17, 1000, "n1"), job(18, 1001, "n2")],
            unplanned: vec![unplanned(19, 1000), unplanned(20, 1001)],
        };
        let made = MadePlan {
            plan,
            ..MadePlan::default()
        };
        let exchange = PlanExchange {
            next: None,
            made: Arc::new(made),
        };
        PlanThread {
            power: SitePower::default(),
            exchange: Arc::new((Mutex::new(exchange), Condvar::new())),
            mode: SharedSiteMode::new(SiteMode::Observe),
            policy: Policy::new(Order::Data, None),
            rates: SiteRates::default(),
        }
    }

    #[test]
    fn users_see_their_own_jobs_whole_and_others_as_numbers() {
        let info = thread().info((1000, false));
        assert_eq!(info.nodes, ["n1", "n2"]);
        let (own, other) = (&info.jobs[0], &info.jobs[1]);
        assert_eq!(
            (own.job, own.user, &own.nodes[..]),
            (17, Some(1000), &[0][..])
        );
        assert_eq!(own.workflow.as_deref(), Some("secretive"));
        assert_eq!(
            (other.job, other.user, &other.nodes[..]),
            (18, None, &[1][..])
        );
        assert_eq!((other.workflow.as_ref(), &other.why[..]), (None, ""));
        assert_eq!(info.unplanned, [(19, "its user holds it".to_owned())]);
        assert_eq!(info.others_unplanned, 1);
        let all = thread().info((0, true));
        assert_eq!(all.jobs[1].user, Some(1001));
        assert_eq!((all.unplanned.len(), all.others_unplanned), (2, 0));
    }

    #[test]
    fn a_job_without_data_lines_is_explained_to_its_user_alone() {
        let unknown = || {
            let why = tarn_proto::local::RequestError::new(Code::NotFound, "not known");
            ControllerReply::Refused(why)
        };
        let ask = ControllerRequest::Job(17);
        let ControllerReply::Job(info) = thread().completed((1000, false), &ask, unknown()) else {
            panic!("its user may see it");
        };
        let planned = info.planned.as_deref();
        assert_eq!(planned, Some("n1 in 30.00 s, as its data is there"));
        let other = thread().completed((1001, false), &ask, unknown());
        assert_eq!(other, unknown());
    }
}
