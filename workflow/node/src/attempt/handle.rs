//! Two things reach an attempt from outside while it runs: a request to end, and messages of other nodes.

use crate::attempt::envelope_queue::EnvelopeQueue;
use crate::helper::launch::{StepStopper, StopUrgency};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_ports::Control;

/// How an attempt is told to end, what its copying and hashing is told by, and what other nodes say about it.
pub(crate) struct Handle {
    pub(crate) stop: Arc<StepStopper>,
    pub(crate) control: Control,
    /// Where there are nodes of other worlds.
    pub(crate) envelopes: Option<EnvelopeQueue>,
}

impl Handle {
    pub(crate) fn new(envelopes: Option<EnvelopeQueue>) -> std::io::Result<Self> {
        Ok(Self {
            stop: Arc::new(StepStopper::new()?),
            control: Control::default(),
            envelopes,
        })
    }

    /// Asks the attempt to end.
    pub(crate) fn cancel(&self, urgency: StopUrgency) {
        self.control.cancel.store(true, Ordering::Relaxed);
        self.stop.ask(urgency);
    }
}
