//! Room on nodes: what no node can ever give.

use crate::state::{JobState, Site};
use tarn_proto::local::{Code, Refusal};

impl Site {
    /// A job that wants more on a node than any has would wait for ever.
    pub(crate) fn check_size(&self, job: &JobState) -> Result<(), Refusal> {
        let capacities = self.nodes.values().filter_map(|n| n.capacity.as_ref());
        let largest = capacities.map(|capacity| capacity.bytes).max();
        let sizes = job.makes.iter().map(|makes| makes.size);
        let wants = sizes.fold(0, u64::saturating_add);
        match largest {
            Some(largest) if wants > largest => Err(Refusal::new(
                Code::NoSpace,
                format!(
                    "it says that it writes {wants} bytes on a node (`size`), and no node has more than {largest} for tarn"
                ),
            )),
            _ => Ok(()),
        }
    }
}
