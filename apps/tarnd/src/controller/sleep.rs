//! Has Slurm put nodes to sleep and wake them: docs/admin/energy.md, "Sleep".
//!
//! Slurm takes no `power_down` back, and a job that begins just before it loses its data when it has ended, as the node then powers
//! down. So a reservation keeps jobs off a node from before the last look at it until the order: it ends by itself.

use super::ControllerInput;
use super::mode::SharedSiteMode;
use super::reader::{SlurmReader, SlurmReading};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tarn_site_planner::{PowerOrder, PowerWish, sleep_reservation};
use tarn_slurm::{
    NodeFlag, PowerChange, RESERVATION_SECONDS, SlurmAction, SlurmError, SlurmJobState, SlurmNode,
    SlurmNodeState, SlurmSnapshot, change_power,
};

/// For a reading by which nodes go to sleep: the planner repeats what is lost.
const FRESH: Duration = Duration::from_secs(10);
/// For the controller's answer about the data on nodes.
const ANSWER: Duration = Duration::from_secs(5);
/// Orders about nodes' sleep that wait for their turn: the planner repeats what is lost.
const MAX_POWER_ORDERS: usize = 16;
/// For which a node is left awake that Slurm refused to put to sleep: twice as long each time.
const AFTER_REFUSAL: Duration = Duration::from_secs(120);
/// At most so long: an administrator may have mended it.
const MAX_AFTER_REFUSAL: Duration = Duration::from_secs(3600);
/// The user of the reservation: no job of root's asks for it.
const NOBODY: &str = "root";

/// The thread that makes the calls.
struct PowerThread {
    epoch: u64,
    reader: SlurmReader,
    mode: SharedSiteMode,
    inputs: Sender<ControllerInput>,
    /// The number of the next reservation.
    next: u64,
    refused: RefusedSleep,
    has_failed: bool,
}

/// Has Slurm put nodes to sleep and wake them, by a thread of its own.
pub(super) fn power_orders(
    epoch: u64,
    reader: &SlurmReader,
    mode: &SharedSiteMode,
    inputs: Sender<ControllerInput>,
) -> SyncSender<Vec<PowerOrder>> {
    let (sender, orders) = sync_channel(MAX_POWER_ORDERS);
    let power = PowerThread {
        epoch,
        reader: reader.clone(),
        mode: mode.clone(),
        inputs,
        next: 1,
        refused: RefusedSleep::default(),
        has_failed: false,
    };
    let thread = std::thread::Builder::new().name("power".into());
    if let Err(e) = thread.spawn(move || power.follow(&orders)) {
        tracing::error!("no node sleeps: no thread: {e}");
    }
    sender
}

impl PowerThread {
    fn follow(mut self, orders: &Receiver<Vec<PowerOrder>>) {
        for orders in orders {
            // Slurm is read every 30 s where nothing waits: a job may have begun since. The reader logs why it cannot be read.
            let Some(reading) = self.reader.newest_from_now_on(FRESH) else {
                continue;
            };
            let of = |wish: PowerWish| {
                let orders = orders.iter().filter(move |order| order.wish == wish);
                orders.map(|order| order.node.clone())
            };
            let nodes = &reading.snapshot.nodes;
            let wake: Vec<String> = of(PowerWish::Wake)
                .filter(|name| nodes.get(name).is_some_and(is_off))
                .collect();
            let now = Instant::now();
            let sleep = of(PowerWish::Sleep).filter(|name| !self.refused.contains(name, now));
            let sleep = may_sleep(sleep, &reading.snapshot, SlurmNodeState::is_idle_and_awake);
            self.change(&wake, PowerChange::Up, "wake up: a job waits for nodes");
            self.put_to_sleep(sleep);
        }
    }

