//! How far tarn's decisions reach into Slurm: docs/admin/site.md, "Modes".

use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_proto::site::{ControllerReply, PlacementAdvice};
use tarn_types::policy::{Order, Policy};
use tarn_types::units::parse_time;

/// The mode of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SiteMode {
    /// It plans and logs, and changes nothing in Slurm.
    Observe,
    /// It has Slurm prefer nodes with data, and avoid those without space.
    #[default]
    Advise,
    /// It reserves nodes for workflows too.
    Drive,
}

impl SiteMode {
    const ALL: [Self; 3] = [Self::Observe, Self::Advise, Self::Drive];

    /// The mode of this name.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Advise => "advise",
            Self::Drive => "drive",
        }
    }

    /// Whether it changes anything in Slurm.
    pub(super) fn acts(self) -> bool {
        self != Self::Observe
    }

    /// A reply to Slurm's scripts, without what they would change in Slurm if this mode changes nothing.
    pub(super) fn permitted(self, reply: ControllerReply) -> ControllerReply {
        match reply {
            ControllerReply::Advice(_) if !self.acts() => {
                ControllerReply::Advice(PlacementAdvice::default())
            }
            ControllerReply::Advices(_) if !self.acts() => ControllerReply::Advices(Vec::new()),
            reply => reply,
        }
    }
}

/// How long a change of the mode waits for calls of Slurm that began before: longer than any call may take.
const LAST_CALLS: Duration = Duration::from_secs(40);

#[derive(Debug)]
struct ModeState {
    mode: SiteMode,
    /// How often it was changed: a call that was decided before a change is not made after it.
    generation: u64,
    /// The calls that change Slurm and have not ended, by generation.
    calls: BTreeMap<u64, usize>,
}

/// The mode of a running controller, which root may change: all its threads see the same.
#[derive(Debug, Clone)]
pub(super) struct SharedSiteMode(Arc<(Mutex<ModeState>, Condvar)>);

/// A call that changes Slurm, from before it begins until it has ended.
#[derive(Debug)]
pub(super) struct SlurmCall<'m> {
    mode: &'m SharedSiteMode,
    generation: u64,
}

impl Drop for SlurmCall<'_> {
    fn drop(&mut self) {
        let mut state = self.mode.state();
        if let Some(calls) = state.calls.get_mut(&self.generation) {
            *calls -= 1;
            if *calls == 0 {
                state.calls.remove(&self.generation);
            }
        }
        self.mode.0.1.notify_all();
    }
}

impl SharedSiteMode {
    pub(super) fn new(mode: SiteMode) -> Self {
        let state = ModeState {
            mode,
            generation: 0,
            calls: BTreeMap::new(),
        };
        Self(Arc::new((Mutex::new(state), Condvar::new())))
    }

    fn state(&self) -> MutexGuard<'_, ModeState> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> SiteMode {
        self.state().mode
    }

    /// The mode, and how often it was changed before.
    pub(super) fn with_generation(&self) -> (SiteMode, u64) {
        let state = self.state();
        (state.mode, state.generation)
    }

    /// No call that was decided before begins from now on.
    pub(super) fn set(&self, mode: SiteMode) {
        let mut state = self.state();
        state.mode = mode;
        state.generation += 1;
    }

    /// A call that was decided in this generation; `None` if the mode was changed since.
    pub(super) fn call(&self, generation: u64) -> Option<SlurmCall<'_>> {
        let mut state = self.state();
        if state.generation != generation {
            return None;
        }
        *state.calls.entry(generation).or_default() += 1;
        Some(SlurmCall {
            mode: self,
            generation,
        })
    }

    /// A call of a mode that changes something in Slurm; `None` if this one does not.
    pub(super) fn acting_call(&self) -> Option<SlurmCall<'_>> {
        let (mode, generation) = self.with_generation();
        self.call(generation).filter(|_| mode.acts())
    }

    /// Waits until all calls that were decided before the last change have ended. False if one has not.
    pub(super) fn wait_for_earlier_calls(&self) -> bool {
        let until = Instant::now() + LAST_CALLS;
        let mut state = self.state();
        let generation = state.generation;
        while state.calls.range(..generation).next().is_some() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.0.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// The lines of site.toml about plans.
#[derive(Debug, Clone, Default)]
pub(super) struct PlanningLines<'a> {
    pub(super) policy: Option<&'a str>,
    pub(super) bound: Option<&'a str>,
    pub(super) sleep: Option<&'a str>,
    pub(super) awake: Option<u32>,
}

