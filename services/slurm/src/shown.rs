//! The text that `sinfo -O NodeList,Extra` shows of nodes.

use crate::SlurmError;
use crate::command::{SOON, answer};

/// Has Slurm show a text of these nodes, in place of what it showed there; needs Slurm's own rights.
///
/// # Errors
/// When Slurm cannot be asked, or refuses.
pub fn show_on(nodes: &[&str], text: &str) -> Result<(), SlurmError> {
    let (name, extra) = (
        format!("nodename={}", nodes.join(",")),
        format!("extra={text}"),
    );
    answer("scontrol", &["update", &name, &extra], SOON).map(drop)
}