    /// Keeps jobs off these nodes, looks again at jobs and data, and has those sleep that have neither.
    fn put_to_sleep(&mut self, nodes: Vec<String>) {
        if nodes.is_empty() {
            return;
        }
        let reservation = sleep_reservation(self.epoch, self.next);
        self.next += 1;
        let reserve = SlurmAction::Reserve {
            reservation: reservation.clone(),
            nodes: nodes.clone(),
            user: NOBODY.to_owned(),
            seconds: RESERVATION_SECONDS,
        };
        if !self.perform(&reserve, &nodes) {
            return;
        }
        let mut asleep = Vec::new();
        if let Some((reading, spare)) = self.look_again() {
            let nodes = nodes.into_iter().filter(|name| spare.contains(name));
            let nodes = may_sleep(nodes, &reading.snapshot, |state| {
                SlurmNodeState::is_idle_and_awake(&without_reservation(state))
            });
            let change = self.change(&nodes, PowerChange::Down, "sleep: no job and no data");
            self.refused.note(&nodes, change, Instant::now());
            asleep = nodes;
        }
        // Slurm gives a node that is to power down to no job. If this fails, it ends by itself.
        self.perform(&SlurmAction::Delete { reservation }, &[]);
        self.warn_of_jobs(&asleep);
    }

    /// A scheduling pass that began before the reservation may have started a job after the second look.
    fn warn_of_jobs(&self, nodes: &[String]) {
        let reading = (!nodes.is_empty()).then(|| self.reader.newest_from_now_on(FRESH));
        let Some(reading) = reading.flatten() else {
            return;
        };
        let busy = busy(&reading.snapshot);
        let names = nodes.iter().map(String::as_str);
        let late: Vec<&str> = names.filter(|name| busy.contains(name)).collect();
        if !late.is_empty() {
            let late = late.join(",");
            tracing::warn!(
                "a job began on {late} just before the order to sleep: Slurm powers the node down once that job has ended. If somebody \
                 needs the data that it leaves there, wake it then: scontrol update nodename={late} state=power_up"
            );
        }
    }

    /// Slurm's jobs, and the nodes without data, as they are now.
    fn look_again(&self) -> Option<(std::sync::Arc<SlurmReading>, BTreeSet<String>)> {
        let reading = self.reader.newest_from_now_on(FRESH)?;
        let (reply, answer) = sync_channel(1);
        self.inputs.send(ControllerInput::Spare { reply }).ok()?;
        let spare = answer.recv_timeout(ANSWER).ok()?;
        Some((reading, spare))
    }

    /// False if the mode forbids it, or Slurm refuses: then the nodes are left alone for a while.
    fn perform(&mut self, action: &SlurmAction, nodes: &[String]) -> bool {
        let result = {
            let Some(_call) = self.mode.acting_call() else {
                return false;
            };
            action.perform()
        };
        if let Err(e) = &result {
            self.warn(&format!("{action}: {e}"));
            self.refused.note(nodes, Some(false), Instant::now());
        }
        result.is_ok()
    }

    /// Whether Slurm does it; `None` if there is nothing to do, or the mode forbids it.
    fn change(&mut self, nodes: &[String], change: PowerChange, text: &str) -> Option<bool> {
        if nodes.is_empty() {
            return None;
        }
        let result: Result<(), SlurmError> = {
            let _call = self.mode.acting_call()?;
            let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
            change_power(&names, change)
        };
        match &result {
            Ok(()) => {
                self.has_failed = false;
                tracing::info!("{} {text}", nodes.join(","));
            }
            Err(e) => self.warn(&format!("{} do not change: {text}: {e}", nodes.join(","))),
        }
        Some(result.is_ok())
    }

    /// Once, until one succeeds.
    fn warn(&mut self, text: &str) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::warn!("{text}");
        }
    }
}

/// Nodes that Slurm refused to put to sleep. At most those that Slurm has.
#[derive(Debug, Default)]
struct RefusedSleep(BTreeMap<String, (Instant, Duration)>);

impl RefusedSleep {
    fn contains(&self, node: &str, now: Instant) -> bool {
        self.0.get(node).is_some_and(|(until, _)| *until > now)
    }

    fn note(&mut self, nodes: &[String], is_done: Option<bool>, now: Instant) {
        for node in nodes {
            match is_done {
                Some(true) => {
                    self.0.remove(node);
                }
                Some(false) => {
                    let before = self.0.get(node).map(|(_, pause)| *pause * 2);
                    let pause = before.unwrap_or(AFTER_REFUSAL).min(MAX_AFTER_REFUSAL);
                    self.0.insert(node.clone(), (now + pause, pause));
                }
                None => {}
            }
        }
    }
}

