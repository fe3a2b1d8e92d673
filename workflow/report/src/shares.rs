//! The division of attempts' time: the computing of their processes, and the rest that is not known any closer.

use crate::summarize::cores_used;
use crate::trace::RunTrace;
use tarn_types::event::Usage;
use tarn_types::units::Nanos;

/// The time of attempts, divided: the parts add up to preparing, running and committing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AttemptTimeShares {
    /// CPU time in user mode, by the cores used.
    pub(crate) user: Nanos,
    /// CPU time in the kernel, by the cores used.
    pub(crate) system: Nanos,
    /// The command ran and no processor worked for it: I/O, sleep, or no processor was free.
    pub(crate) off: Nanos,
    /// tarn prepared and committed.
    pub(crate) own: Nanos,
}

/// Those of each of `steps` steps, over all attempts.
pub(crate) fn shares(trace: &RunTrace, steps: usize) -> Vec<AttemptTimeShares> {
    let mut all = vec![AttemptTimeShares::default(); steps];
    for ((id, _), attempt) in trace.attempts() {
        if let Some(sum) = all.get_mut(id.step.at()) {
            let one = shares_of(&attempt.usage);
            sum.user = sum.user.saturating_add(one.user);
            sum.system = sum.system.saturating_add(one.system);
            sum.off = sum.off.saturating_add(one.off);
            sum.own = sum.own.saturating_add(one.own);
        }
    }
    all
}

fn shares_of(usage: &Usage) -> AttemptTimeShares {
    let cores = cores_used(usage);
    let user = (usage.user / cores).min(usage.wall);
    let system = (usage.system / cores).min(usage.wall - user);
    debug_assert!(
        user.checked_add(system)
            .is_some_and(|cpu| cpu <= usage.wall),
        "the processors' time is a part of the wall time"
    );
    AttemptTimeShares {
        user,
        system,
        off: usage.wall - user - system,
        own: usage.prepare.saturating_add(usage.commit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_add_up(wall: u64, user: u64, system: u64, prepare in 0u64..1 << 40, commit in 0u64..1 << 40) {
            let usage = Usage { wall: wall >> 8, user, system, prepare, commit, ..Usage::default() };
            let s = shares_of(&usage);
            prop_assert_eq!(s.user + s.system + s.off + s.own, usage.wall + prepare + commit);
        }
    }

    #[test]
    fn waiting_for_a_processor_is_not_computing_and_has_no_name_that_it_may_not_deserve() {
        let second = 1_000_000_000;
        let usage = Usage {
            wall: 10 * second,
            user: 4 * second,
            system: second,
            commit: second,
            ..Usage::default()
        };
        let expected = AttemptTimeShares {
            user: 4 * second,
            system: second,
            off: 5 * second,
            own: second,
        };
        assert_eq!(shares_of(&usage), expected);
    }
}
