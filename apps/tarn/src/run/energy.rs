//! The power draw of nodes of an allocation that have no meter: tarn queries Slurm, from time to time and for all of them at once
//! (docs/admin/energy.md).

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::{World, WorldError};
use tarn_power::EnergyAccount;
use tarn_types::action::{Action, AttemptSpec, Do};
use tarn_types::cluster::Cluster;
use tarn_types::energy::{Energy, Power, Source};
use tarn_types::event::Event;
use tarn_types::id::NodeId;
use tarn_types::nodes::AttemptId;
use tarn_types::units::Time;
use tarn_types::workflow::Workflow;

/// Between two questions to Slurm: it knows nothing newer than its own interval, and is not to be bothered by many runs.
const ASK: Duration = Duration::from_secs(30);

/// Gives hosts without a meter of their own the figure that Slurm has of them. Whether Slurm measures them at all.
pub(super) fn fill(cluster: &mut Cluster) -> bool {
    let unknown = |c: &Cluster| c.hosts.iter().any(|h| h.draw.power.is_none());
    if !unknown(cluster) || !matches!(tarn_slurm::energy_plugin(), Ok(Some(_))) {
        return false;
    }
    let names: Vec<String> = cluster.hosts.iter().map(|h| h.name.clone()).collect();
    let drawn = tarn_slurm::drawn(&names).unwrap_or_default();
    let source = Source::Slurm;
    for host in &mut cluster.hosts {
        let draw = drawn.get(&host.name).copied();
        let power = draw.map(|milliwatts| Power { milliwatts, source });
        host.draw.power = host.draw.power.or(power);
    }
    true
}

/// A node: the accounts of its energy, and its power draw with the time since then, as far as Slurm knows.
struct NodePowerDraw {
    account: EnergyAccount,
    milliwatts: Option<u64>,
    since: Instant,
}

impl NodePowerDraw {
    fn settle(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_micros();
        let drawn = self.milliwatts.map(|mw| u128::from(mw) * passed / 1000);
        self.account.drawn(drawn.and_then(|d| d.try_into().ok()));
        self.since = now;
    }
}

/// Slurm's data about the nodes of an active run.
pub(crate) struct SlurmPowerMonitor {
    nodes: Arc<Mutex<Vec<NodePowerDraw>>>,
    /// Dropping it ends the queries.
    _until: Sender<()>,
}

impl SlurmPowerMonitor {
    /// Begins to ask about the nodes of a cluster.
    pub(super) fn begin(cluster: &Cluster) -> std::io::Result<Self> {
        let hosts: Vec<_> = cluster
            .nodes
            .iter()
            .filter_map(|n| cluster.hosts.get(n.host as usize))
            .collect();
        let names: Vec<String> = hosts.iter().map(|h| h.name.clone()).collect();
        let now = Instant::now();
        let first = hosts.iter().map(|h| NodePowerDraw {
            account: EnergyAccount::default(),
            milliwatts: h
                .draw
                .power
                .filter(|p| p.source == Source::Slurm)
                .map(|p| p.milliwatts),
            since: now,
        });
        let nodes = Arc::new(Mutex::new(first.collect::<Vec<_>>()));
        let (until, over) = channel::<()>();
        let all = Arc::clone(&nodes);
        let ask = move || {
            while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(ASK) {
                // If it does not answer, the power draw meanwhile is not known.
                let drawn = tarn_slurm::drawn(&names).unwrap_or_default();
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                record_power_draw(&mut all, &names, &drawn, Instant::now());
            }
        };
        std::thread::Builder::new()
            .name("tarn-watts".into())
            .spawn(ask)?;
        Ok(Self {
            nodes,
            _until: until,
        })
    }
}

fn record_power_draw(
    all: &mut [NodePowerDraw],
    names: &[String],
    drawn: &BTreeMap<String, u64>,
    now: Instant,
) {
    for (node, name) in all.iter_mut().zip(names) {
        node.settle(now);
        node.milliwatts = drawn.get(name).copied();
    }
}

