//! The world's own record of events.

use super::power::SitePowerMeter;
use tarn_types::id::NodeId;
use tarn_types::site::result::{MAX_SPANS, ranges};
use tarn_types::site::{JobId, JobResult, SiteResult, Span, SpanOf};
use tarn_types::units::Time;

/// The record so far.
#[derive(Debug)]
pub(super) struct SiteRecorder {
    pub(super) result: SiteResult,
    pub(super) meter: SitePowerMeter,
    pub(super) spans: bool,
}

impl SiteRecorder {
    pub(super) fn job(&mut self, job: JobId) -> &mut JobResult {
        &mut self.result.jobs[job.at()]
    }

    /// Something that counts for the time to solution is over.
    pub(super) fn ends(&mut self, now: Time) {
        self.result.end = now;
        self.result.energy = self.meter.read(now);
    }

    /// Something took time, if it did.
    pub(super) fn span(&mut self, what: SpanOf, nodes: &[NodeId], begin: Time, end: Time) {
        if !self.spans || begin >= end {
            return;
        }
        if self.result.spans.len() >= MAX_SPANS {
            self.result.spans_left_out += 1;
            return;
        }
        let nodes = ranges(nodes);
        self.result.spans.push(Span {
            what,
            nodes,
            begin,
            end,
        });
    }
}