/// Those of the nodes that no job has, and that are in the state for it. What jobs have may be newer than that.
fn may_sleep(
    nodes: impl Iterator<Item = String>,
    snapshot: &SlurmSnapshot,
    is_ready: impl Fn(&SlurmNodeState) -> bool,
) -> Vec<String> {
    let busy = busy(snapshot);
    let may = |name: &String| {
        let node = snapshot.nodes.get(name);
        node.is_some_and(|node| is_ready(&node.state)) && !busy.contains(&name[..])
    };
    nodes.filter(may).collect()
}

/// The nodes that jobs have.
fn busy(snapshot: &SlurmSnapshot) -> BTreeSet<&str> {
    let has_nodes = |state: &SlurmJobState| {
        matches!(
            state,
            SlurmJobState::Configuring
                | SlurmJobState::Running
                | SlurmJobState::Suspended
                | SlurmJobState::Completing
        )
    };
    let jobs = snapshot.jobs.values().filter(|job| has_nodes(&job.state));
    jobs.flat_map(|job| job.nodes.iter())
        .map(|name| &name[..])
        .collect()
}

/// Slurm ignores an order to wake any other.
fn is_off(node: &SlurmNode) -> bool {
    node.state.flags.contains(&NodeFlag::PoweredDown)
}

fn without_reservation(state: &SlurmNodeState) -> SlurmNodeState {
    let mut state = state.clone();
    state.flags.remove(&NodeFlag::Reserved);
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(states: &[(&str, &str)]) -> SlurmSnapshot {
        let answers = tarn_slurm::Answers {
            config: b"SLURM_VERSION = 24.11.5\n".to_vec(),
            ..tarn_slurm::Answers::default()
        };
        let mut snapshot = SlurmSnapshot::from_fields(&answers).expect("a snapshot");
        for (name, state) in states {
            let node = SlurmNode {
                name: (*name).to_owned(),
                state: SlurmNodeState::parse(state),
                cpus: 1,
                cpus_allocated: 0,
                memory: 1,
                memory_allocated: 0,
                gres: String::new(),
                features: Vec::new(),
                active_features: Vec::new(),
                partitions: BTreeSet::new(),
                reason: String::new(),
                extra: String::new(),
                is_incomplete: false,
            };
            snapshot.nodes.insert(node.name.clone(), node);
        }
        snapshot
    }

    #[test]
    fn only_idle_nodes_go_to_sleep_and_only_sleepers_wake() {
        let states = [
            ("n1", "idle"),
            ("n2", "idle~"),
            ("n3", "allocated"),
            ("n4", "idle+drain"),
            ("n5", "idle%"),
            ("n6", "idle#"),
            ("n7", "idle+reserved"),
        ];
        let snapshot = snapshot(&states);
        let all = || states.iter().map(|(name, _)| (*name).to_owned());
        let first = may_sleep(all(), &snapshot, SlurmNodeState::is_idle_and_awake);
        assert_eq!(first, ["n1"]);
        // tarn's own reservation keeps jobs off it.
        let second = may_sleep(all(), &snapshot, |state| {
            SlurmNodeState::is_idle_and_awake(&without_reservation(state))
        });
        assert_eq!(second, ["n1", "n7"]);
        let off = all().filter(|name| is_off(&snapshot.nodes[name]));
        assert_eq!(off.collect::<Vec<_>>(), ["n2"]);
    }

    #[test]
    fn a_node_that_slurm_refuses_to_put_to_sleep_is_left_alone_for_longer_each_time() {
        let (mut refused, start) = (RefusedSleep::default(), Instant::now());
        let nodes = ["n1".to_owned()];
        let after = |seconds| start + Duration::from_secs(seconds);
        refused.note(&nodes, Some(false), start);
        assert!(refused.contains("n1", after(119)) && !refused.contains("n1", after(121)));
        assert!(!refused.contains("n2", start));
        refused.note(&nodes, Some(false), after(121));
        assert!(refused.contains("n1", after(360)) && !refused.contains("n1", after(362)));
        for _ in 0..10 {
            refused.note(&nodes, Some(false), start);
        }
        assert!(!refused.contains("n1", after(3601)));
        refused.note(&nodes, Some(true), start);
        assert!(!refused.contains("n1", start));
        refused.note(&nodes, Some(false), start);
        assert!(!refused.contains("n1", after(121)));
    }
}
