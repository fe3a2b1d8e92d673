//! A node of a step that another world owns: it gets tasks, and replies with what came of them.

use crate::attempt::envelope_queue::EnvelopeQueue;
use crate::attempt::handle::Handle;
use crate::attempt::member::Member;
use crate::attempt::message::{AttemptMessage, AttemptPeer};
use crate::attempt::node_context::NodeContext;
use crate::attempt::node_task::{StepNodeTask, StepNodeTaskResult};
use crate::helper::launch::{HELPER_TIMEOUT, HelperProcess, LaunchError, Launcher, StepStopper};
use crate::helper::protocol::{HelperCommand, HelperReport, ProcessUsage};
use crate::helper::provider::ProviderAddress;
use crate::storage::store::failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tarn_types::action::AttemptSpec;
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::TierRef;
use tarn_types::part::PartRef;

/// How much longer than its helper a follower may take to report that this does not answer.
const MARGIN: Duration = Duration::from_secs(5);

/// Reaches the nodes of a step that are elsewhere.
pub(crate) struct RemoteNodes<'a> {
    shared: &'a NodeContext,
    run: &'a AttemptSpec,
    handle: &'a Handle,
    envelopes: &'a EnvelopeQueue,
    cancelled: Cell<bool>,
}

impl<'a> RemoteNodes<'a> {
    pub(crate) fn new(
        shared: &'a NodeContext,
        run: &'a AttemptSpec,
        handle: &'a Handle,
        envelopes: &'a EnvelopeQueue,
    ) -> Result<Self, RunError> {
        if shared.followers.is_none() {
            let text = "nodes of other worlds cannot be reached from here";
            return Err(failure(RunErrorKind::Launch, text));
        }
        Ok(Self {
            shared,
            run,
            handle,
            envelopes,
            cancelled: Cell::new(false),
        })
    }

    fn peer(&self, at: usize, tier_ref: TierRef) -> AttemptPeer<'a> {
        AttemptPeer {
            shared: self.shared,
            to: tier_ref.node,
            step: (self.run.instance, self.run.attempt),
            at,
        }
    }

    /// Makes the tasks of all remote nodes fail soon.
    pub(crate) fn cancel(&self) {
        if self.cancelled.replace(true) {
            return;
        }
        for (at, tier_ref) in self.run.nodes.iter().enumerate() {
            if !self.shared.own.has(tier_ref.node) {
                self.peer(at, *tier_ref)
                    .send_message(AttemptMessage::Cancel);
            }
        }
    }
}

/// A node of a step that another world owns.
pub(crate) struct RemoteNode<'a> {
    remote: Rc<RemoteNodes<'a>>,
    peer: AttemptPeer<'a>,
    name: String,
    tier_ref: TierRef,
    used: Option<ProcessUsage>,
    /// Reports of its helper that nobody has taken yet; `None`: it is gone.
    reports: VecDeque<Option<HelperReport>>,
    /// Its helper was reported as gone: nothing more comes of it.
    gone: bool,
    evicted: Vec<(PartRef, TierRef)>,
    lost: bool,
    over: bool,
}

impl<'a> RemoteNode<'a> {
    pub(crate) fn new(remote: Rc<RemoteNodes<'a>>, at: usize, tier_ref: TierRef) -> Self {
        let mut node = Self {
            peer: remote.peer(at, tier_ref),
            name: remote.shared.node_name(tier_ref.node),
            tier_ref,
            used: None,
            reports: VecDeque::new(),
            gone: false,
            evicted: Vec::new(),
            lost: false,
            over: false,
            remote,
        };
        let run = Box::new(node.remote.run.clone());
        node.send_message(AttemptMessage::Begin(run));
        node
    }

    /// Sent even to who is lost for this world: when this world ends, the others do not.
    fn send_message(&mut self, message: AttemptMessage) {
        self.lost |= !self.peer.send_message(message);
    }

    /// The next message of it that has come; reports of its helper are kept.
    fn receive(&mut self) -> Option<AttemptMessage> {
        let envelopes = self.remote.envelopes;
        loop {
            let Some(envelope) = envelopes.take(self.peer.at) else {
                self.lost |= envelopes.lost(self.peer.at);
                return None;
            };
            match envelope.open() {
                Ok(AttemptMessage::Report(report)) => self.reports.push_back(Some(report)),
                Ok(AttemptMessage::Gone) => self.reports.push_back(None),
                Ok(message @ (AttemptMessage::Done { .. } | AttemptMessage::Entered(_))) => {
                    return Some(message);
                }
                // A node that sends anything else is no follower.
                Ok(_) | Err(_) => self.lost = true,
            }
        }
    }

    /// Waits for a reply, or for a report of its helper; `None` when the node is lost or the time is over. A stop request
    /// meanwhile cancels all remote nodes.
    fn wait(&mut self, until: Option<Instant>, for_helper: bool) -> Option<AttemptMessage> {
        let remote = Rc::clone(&self.remote);
        let stop = &remote.handle.stop;
        loop {
            if let Some(message) = self.receive() {
                return Some(message);
            }
            if self.lost || (for_helper && !self.reports.is_empty()) {
                return None;
            }
            if stop.is_requested() && !for_helper {
                remote.cancel();
            }
            let left = until.map(|u| u.saturating_duration_since(Instant::now()));
            if left.is_some_and(|l| l.is_zero()) {
                return None;
            }
            let timeout = left.map(|l| Timespec {
                tv_sec: i64::try_from(l.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: l.subsec_nanos().into(),
            });
            let mut fds = [PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN)];
            // An error shows again, or the time ends.
            let _ = poll(&mut fds, timeout.as_ref());
            stop.take();
        }
    }

