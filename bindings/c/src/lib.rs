//! L4: the C interface: to the tarnd of this node (`include/tarn.h`), glue over `tarn-client`; to checkpoints (`include/phx.h`),
//! glue over `tarn-checkpoint`; to the node's object store (`include/tarn_objects.h`), glue over `tarn-objects`; and to storage memory
//! (`include/dsa.h`), glue over `tarn-partitions`. C values to Rust values and back. No panic crosses it, nothing is started, and no signal
//! is touched but as the headers say.

#![allow(unsafe_code)]
// The header describes the functions and structures, once.
#![allow(missing_docs, clippy::missing_safety_doc)]

mod abi;
mod calls;
mod dsa;
mod fork;
mod guard;
mod phx;

pub use abi::{tarn_outcome, tarn_place, tarn_space, tarn_stats, tarn_status, tarn_task};
pub use calls::*;
pub use dsa::*;
pub use guard::{tarn_code_text, tarn_last_error, tarn_version};
pub use phx::*;
