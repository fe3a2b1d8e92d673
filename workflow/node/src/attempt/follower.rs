//! The part of a step that another world leads, on a node that this world owns: a thread that carries out the leader's messages.

use crate::attempt::envelope_queue::EnvelopeQueue;
use crate::attempt::handle::Handle;
use crate::attempt::local_node::{Attempted, LocalNode};
use crate::attempt::member::Member;
use crate::attempt::message::{AttemptMessage, AttemptPeer, Envelope, HelperSetupError};
use crate::attempt::node_context::NodeContext;
use crate::attempt::node_task::StepNodeTask;
use crate::attempt::relay::Relay;
use crate::attempt::step_needs::needs;
use crate::helper::launch::{LaunchError, Launcher, StopUrgency};
use crate::helper::protocol::HelperReport;
use crate::storage::store::{failure, warn};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tarn_types::action::AttemptSpec;
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::NodeId;
use tarn_types::nodes::AttemptId;

/// The attempts that this world leads.
pub(crate) type LedAttempts = Arc<Mutex<BTreeMap<AttemptId, Arc<Handle>>>>;

/// An attempt, and the position of the own node among its nodes.
type AttemptPosition = (AttemptId, usize);

struct Attended {
    leader: NodeId,
    handle: Arc<Handle>,
}

/// The receiver of messages about steps.
pub(crate) struct StepRouter {
    shared: Arc<NodeContext>,
    led: LedAttempts,
    attended: Arc<Mutex<BTreeMap<AttemptPosition, Attended>>>,
    threads: Vec<JoinHandle<()>>,
}