impl PlanningLines<'_> {
    /// The policy that plans.
    pub(super) fn policy(&self) -> anyhow::Result<Policy> {
        let text = self.policy.unwrap_or("data");
        let mut policy: Policy = text.parse().context("policy")?;
        let has_own = matches!(policy.order, Order::Data | Order::Energy);
        if let Some(bound) = self.bound {
            if !has_own {
                bail!(
                    "bound: policy `{text}` promises nothing: leave it out, or take policy `data`"
                );
            }
            if text.contains("bound=") {
                bail!("bound: policy `{text}` has one already: leave one of them out");
            }
            policy.bound = parse_time(bound).context("bound")?;
        }
        if let Some(sleep) = self.sleep {
            if !has_own {
                bail!(
                    "sleep: with policy `{text}` no node sleeps: leave it out, or take `data` or `energy`"
                );
            }
            if text.contains("sleep=") {
                bail!("sleep: policy `{text}` has one already: leave one of them out");
            }
            policy.sleep = Some(parse_time(sleep).context("sleep")?);
        }
        if let Some(awake) = self.awake {
            if text.contains("awake=") {
                bail!("awake: policy `{text}` has one already: leave one of them out");
            }
            // Without `sleep` it says nothing.
            policy.awake = if policy.has_sleepers() { awake } else { 0 };
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::units::SECOND;

    fn policy(policy: Option<&str>, bound: Option<&str>) -> anyhow::Result<Policy> {
        let lines = PlanningLines {
            policy,
            bound,
            ..PlanningLines::default()
        };
        lines.policy()
    }

    #[test]
    fn sleep_is_a_part_of_the_policy() {
        let lines = |policy, sleep, awake| PlanningLines {
            policy,
            bound: None,
            sleep,
            awake,
        };
        let data = lines(None, Some("20m"), Some(2)).policy().unwrap();
        assert_eq!(data.to_string(), "data:sleep=1200s,awake=2");
        let energy = lines(Some("energy"), None, Some(1)).policy().unwrap();
        assert_eq!(energy.to_string(), "energy:awake=1");
        assert!(!lines(None, None, Some(1)).policy().unwrap().has_sleepers());
        for (policy, sleep, awake, expected) in [
            (Some("easy"), Some("5m"), None, "sleep"),
            (Some("data:sleep=1m"), Some("5m"), None, "sleep"),
            (Some("data:sleep=1m,awake=1"), None, Some(2), "awake"),
            (None, Some("soon"), None, "sleep"),
        ] {
            let why = lines(policy, sleep, awake).policy().expect_err(expected);
            assert!(format!("{why:#}").contains(expected), "{why:#}");
        }
    }

    #[test]
    fn a_policy_is_what_the_site_says() {
        let usual = policy(None, None).unwrap();
        assert_eq!((usual.order, usual.bound), (Order::Data, 600 * SECOND));
        let bound = policy(None, Some("5m")).unwrap();
        assert_eq!(bound.bound, 300 * SECOND);
        let easy = policy(Some("easy"), None).unwrap();
        assert_eq!(easy.order, Order::Easy);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        for (line, bound, expected) in [
            (Some("best"), None, "policy"),
            (Some("easy"), Some("5m"), "bound"),
            (Some("data:bound=1m"), Some("5m"), "bound"),
            (None, Some("soon"), "bound"),
        ] {
            let why = policy(line, bound).expect_err(expected);
            let why = format!("{why:#}");
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn a_mode_has_a_name_and_every_thread_sees_a_change() {
        for mode in SiteMode::ALL {
            assert_eq!(SiteMode::of_name(mode.name()), Some(mode));
            let current = SharedSiteMode::new(SiteMode::Advise);
            let other = current.clone();
            current.set(mode);
            assert_eq!(other.get(), mode);
        }
        assert_eq!(SiteMode::of_name("Drive"), None);
    }

    #[test]
    fn after_a_change_no_call_begins_that_was_decided_before() {
        let mode = SharedSiteMode::new(SiteMode::Drive);
        let (_, decided) = mode.with_generation();
        let call = mode.call(decided).expect("it may begin");
        mode.set(SiteMode::Observe);
        assert!(mode.call(decided).is_none() && mode.acting_call().is_none());
        // One that has begun is waited for.
        let other = mode.clone();
        let waits = std::thread::spawn(move || other.wait_for_earlier_calls());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        let (_, later) = mode.with_generation();
        let later = mode.call(later).expect("it may begin");
        drop(call);
        assert!(waits.join().unwrap());
        drop(later);
        // Neither if the mode is the same again.
        mode.set(SiteMode::Drive);
        assert!(mode.call(decided).is_none() && mode.acting_call().is_some());
    }

    #[test]
    fn advice_leaves_only_where_the_mode_acts() {
        let advice = PlacementAdvice {
            prefer: vec!["n1".to_owned()],
            ..PlacementAdvice::default()
        };
        let reply = ControllerReply::Advice(advice);
        assert_eq!(SiteMode::Advise.permitted(reply.clone()), reply);
        let empty = ControllerReply::Advice(PlacementAdvice::default());
        assert_eq!(SiteMode::Observe.permitted(reply), empty);
    }
}
