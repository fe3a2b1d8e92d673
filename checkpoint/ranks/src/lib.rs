//! L3: the ranks of one program over stream sockets: Unix-domain on a node, TCP between nodes. docs/internals/checkpoints.md, "How ranks
//! meet", is the protocol.

mod calls;
mod folder;
mod greet;
mod hub;
mod line;
mod meeting;
mod one_sided;
mod peer;
mod serve;
mod socket;
mod state;
mod turns;
mod wire;

pub use folder::Vacant;
pub use meeting::{Meeting, Options};
