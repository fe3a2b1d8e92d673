//! The power of a machine: by island, the nodes that are awake, asleep and booting, and the cores that run programs.

use tarn_types::site::{Machine, NodePowerModel};
use tarn_types::units::{SECOND, Time};

/// The state of a node that decides its power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PowerDrawState {
    /// Idle at least.
    Awake,
    Asleep,
    /// Waking up, or rebooting into another mode.
    Boot,
    /// Lost: nothing.
    Nothing,
}

#[derive(Debug)]
struct IslandPower {
    power: NodePowerModel,
    cores: u32,
    /// By [`PowerDrawState`].
    nodes: [u64; 4],
    /// Cores, over all nodes, that run a program.
    running: u64,
}

/// The meter. A node's draw goes from idle to busy with the share of its cores that run a program; a job that only
/// moves data draws as if idle.
#[derive(Debug)]
pub(super) struct SitePowerMeter {
    islands: Vec<IslandPower>,
    since: Time,
    joules: f64,
}

impl SitePowerMeter {
    pub(super) fn new(machine: &Machine) -> Self {
        let islands = machine.islands.iter().map(|i| IslandPower {
            power: i.kind.power,
            cores: i.kind.cores.max(1),
            nodes: [u64::from(i.nodes), 0, 0, 0],
            running: 0,
        });
        Self {
            islands: islands.collect(),
            since: 0,
            joules: 0.0,
        }
    }

    /// Joules drawn up to now.
    pub(super) fn read(&mut self, now: Time) -> f64 {
        let seconds = now.saturating_sub(self.since) as f64 / SECOND as f64;
        let watts: f64 = self.islands.iter().map(IslandPower::watts).sum();
        self.joules += watts * seconds;
        self.since = now;
        self.joules
    }

    /// A node draws for something else from now on.
    pub(super) fn change(
        &mut self,
        now: Time,
        island: u16,
        from: PowerDrawState,
        to: PowerDrawState,
    ) {
        self.read(now);
        let nodes = &mut self.islands[usize::from(island)].nodes;
        nodes[from as usize] -= 1;
        nodes[to as usize] += 1;
    }

    /// A program begins on so many cores of an island, all nodes together.
    pub(super) fn begin(&mut self, now: Time, island: u16, cores: u64) {
        self.read(now);
        self.islands[usize::from(island)].running += cores;
    }

    /// It ends.
    pub(super) fn end(&mut self, now: Time, island: u16, cores: u64) {
        self.read(now);
        self.islands[usize::from(island)].running -= cores;
    }
}

impl IslandPower {
    fn watts(&self) -> f64 {
        let [awake, asleep, boot, _] = self.nodes.map(|n| n as f64);
        let p = self.power;
        let busy = self.running as f64 / f64::from(self.cores);
        awake * p.idle + busy * (p.busy - p.idle) + asleep * p.asleep + boot * p.boot
    }
}
