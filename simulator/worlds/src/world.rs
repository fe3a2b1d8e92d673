//! Time passes in the simulated world, and ordered actions begin.

use crate::model::{ScheduledEvent, broken};
use crate::simulation::Simulation;
use tarn_ports::{World, WorldError};
use tarn_types::action::{Action, Do};
use tarn_types::event::Event;
use tarn_types::units::Time;

impl Simulation {
    /// The time of the next thing that happens by itself.
    fn next_change(&self) -> Option<Time> {
        let due = self.due.keys().next().map(|(at, _)| *at);
        due.into_iter().chain(self.network.next_change()).min()
    }

    /// Lets time pass to `to` (not after the next change) and turns the ends of activities into events.
    fn advance(&mut self, to: Time) {
        self.now = self.now.max(to);
        for done in self.network.advance(&self.cluster, self.now) {
            self.finished(done);
        }
        while let Some(entry) = self.due.first_entry().filter(|e| e.key().0 <= self.now) {
            match entry.remove() {
                ScheduledEvent::End(id, attempt) => self.ended(id, attempt),
                ScheduledEvent::Event(Event::Capacity { tier_ref, bytes }) => {
                    self.store.set_capacity(tier_ref, bytes);
                    // A lost node cannot report how full its tiers are.
                    if !self.lost.contains_key(&tier_ref.node) {
                        self.happen(Event::Capacity { tier_ref, bytes });
                    }
                }
                ScheduledEvent::Event(event) => self.happen(event),
                ScheduledEvent::Lose(node, outage) => self.lose(node, outage),
                ScheduledEvent::Back(node, keeps) => self.back(node, keeps),
                ScheduledEvent::Slower(by) => self.links(|rate| (rate / by).max(1)),
                ScheduledEvent::Faster(by) => self.links(|rate| rate.saturating_mul(by)),
            }
        }
    }

    fn next_event(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            match (self.next_change(), until) {
                (Some(at), Some(until)) if until < at => {
                    self.advance(until);
                    return Ok((self.now, Event::Timer));
                }
                (Some(at), _) => self.advance(at),
                (None, Some(until)) => {
                    self.advance(until);
                    return Ok((self.now, Event::Timer));
                }
                (None, None) => {
                    return broken("nothing is under way and nothing is waited for".into());
                }
            }
        }
    }
}

impl World for Simulation {
    fn now(&self) -> Time {
        self.now
    }

    fn perform(&mut self, action: &Action) -> Result<(), WorldError> {
        match &action.what {
            Do::List { data } => self.list(*data),
            Do::Transfer(order) => self.transfer(order)?,
            Do::Abandon { id } => self.abandon(*id),
            Do::Run(run) => self.run(run)?,
            Do::Stop { instance, attempt } => self.stop(*instance, *attempt),
            Do::Reuse { instance, prior } => self.reuse(*instance, *prior)?,
            Do::Evict { part, key, at } => self.evict(*part, key, at)?,
            Do::Discard { key, at, .. } => {
                at.iter()
                    .for_each(|tier_ref| self.store.take_back(key, *tier_ref));
            }
            Do::Assign { .. }
            | Do::Unassign { .. }
            | Do::Cache { .. }
            | Do::CopyImage { .. }
            | Do::Forget { .. }
            | Do::Note { .. }
            | Do::Finish { .. } => {}
        }
        Ok(())
    }

    fn next(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError> {
        let event = self.next_event(until)?;
        if cfg!(debug_assertions) {
            self.check_accounts();
        }
        Ok(event)
    }

    fn poll(&mut self) -> Option<(Time, Event)> {
        if self.ready.is_empty() && self.next_change().is_some_and(|at| at <= self.now) {
            self.advance(self.now);
        }
        self.ready.pop_front()
    }
}
