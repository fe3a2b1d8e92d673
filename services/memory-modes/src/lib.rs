//! Memory modes of a node: the words of docs/admin/memory-modes.md, and the plans that follow from the output of tools and
//! the kernel.
//!
//! Nothing here runs a program or reads a file: texts come in, an [`Inventory`] and a [`ModeChangePlan`] come out. Reading order:
//! `mode` (the words), `records` and `json` (formats of tools), `ipmctl`, `ndctl` and `kernel` (their content), `inventory`
//! (all of it), `population` (the DIMMs that each mode needs), `plan` (of a change), `island` (a node for the planner of a site).

mod inventory;
mod ipmctl;
mod island;
mod json;
mod kernel;
mod mode;
mod ndctl;
mod plan;
mod population;
mod records;
mod size;

pub use inventory::{Inventory, SocketMode, Tool, ToolState};
pub use ipmctl::{
    Dram, GoalPart, Module, NotOffered, Platform, Resources, dimms, goal, platform, resources,
    topology,
};
pub use island::island;
pub use kernel::{DeviceUse, FileSystemMount, Numa, UseKind, mounts, numa_memory, swaps};
pub use mode::{BadMode, CurrentMode, DaxMode, FEATURE, MemoryMode, ModeChangeTarget};
pub use ndctl::{Dax, Memdev, Namespace, Ndctl, Region, cxl, daxctl, ndctl};
pub use plan::{
    DestroyPermission, Destroyed, MemoryCapacity, ModeChangeCommand, ModeChangePlan,
    ModeChangeRequest, NamespaceMode, plan,
};
pub use population::{PopulationFinding, Rule, check};
pub use size::parse as parse_capacity;

/// Bytes of one tool's output that are read: a machine of 8 sockets with all its modules is below 1 MiB.
pub const MAX_OUTPUT: usize = 4 << 20;
/// Devices of one kind in a tool's output: 8 sockets of 16 slots are 128, and devices may be divided.
pub const MAX_THINGS: usize = 4096;

/// Why a tool's output is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Garbled {
    /// It is not in the tool's format.
    #[error(
        "the output of {tool} is not in a format that tarn knows ({why}): tarn may not support this version of {tool}; update {tool}, or report this with its version"
    )]
    Format {
        /// The tool.
        tool: &'static str,
        /// The deviation from the format.
        why: String,
    },
    /// It requires more rights.
    #[error("{tool} needs root: run it with sudo")]
    Rights {
        /// The tool.
        tool: &'static str,
    },
    /// There is too much of it.
    #[error("{tool} lists more than {MAX_THINGS} devices, which no known machine has")]
    TooMuch {
        /// The tool.
        tool: &'static str,
    },
}
