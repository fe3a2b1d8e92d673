//! The accounts of a simulated site, counted again.

use super::SimulatedSite;
use super::jobs::SimulatedJobPhase;
use super::space::ItemDistribution;
use tarn_types::site::{ItemId, JobId, Spread};

/// Above this number of jobs or nodes, they are not counted: the check follows each event.
const MOST: usize = 256;

impl SimulatedSite {
    /// Counts the shares of jobs and moves in tiers and links, and compares them with the accounts.
    ///
    /// # Panics
    /// When they differ: something was given back twice, or is never given back.
    pub(super) fn check_accounts(&self) {
        if self.jobs.len() > MOST || self.nodes.len() > MOST {
            return;
        }
        let moves = || self.moving.iter().flatten();
        let written: Vec<(ItemId, ItemDistribution)> = self.output_space().collect();
        let coming = moves().filter_map(|m| Some((m.order.item, m.to.as_ref()?)));
        let written = written.iter().map(|(item, layout)| (*item, layout));
        self.space.check(coming.chain(written));
        self.fluid.check();
        assert_eq!(self.fluid.live(), self.streams.len(), "streams of moves");
        for (id, slot) in &self.streams {
            let moving = self.moving.get(*slot as usize).and_then(Option::as_ref);
            let is_its = moving.is_some_and(|m| m.order.id == *id);
            assert!(is_its, "stream of move {}", id.0);
        }
        assert_eq!(moves().count(), self.streams.len(), "moves under way");
        self.check_jobs();
        let away = self.nodes.iter().filter(|n| n.is_away()).count();
        assert_eq!(self.away as usize, away, "nodes that are away");
    }

    /// The space that running programs have taken for their outputs.
    fn output_space(&self) -> impl Iterator<Item = (ItemId, ItemDistribution)> {
        let running = self.jobs.iter().zip(&self.work.jobs);
        let running = running.filter(|(slot, _)| slot.phase == SimulatedJobPhase::Running);
        let written = running.filter_map(|(slot, w)| {
            let live = slot.live.as_ref().filter(|l| l.writes)?;
            let layout = ItemDistribution::new(&live.nodes, Spread::Share);
            Some(w.job.writes.iter().map(move |i| (*i, layout.clone())))
        });
        written.flatten()
    }

    fn check_jobs(&self) {
        let is_open = |phase| match phase {
            SimulatedJobPhase::Waiting
            | SimulatedJobPhase::Held
            | SimulatedJobPhase::Running
            | SimulatedJobPhase::Ended { .. } => true,
            SimulatedJobPhase::Unknown | SimulatedJobPhase::Done | SimulatedJobPhase::TakenOut => {
                false
            }
        };
        let open = self.jobs.iter().filter(|j| is_open(j.phase)).count();
        assert_eq!(self.open, open, "jobs that are not over");
        for (number, slot) in (0..).map(JobId).zip(&self.jobs) {
            let Some(live) = &slot.live else { continue };
            let moves = self.moving.iter().flatten();
            let awaited = moves.filter(|m| m.awaited_by == Some(number)).count();
            assert_eq!(live.moves as usize, awaited, "moves of job {number}");
        }
    }
}
