//! Two things reach an attempt from outside while it runs: a request to end, and messages of other nodes.

use crate::attempt::envelope_queue::EnvelopeQueue;
use crate::helper::launch::{StepStopper, StopUrgency};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_ports::Control;

/// An attempt's stop request, the control of its copying and hashing, and the messages of other nodes about it.
pub(crate) struct Handle {
    pub(crate) stop: Arc<StepStopper>,
    pub(crate) control: Control,
    /// The messages of the step's nodes in other worlds, if there are such nodes.
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

    /// Requests the end of the attempt.
    pub(crate) fn cancel(&self, urgency: StopUrgency) {
        self.control.cancel.store(true, Ordering::Relaxed);
        self.stop.ask(urgency);
    }
}
