//! The planner against random machines, workloads and faults, in virtual time, under every policy, held to every rule.
//!
//! A seed decides everything. One that fails prints the command that replays it alone; its log is then printed too.

mod host;
mod random;

use random::Random;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use tarn_engine::plan::{Planner, drive_site};
use tarn_ports::{SiteWorld, WorldError};
use tarn_simulator::site::{SimulatedSite, SiteFaults};
use tarn_types::policy::{Order, Policy};
use tarn_types::site::{Fate, Machine, SiteAction, SiteEvent, Submit, Workload};
use tarn_types::units::{Elapsed, SECOND, Time};

/// Seeds of each policy.
const SEEDS: u64 = 100;

/// Events of one run; most have some hundred. So many are a planner that goes round in circles.
const MAX_EVENTS: u32 = 10_000;

/// A world that ends in an error after [`MAX_EVENTS`].
struct Bounded<W> {
    world: W,
    events: u32,
}

impl<W: SiteWorld> SiteWorld for Bounded<W> {
    fn perform(&mut self, now: Time, action: &SiteAction) -> Result<(), WorldError> {
        self.world.perform(now, action)
    }

    fn next(&mut self, until: Option<Time>) -> Result<Option<(Time, SiteEvent)>, WorldError> {
        self.events += 1;
        if self.events > MAX_EVENTS {
            let what = format!("{MAX_EVENTS} events and no end: the planner goes round in circles");
            return Err(WorldError(what));
        }
        self.world.next(until)
    }
}

/// Everything that a seed decides.
struct Case {
    machine: Machine,
    work: Arc<Workload>,
    faults: SiteFaults,
}

fn case(seed: u64) -> Case {
    let mut random = Random::new(seed);
    let machine = random.machine();
    let work = Arc::new(random.workload(&machine));
    let faults = random.faults();
    Case {
        machine,
        work,
        faults,
    }
}

/// Runs a case under a policy. The hash of its log, and when it ended.
fn run(case: &Case, policy: Policy, mut log: Option<&mut String>) -> Result<u64, String> {
    let mut planner = Planner::new(&case.machine, policy);
    let site = SimulatedSite::new(&case.machine, case.work.clone()).map_err(|e| e.to_string())?;
    let mut world = Bounded {
        world: match policy.order {
            Order::Data | Order::Energy => site
                .with_faults(case.faults)
                .checked()
                .promising(policy.bound),
            Order::Fcfs
            | Order::Greedy
            | Order::Easy
            | Order::Conservative
            | Order::SjfEasy
            | Order::Heft
            | Order::SameNodes => site.with_faults(case.faults).checked(),
        },
        events: 0,
    };
    let mut hash = DefaultHasher::new();
    let mut line = String::new();
    let driven = drive_site(&mut planner, &mut world, &mut |now, event, actions| {
        line.clear();
        let event_written = writeln!(line, "{now} {event:?}");
        let actions_written = actions.iter().try_for_each(|a| writeln!(line, "    {a:?}"));
        assert!(
            event_written.and(actions_written).is_ok(),
            "a string can be written to"
        );
        line.hash(&mut hash);
        if let Some(log) = &mut log {
            log.push_str(&line);
        }
    });
    driven.map_err(|e| e.to_string())?;
    let result = world.world.into_inner().into_result();
    let bound = latest_begin(case, policy);
    for (number, job) in result.jobs.iter().enumerate() {
        if job.fate == Fate::Open {
            return Err(format!("job {number} was never submitted"));
        }
        if job.begun > bound {
            let (begun, bound) = (Elapsed(job.begun), Elapsed(bound));
            return Err(format!(
                "job {number} starved: it began at {begun}, the bound is {bound}"
            ));
        }
    }
    Ok(hash.finish())
}

