//! The order of the calls of a step.

use super::{MarkOrder, Marks};
use tarn_slurm::SlurmAction;
use tarn_types::units::Time;

/// Calls that one step orders beside renewals: they take some 10 ms each.
const MAX_ORDERS: usize = 20;

impl Marks {
    /// A renewal that is late has its reservation lapse: those come first. Then jobs start, and then, as Slurm may start such a job
    /// elsewhere, delays.
    pub(super) fn arranged(&self, orders: Vec<MarkOrder>) -> Vec<MarkOrder> {
        let (mut renewals, mut others): (Vec<MarkOrder>, Vec<MarkOrder>) = orders
            .into_iter()
            .partition(|order| matches!(order.action, SlurmAction::Renew { .. }));
        others.sort_by_key(|order| place(&order.action));
        renewals.sort_by_key(|order| self.renewed(order));
        renewals.truncate(self.pace.most_renewals());
        renewals.extend(others.into_iter().take(MAX_ORDERS));
        renewals
    }

    /// When the reservation of a renewal was renewed last.
    fn renewed(&self, order: &MarkOrder) -> Option<Time> {
        let SlurmAction::Renew { reservation, .. } = &order.action else {
            return None;
        };
        self.marks.get(reservation).map(|mark| mark.renewed)
    }
}

/// The place of a call among those of its step.
fn place(action: &SlurmAction) -> u8 {
    match action {
        // A job prefers its nodes by their names, which are features.
        SlurmAction::Join { .. } | SlurmAction::NameFeature { .. } => 0,
        SlurmAction::DelayUntil { .. } | SlurmAction::Undelay { .. } => 1,
        _ => 2,
    }
}