    /// Why nothing comes of it any more.
    fn failure(&self) -> RunError {
        self.remote.envelopes.failure(self.peer.at, &self.name)
    }

    fn named(&self, mut failure: RunError) -> RunError {
        let name = format!("`{}`", self.name);
        if !failure.message.contains(&name) {
            failure.message = format!("on node {name}: {}", failure.message);
        }
        failure
    }
}

impl Member for RemoteNode<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn tier_ref(&self) -> TierRef {
        self.tier_ref
    }

    fn begin(&mut self, task: &StepNodeTask) {
        self.over |= matches!(task, StepNodeTask::Over { .. });
        self.send_message(AttemptMessage::Do(task.clone()));
    }

    fn run(&mut self, _: &StepNodeTask) -> Result<StepNodeTaskResult, RunError> {
        loop {
            match self.wait(None, false) {
                Some(AttemptMessage::Done { result, evicted }) => {
                    self.evicted.extend(evicted);
                    return result.map_err(|f| self.named(f));
                }
                // The answer to what was given up meanwhile.
                Some(_) => {}
                None => return Err(self.failure()),
            }
        }
    }

    fn give_up(&mut self) {
        let _ = self.run(&StepNodeTask::End);
    }

    fn evicted(&mut self) -> Vec<(PartRef, TierRef)> {
        std::mem::take(&mut self.evicted)
    }

    fn helper(&mut self) -> Option<&mut dyn Launcher> {
        Some(self)
    }

    fn leaving(&mut self) -> Option<HelperProcess> {
        None
    }

    fn lost(&self) -> Option<RunError> {
        (self.lost || self.remote.envelopes.lost(self.peer.at)).then(|| self.failure())
    }
}

impl Launcher for RemoteNode<'_> {
    fn node(&self) -> &str {
        &self.name
    }

    fn prepare(&mut self) -> Result<(), LaunchError> {
        self.send_message(AttemptMessage::Enter);
        Ok(())
    }

    fn ready(&mut self) -> Result<Option<ProviderAddress>, LaunchError> {
        match self.wait(None, false) {
            Some(AttemptMessage::Entered(result)) => result.map_err(|e| LaunchError::Refused(e.0)),
            _ => Err(LaunchError::LostNode),
        }
    }

    fn mounted(&mut self, stop: &StepStopper) -> Result<(), LaunchError> {
        loop {
            let until = Instant::now() + HELPER_TIMEOUT + MARGIN;
            if self.reports.is_empty() {
                self.wait(Some(until), true);
            }
            match self.reports.pop_front() {
                Some(Some(HelperReport::Busy)) if stop.is_requested() => {
                    return Err(LaunchError::Stopped);
                }
                Some(Some(HelperReport::Busy)) => {}
                Some(Some(HelperReport::Ready(_))) => return Ok(()),
                Some(Some(HelperReport::Refused(why))) => return Err(LaunchError::Refused(why)),
                Some(_) => return Err(LaunchError::RemoteHasGone),
                None if self.lost => return Err(LaunchError::LostNode),
                // Woken for something else.
                None if Instant::now() < until => {}
                None => return Err(LaunchError::RemoteSilent),
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn order(&mut self, order: &HelperCommand) -> io::Result<()> {
        self.send_message(AttemptMessage::Order(order.clone()));
        match self.lost {
            false => Ok(()),
            true => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn next_report(&mut self) -> Option<Option<HelperReport>> {
        // Replies are read where their requests are sent.
        while self.receive().is_some() {}
        let report = self.reports.pop_front().or(self.lost.then_some(None));
        self.gone |= matches!(report, Some(None));
        report
    }

    fn last_words(&mut self) -> Option<ProcessUsage> {
        let until = Instant::now() + HELPER_TIMEOUT + MARGIN;
        while !self.gone {
            match self.reports.pop_front() {
                Some(Some(HelperReport::Ended { used, .. })) => return Some(used),
                Some(Some(_)) => continue,
                Some(None) => return None,
                None => {}
            }
            self.wait(Some(until), true);
            if self.reports.is_empty() && (self.lost || Instant::now() >= until) {
                return None;
            }
        }
        None
    }

    fn used(&mut self) -> &mut Option<ProcessUsage> {
        &mut self.used
    }

    fn kill(&mut self) {
        self.send_message(AttemptMessage::Kill);
    }

    fn end(&mut self) -> bool {
        self.begin(&StepNodeTask::End);
        // A node that is lost ends what is left there by itself.
        !matches!(
            self.run(&StepNodeTask::End),
            Ok(StepNodeTaskResult::Ended(false))
        )
    }

    fn leave(&mut self) {}

    fn process(&self) -> String {
        "process".into()
    }
}

impl Drop for RemoteNode<'_> {
    fn drop(&mut self) {
        if !self.over {
            let over = StepNodeTask::Over { committed: false };
            self.peer.send_message(AttemptMessage::Do(over));
        }
    }
}