/// A world whose steps have their energy from Slurm where their nodes have not measured it.
pub(crate) struct SlurmMeteredWorld<W> {
    inner: W,
    monitor: Option<SlurmPowerMonitor>,
    /// Cores of each step.
    cores: Vec<u32>,
    /// The running attempts, each with its share of each of its nodes.
    running: BTreeMap<AttemptId, Vec<(NodeId, u64)>>,
}

impl<W> SlurmMeteredWorld<W> {
    pub(crate) fn new(inner: W, monitor: Option<SlurmPowerMonitor>, workflow: &Workflow) -> Self {
        Self {
            inner,
            monitor,
            cores: workflow.steps.iter().map(|s| s.cores).collect(),
            running: BTreeMap::new(),
        }
    }

    pub(crate) fn into_inner(self) -> W {
        self.inner
    }

    fn begins(&mut self, run: &AttemptSpec) {
        let Some(monitor) = &self.monitor else { return };
        let cores = self.cores.get(run.instance.step.at()).copied().unwrap_or(1);
        let mut all = monitor.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let begins = |node: NodeId| {
            let drawing = all.get_mut(node.at())?;
            drawing.settle(now);
            Some((node, drawing.account.begin(cores)))
        };
        let shares = run.nodes.iter().map(|s| s.node).filter_map(begins);
        let shares = shares.collect();
        self.running.insert((run.instance, run.attempt), shares);
    }

    fn ended(&mut self, mut event: Event) -> Event {
        if let Event::Ended {
            instance,
            attempt,
            usage,
            ..
        } = &mut event
        {
            let shares = self.running.remove(&(*instance, *attempt));
            let found = shares.and_then(|shares| self.energy(shares));
            usage.energy = usage.energy.or(found);
        }
        event
    }

    fn energy(&self, shares: Vec<(NodeId, u64)>) -> Option<Energy> {
        let monitor = self.monitor.as_ref()?;
        let mut all = monitor.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let mut microjoules = Some(0u64);
        // All of them end, whether their shares are known or not.
        for (node, share) in shares {
            let drawing = all.get_mut(node.at())?;
            drawing.settle(now);
            let more = drawing.account.end(share);
            microjoules = microjoules.zip(more).map(|(sum, m)| sum.saturating_add(m));
        }
        Some(Energy {
            millijoules: microjoules? / 1000,
            source: Source::Slurm,
        })
    }
}

impl<W: World> World for SlurmMeteredWorld<W> {
    fn now(&self) -> Time {
        self.inner.now()
    }

    fn perform(&mut self, action: &Action) -> Result<(), WorldError> {
        if let Do::Run(run) = &action.what {
            self.begins(run);
        }
        self.inner.perform(action)
    }

    fn next(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError> {
        let (at, event) = self.inner.next(until)?;
        Ok((at, self.ended(event)))
    }

    fn poll(&mut self) -> Option<(Time, Event)> {
        let (at, event) = self.inner.poll()?;
        Some((at, self.ended(event)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_time_makes_those_unknown_that_ran_then() {
        let begun = Instant::now();
        let after = |s| begun + Duration::from_secs(s);
        let mut all = vec![NodePowerDraw {
            account: EnergyAccount::default(),
            milliwatts: Some(100_000),
            since: begun,
        }];
        let names = ["n1".to_owned()];
        let first = all[0].account.begin(1);
        record_power_draw(&mut all, &names, &BTreeMap::new(), after(10));
        assert_eq!(all[0].account.end(first), Some(1_000_000_000));
        let second = all[0].account.begin(1);
        let known = [("n1".to_owned(), 50_000)].into();
        record_power_draw(&mut all, &names, &known, after(20));
        assert_eq!(all[0].account.end(second), None);
        let third = all[0].account.begin(1);
        all[0].settle(after(22));
        assert_eq!(all[0].account.end(third), Some(100_000_000));
    }
}
