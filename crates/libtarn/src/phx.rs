//! `phx.h`: checkpoints.

mod abi;
mod calls;

pub use abi::{
    phx_dimension, phx_options, phx_properties, phx_stats, phx_version, phx_version_info,
};
pub use calls::*;