impl StepRouter {
    pub(crate) fn new(shared: Arc<NodeContext>, led: LedAttempts) -> Self {
        Self {
            shared,
            led,
            attended: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Attempts that are under way here and led elsewhere.
    pub(crate) fn attended(&self) -> usize {
        self.attended.lock().map_or(0, |a| a.len())
    }

    /// A message of another node about an attempt.
    pub(crate) fn receive(&mut self, from: NodeId, step: AttemptId, message: &[u8]) {
        let envelope = match Envelope::decode(message) {
            Ok(envelope) => envelope,
            Err(e) => {
                let name = self.shared.node_name(from);
                return warn(&format!(
                    "a message of node `{name}` about a step cannot be read: {e}"
                ));
            }
        };
        let led = self.led.lock().ok().and_then(|l| l.get(&step).cloned());
        if let Some(handle) = led {
            let envelopes = handle.envelopes.as_ref();
            if let Some(envelopes) = envelopes.filter(|m| m.is_from(envelope.at, from)) {
                envelopes.put(envelope, &handle.stop);
            }
            return;
        }
        let part = (step, envelope.at);
        if let AttemptMessage::Begin(run) = envelope.message {
            return self.begin(from, part, run);
        }
        let handle = self.attended.lock().ok().and_then(|a| {
            let attended = a.get(&part).filter(|a| a.leader == from)?;
            Some(Arc::clone(&attended.handle))
        });
        match (handle, &envelope.message) {
            (Some(handle), AttemptMessage::Cancel) => handle.cancel(StopUrgency::Terminate),
            (Some(handle), _) => {
                if let Some(envelopes) = &handle.envelopes {
                    envelopes.put(envelope, &handle.stop);
                }
            }
            // The leader waits for an answer.
            (None, AttemptMessage::Do(_) | AttemptMessage::Enter) => self.lost(from, part),
            (None, _) => {}
        }
    }

    /// Reports to the leader that there is nobody.
    fn lost(&self, leader: NodeId, (step, at): AttemptPosition) {
        let peer = AttemptPeer {
            shared: &self.shared,
            to: leader,
            step,
            at,
        };
        peer.send_message(AttemptMessage::Lost);
    }

    fn begin(&mut self, leader: NodeId, part: AttemptPosition, run: Box<AttemptSpec>) {
        let known = self.attended.lock().map_or(true, |a| a.contains_key(&part));
        let tier_ref = run.nodes.get(part.1);
        let own = tier_ref.is_some_and(|s| self.shared.own.has(s.node));
        if known || !own || part.0 != (run.instance, run.attempt) {
            return self.lost(leader, part);
        }
        if let Err(e) = self.start(leader, part, run) {
            warn(&format!("cannot take part in a step: {e}"));
            self.lost(leader, part);
        }
    }

    fn start(
        &mut self,
        leader: NodeId,
        part: AttemptPosition,
        run: Box<AttemptSpec>,
    ) -> std::io::Result<()> {
        let handle = Arc::new(Handle::new(Some(EnvelopeQueue::new(Vec::new())?))?);
        let attended = Attended {
            leader,
            handle: Arc::clone(&handle),
        };
        if let Ok(mut all) = self.attended.lock() {
            all.insert(part, attended);
        }
        let (shared, all) = (Arc::clone(&self.shared), Arc::clone(&self.attended));
        // A helper dies with the thread that started it: this one sees the node's part of its step through.
        let thread = std::thread::Builder::new()
            .name(format!("tarn-{}", run.instance))
            .spawn(move || {
                let peer = AttemptPeer {
                    shared: &shared,
                    to: leader,
                    step: part.0,
                    at: part.1,
                };
                let done = catch_unwind(AssertUnwindSafe(|| attend(peer, &run, &handle)));
                if let Ok(mut all) = all.lock() {
                    all.remove(&part);
                }
                if done.is_err() {
                    peer.send_message(AttemptMessage::Lost);
                }
            });
        if thread.is_err()
            && let Ok(mut all) = self.attended.lock()
        {
            all.remove(&part);
        }
        self.threads.retain(|t| !t.is_finished());
        self.threads.push(thread?);
        Ok(())
    }

    /// A node is lost: attempts that it leads end here, and attempts that are led here are without it.
    pub(crate) fn node_lost(&self, node: NodeId) {
        if let Ok(led) = self.led.lock() {
            for handle in led.values() {
                handle
                    .envelopes
                    .iter()
                    .for_each(|m| m.lose(node, &handle.stop));
            }
        }
        self.give_up_led(|_, a| a.leader == node);
    }

    /// A message about an attempt did not reach the other one of this node and that, and why not: the attempt fails.
    pub(crate) fn undelivered(&self, node: NodeId, step: AttemptId, why: &str) {
        let led = self.led.lock().ok().and_then(|l| l.get(&step).cloned());
        if let Some(handle) = led {
            let cut_off = failure(RunErrorKind::Io, why);
            let envelopes = handle.envelopes.iter();
            envelopes.for_each(|m| m.cut_off(node, &cut_off, &handle.stop));
            return;
        }
        self.give_up_led(|(of, _), a| *of == step && a.leader == node);
    }

    fn give_up_led(&self, which: impl Fn(&AttemptPosition, &Attended) -> bool) {
        let Ok(all) = self.attended.lock() else {
            return;
        };
        for attended in all.iter().filter(|(p, a)| which(p, a)).map(|(_, a)| a) {
            attended.handle.cancel(StopUrgency::Kill);
            let stop = &attended.handle.stop;
            attended
                .handle
                .envelopes
                .iter()
                .for_each(|m| m.lose_all(stop));
        }
    }

    /// This world ends: nobody gets a message any more.
    pub(crate) fn end(&mut self) {
        if let Ok(led) = self.led.lock() {
            for handle in led.values() {
                handle
                    .envelopes
                    .iter()
                    .for_each(|m| m.lose_all(&handle.stop));
            }
        }
        self.give_up_led(|_, _| true);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Carries out the leader's messages until the attempt is over, or the leader is lost.
fn attend(peer: AttemptPeer<'_>, run: &AttemptSpec, handle: &Handle) {
    let shared = peer.shared;
    let (Some(envelopes), Some(tier_ref)) = (&handle.envelopes, run.nodes.get(peer.at)) else {
        return;
    };
    let step = shared.workflow.steps.get(run.instance.step.at());
    let prepared = step
        .ok_or_else(|| refusal("the workflow has no such step"))
        .and_then(|step| {
            let needs = needs(shared, step, run).map_err(|f| refusal(f.message))?;
            Ok((step, needs))
        })
        .and_then(|found| match &shared.multi_node {
            Ok(()) => Ok(found),
            Err(why) => {
                let text = format!("a step of several nodes needs namespaces: {why}");
                Err(refusal(text))
            }
        });
    let (step, needs) = match prepared {
        Ok(found) => found,
        Err(why) => return refuse(peer, envelopes, handle, why),
    };
    let log = shared.log_path(run);
    let of = Attempted {
        shared,
        step,
        run,
        needs: &needs,
        handle,
        log: &log,
        home: *tier_ref,
    };
    let relay = Relay::of_follower(peer, run, *tier_ref, envelopes);
    let follower = Follower {
        peer,
        envelopes,
        handle,
        local: LocalNode::new(of, peer.at, *tier_ref),
        listens: false,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| relay.run());
        // The relay ends too, whatever happens to the follower.
        let _closing = envelopes.exec.closing();
        follower.serve();
    });
}

/// Why this node takes no part in an attempt.
fn refusal(text: impl Into<String>) -> RunError {
    failure(RunErrorKind::Launch, text)
}

/// Answers until the leader has understood.
fn refuse(peer: AttemptPeer<'_>, envelopes: &EnvelopeQueue, handle: &Handle, why: RunError) {
    let refused: Result<_, RunError> = Err(why);
    let mut over = false;
    while !over && !envelopes.lost(peer.at) {
        if let Some(envelope) = envelopes.take(peer.at) {
            over = matches!(
                envelope.message,
                AttemptMessage::Do(StepNodeTask::Over { .. })
            );
            peer.send_message(AttemptMessage::Done {
                result: refused.clone(),
                evicted: Vec::new(),
            });
            continue;
        }
        let mut fds = [PollFd::from_borrowed_fd(handle.stop.fd(), PollFlags::IN)];
        let _ = poll(&mut fds, None);
        handle.stop.take();
    }
}

struct Follower<'a> {
    peer: AttemptPeer<'a>,
    envelopes: &'a EnvelopeQueue,
    handle: &'a Handle,
    local: LocalNode<'a>,
    /// Whether the helper was ordered to set everything up, and has not reported yet how the step ended here.
    listens: bool,
}

impl Follower<'_> {
    fn serve(mut self) {
        loop {
            while let Some(envelope) = self.envelopes.take(self.peer.at) {
                let Ok(message) = envelope.open() else {
                    continue;
                };
                if self.perform(message) {
                    return;
                }
            }
            if self.envelopes.lost(self.peer.at) {
                break;
            }
            self.wait();
            self.listen();
        }
        // No message can come any more that it was committed.
        let _ = self.local.run(&StepNodeTask::Over { committed: false });
    }

