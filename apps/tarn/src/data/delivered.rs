//! Delivery of data into an object store by `tarn data`.

use crate::mover::trees;
use std::path::PathBuf;
use tarn_ports::{Control, CopyReport, CopySource, DeliveryJob, Mover, MoverError, Over};
use tarn_types::event::RunErrorKind;
use tarn_types::object::ObjectUrl;
use tarn_types::part::Verify;

/// A delivery to an object store, with its rules.
pub(super) struct Delivered {
    pub(super) sources: Vec<CopySource>,
    pub(super) dest: ObjectUrl,
    pub(super) single: bool,
    pub(super) owner: String,
    pub(super) over: Over,
    pub(super) verify: Verify,
}

/// Puts it there. The next call resumes one that was interrupted.
pub(super) fn deliver(what: Delivered) -> Result<CopyReport, MoverError> {
    if what.dest.key.is_empty() {
        let text = format!(
            "{} is a whole bucket: name a place in it, such as {0}result/",
            what.dest
        );
        return Err(MoverError::new(RunErrorKind::Conflict, text));
    }
    let job = DeliveryJob {
        sources: what.sources,
        dest: PathBuf::from(what.dest.to_string()),
        single: what.single,
        owner: what.owner,
        over: what.over,
        verify: what.verify,
        rate: 0,
        latency: 0,
    };
    trees().deliver(&job, &Control::default())
}
