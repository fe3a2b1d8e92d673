//! The policies, behind one trait. Each looks at a [`SchedulerView`] and starts jobs.
//! CONTRIBUTING.md, "A policy", lists the places that the compiler does not name.

mod data;
mod queueing;

use super::view::SchedulerView;
use tarn_types::policy::{Order, Policy};

/// A scheduling policy.
pub(crate) trait SchedulingPolicy<D: SchedulerView> {
    /// Starts the jobs that are to begin now.
    fn decide(&self, view: &mut D);
}

/// The rule of a policy. `energy` chooses nodes and puts them to sleep beside `data`'s rule.
pub(crate) fn rule<D: SchedulerView>(policy: &Policy) -> Box<dyn SchedulingPolicy<D> + Send> {
    match policy.order {
        Order::Fcfs => Box::new(queueing::Fcfs),
        Order::Greedy => Box::new(queueing::Greedy {
            max_wait: policy.max_wait,
        }),
        // They differ in the order of the queue and in the nodes that a job takes.
        Order::Easy | Order::SjfEasy | Order::SameNodes => Box::new(queueing::Easy),
        Order::Conservative => Box::new(queueing::Conservative),
        Order::Heft => Box::new(queueing::Greedy { max_wait: None }),
        Order::Data | Order::Energy => Box::new(data::DataAwarePolicy),
    }
}

/// Waiting jobs that are looked at for one event: a bound on work, not on time. Those behind it are looked at once
/// these have begun.
const LOOKED_AT: usize = 128;