    fn wait(&mut self) {
        let mut fds = vec![PollFd::from_borrowed_fd(
            self.handle.stop.fd(),
            PollFlags::IN,
        )];
        let helper = self.local.helper().filter(|_| self.listens);
        let socket = helper.as_ref().and_then(|h| h.fd());
        fds.extend(socket.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let _ = poll(&mut fds, None);
        self.handle.stop.take();
        if self.handle.stop.overran().is_some() {
            // The leader gets a report that it is gone, and requests the reason.
            self.local.helper().into_iter().for_each(Launcher::kill);
        }
    }

    /// Passes the reports of the helper on.
    fn listen(&mut self) {
        let helper = self.local.helper().filter(|_| self.listens);
        let Some(report) = helper.and_then(Launcher::next_report) else {
            return;
        };
        self.listens = !matches!(report, None | Some(HelperReport::Ended { .. }));
        if let (Some(HelperReport::Ended { used, .. }), Some(helper)) =
            (&report, self.local.helper())
        {
            *helper.used() = Some(*used);
            helper.leave();
        }
        self.peer
            .send_message(report.map_or(AttemptMessage::Gone, AttemptMessage::Report));
    }

    /// Whether the attempt is over.
    fn perform(&mut self, message: AttemptMessage) -> bool {
        match message {
            AttemptMessage::Do(task) => {
                let over = matches!(task, StepNodeTask::Over { .. });
                // Waiting for the kernel to take its namespaces down is not the leader's to do.
                let leaving = over.then(|| self.local.leaving());
                let result = self.local.run(&task);
                let evicted = self.local.evicted();
                self.peer
                    .send_message(AttemptMessage::Done { result, evicted });
                drop(leaving);
                return over;
            }
            AttemptMessage::Enter => {
                let entered = match self.local.helper() {
                    Some(helper) => helper.prepare().and_then(|()| helper.ready()),
                    None => Err(LaunchError::NoHelper),
                };
                self.listens = entered.is_ok();
                let entered = entered.map_err(|why| HelperSetupError(why.to_string()));
                self.peer.send_message(AttemptMessage::Entered(entered));
            }
            AttemptMessage::Order(order) => {
                if let Some(helper) = self.local.helper() {
                    // A helper that is gone shows as the end of its socket.
                    let _ = helper.order(&order);
                }
            }
            AttemptMessage::Kill => self.local.helper().into_iter().for_each(Launcher::kill),
            // A leader does not send the others, or they came before.
            _ => {}
        }
        false
    }
}
