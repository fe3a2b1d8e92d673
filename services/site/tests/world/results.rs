//! Results of orders.

use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{ControllerReply, Part, Proof, Report, WorkResult};
use tarn_types::hash::Hash;

/// The worker that served there has ended.
pub(crate) fn unreachable() -> RequestError {
    RequestError::new(Code::Io, "connection refused")
}

pub(crate) fn done(number: u64) -> Report {
    Report::Worked {
        number,
        what: WorkResult::Done,
    }
}

pub(crate) fn proof_of(part: &Part, bytes: u64) -> Proof {
    Proof {
        sealed: false,
        hash: Hash::of(part.to_string().as_bytes()),
        bytes,
        entries: 1,
        manifest: 100,
        file: None,
        origin: None,
    }
}

pub(crate) fn refused(reply: &ControllerReply) -> &RequestError {
    match reply {
        ControllerReply::Refused(why) => why,
        other => panic!("refused, it was expected: {other:?}"),
    }
}