/// Nobody begins later than if, once faults are over and all has come, everything were done one after the other at the
/// least of all rates, each job and each of its moves with a reboot before it, twice over, with the delays that the policy
/// allows itself.
fn latest_begin(case: &Case, policy: Policy) -> Time {
    let Case {
        machine,
        work,
        faults,
    } = case;
    let store = machine.store;
    let tiers = machine.islands.iter().flat_map(|i| &i.kind.tiers);
    let rates = tiers
        .map(|t| t.rates)
        .chain(machine.islands.iter().map(|i| i.kind.link))
        .chain([store.rates, store.client]);
    let least = rates
        .flat_map(|r| [r.read, r.write])
        .filter(|r| *r > 0)
        .min();
    let least = u128::from(least.unwrap_or(u64::MAX)) / u128::from(store.saturates);
    let arrivals = work.jobs.iter().map(|w| match w.submit {
        Submit::At(time) => time,
        Submit::After(_) => 0,
    });
    let calm = faults.until + faults.loss_for + faults.slow_for;
    let begin = arrivals.max().unwrap_or(0).max(calm);
    let reboots = machine.islands.iter().filter_map(|i| i.kind.mode_change);
    let reboot = reboots.map(|c| c.time).max().unwrap_or(0) + 60 * SECOND;
    let each = work.jobs.iter().map(|w| {
        let reads = w.job.reads.iter().map(|r| r.item);
        let items = reads.chain(w.job.writes.iter().copied());
        let bytes = items.map(|i| u128::from(work.items[i.at()].bytes) * u128::from(w.job.nodes));
        let moving = bytes.sum::<u128>() * 2 * u128::from(SECOND) / least;
        let moving = u64::try_from(moving).unwrap_or(u64::MAX / 1000);
        w.compute + w.job.limit + moving + reboot + policy.bound + policy.max_wait.unwrap_or(0)
    });
    begin + 2 * each.sum::<Time>()
}

/// The failure, with the command that replays it.
fn failure(seed: u64, policy: &str, what: &str, log: &str) -> String {
    format!(
        "{log}\nseed {seed} under `{policy}`: {what}\nto see it again:\n    TARN_SEED={seed} TARN_POLICY={policy} cargo test \
         -p tarn-engine --test planner_seeds one_seed -- --nocapture\n"
    )
}

/// Runs a seed twice. Returns the failure, if there was one.
fn check(seed: u64, policy: &str, keep_log: bool) -> Result<(), String> {
    let case = case(seed);
    let parsed: Policy = policy.parse().expect("a policy");
    let mut log = String::new();
    if keep_log {
        log = format!("{:?}\n{:?}\n", case.machine, case.faults);
    }
    let first = run(&case, parsed, keep_log.then_some(&mut log));
    let fails = |what: &str| Err(failure(seed, policy, what, &log));
    match (first, run(&case, parsed, None)) {
        (Err(what), _) => fails(&what),
        (Ok(a), Ok(b)) if a == b => Ok(()),
        (Ok(_), _) => fails("two runs of it differ"),
    }
}

/// Runs the seeds of a policy; reports all that fail.
fn all_seeds(policy: &str) {
    let first = policy.bytes().map(u64::from).sum::<u64>() * 1000;
    let failed: Vec<String> = (first..first + SEEDS)
        .filter_map(|seed| check(seed, policy, false).err())
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {SEEDS} seeds failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

#[test]
fn one_seed() {
    let of = |name| std::env::var(name).ok();
    let seed = of("TARN_SEED").map_or(1, |s| s.parse().expect("TARN_SEED is a number"));
    let policy = of("TARN_POLICY").unwrap_or_else(|| "data".into());
    if let Err(what) = check(seed, &policy, true) {
        panic!("{what}");
    }
}

macro_rules! policies {
    ($($name:ident: $policy:literal,)*) => {
        $(
            #[test]
            fn $name() {
                all_seeds($policy);
            }
        )*
    };
}

policies! {
    fcfs: "fcfs",
    fcfs_cache: "fcfs+cache",
    greedy: "greedy",
    greedy_cache: "greedy+cache",
    greedy_max_wait: "greedy:max-wait=10m",
    easy: "easy",
    easy_cache: "easy+cache",
    easy_keep: "easy+keep",
    conservative: "conservative",
    conservative_keep: "conservative+keep",
    sjf_easy: "sjf-easy",
    sjf_easy_cache: "sjf-easy+cache",
    heft: "heft",
    heft_cache: "heft+cache",
    heft_keep: "heft+keep",
    same_nodes: "same-nodes",
    same_nodes_cache: "same-nodes+cache",
    data: "data",
    data_tightly_bounded: "data:bound=1s",
    data_unbounded_lead: "data:bound=0s,lead=1h",
    data_without_lead: "data:lead=0s",
    energy: "energy",
}
