//! Faults of a simulated cluster: nodes that are lost and come back, and a controller that is started again.

use super::controller::{StageCall, config};
use super::live::LivePhase;
use super::world::SimulatedCluster;
use super::{ClusterError, Due};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Report, Stage, WorkResult};
use tarn_site::{Site, SiteServiceEvent};
use tarn_slurm::SlurmJobState;
use tarn_types::site::AccountedState;
use tarn_types::units::SECOND;

impl SimulatedCluster {
    pub(super) fn plan_faults(&mut self) {
        if let Some(controller) = &mut self.controller {
            controller.keeps_log = self.faults.faults.restarts > 0;
        }
        self.next_loss();
        self.next_restart();
    }

    fn next_loss(&mut self) {
        if self.faults.faults.losses > 0 {
            self.faults.faults.losses -= 1;
            let wait = self.faults.wait();
            self.after(wait, Due::LoseNode);
        }
    }

    fn next_restart(&mut self) {
        if self.faults.faults.restarts > 0 {
            self.faults.faults.restarts -= 1;
            let wait = self.faults.wait();
            self.after(wait, Due::Restart);
        }
    }

    /// A node is lost: its jobs are put back into the queue, and others' transfers from it fail.
    pub(super) fn lose_node(&mut self) {
        let count = self.slurm.names.len() as u64;
        let at = self.faults.random.below(count) as usize;
        let node = self.slurm.names[at].clone();
        let is_lost = self.slurm.is_down(at);
        if !is_lost {
            let with_data = self.faults.random.below(2) == 0;
            self.daemons.lose(&node, with_data);
            for job in self.slurm.on_node(at) {
                self.put_back(job);
            }
            self.slurm.set_down(at, true);
            self.break_orders(&node);
            if self.controller.is_some() {
                self.site_event(SiteServiceEvent::Closed { node });
            }
            let back = self.faults.random.within(20..200) * SECOND;
            self.after(back, Due::NodeBack(at as u32));
            self.request_reading();
            self.request_turn();
        }
        self.next_loss();
    }

    /// Orders of a lost node are gone; orders that read from it fail.
    fn break_orders(&mut self, node: &str) {
        let Some(controller) = &self.controller else {
            return;
        };
        let keys = controller.in_hand.iter();
        let own = keys.clone().filter(|((at, _), _)| at == node);
        let own: Vec<(String, u64)> = own.map(|(key, _)| key.clone()).collect();
        let broken = keys.filter(|((at, _), (order, _))| {
            at != node && order.peers.iter().any(|peer| peer == node)
        });
        let broken: Vec<(String, u64)> = broken.map(|(key, _)| key.clone()).collect();
        for (at, number) in own {
            self.drop_order(&at, number);
        }
        for (at, number) in broken {
            self.drop_order(&at, number);
            let why = RequestError::new(Code::Lost, "the node that has it is lost");
            let what = WorkResult::Failed(why);
            self.site_event(SiteServiceEvent::Reported {
                order: number,
                report: Report::Worked { number, what },
            });
        }
    }

    /// Slurm puts a job whose node is lost back into its queue.
    fn put_back(&mut self, number: u32) {
        self.account(number, AccountedState::Requeued);
        self.stop_streams_of(number);
        let Some(live) = self.live.get_mut(&number) else {
            return;
        };
        live.attempt += 1;
        live.phase = LivePhase::Waits;
        let (work, has_lines) = (live.work, live.has_lines);
        self.record.released(work, self.now);
        self.slurm.free(number, SlurmJobState::Pending);
        self.slurm.submitted_again(number, self.now);
        if has_lines {
            // Its gate does not wait any more.
            if let Some(controller) = &mut self.controller {
                controller.calls.retain(|_, call| call.job != number);
            }
            self.call(number, Stage::PutBack);
        }
    }

    pub(super) fn node_back(&mut self, at: usize) {
        let node = self.slurm.names[at].clone();
        self.slurm.set_down(at, false);
        if self.controller.is_some() {
            self.open_node(&node);
        }
        self.request_reading();
        self.request_turn();
    }

    /// The controller is started again: the log gives the state that it had; nodes and scripts connect again.
    pub(super) fn restart_controller(&mut self) -> Result<(), ClusterError> {
        let machine = self.machine.clone();
        let Some(controller) = &mut self.controller else {
            return Ok(());
        };
        let mut site = Site::new(config());
        for (now, event) in &controller.log {
            site.step(*now, event.clone(), &mut Vec::new());
        }
        let is_same = format!("{site:?}") == format!("{:?}", controller.site);
        let calls = controller.begin_again(site, &machine);
        let (epoch, orders) = (
            controller.epoch,
            controller.in_hand.keys().cloned().collect::<Vec<_>>(),
        );
        if !is_same {
            let what = "the log leads to another state".to_owned();
            return Err(self.rule("a new controller has the state of the old one", what));
        }
        self.record.restarts += 1;
        for (node, number) in orders {
            self.drop_order(&node, number);
        }
        self.site_event(SiteServiceEvent::began(epoch));
        for node in self.slurm.names.clone() {
            if self.daemons.is_up(&node) {
                self.open_node(&node);
            }
        }
        for StageCall { job, stage } in calls {
            self.call(job, stage);
        }
        self.request_reading();
        self.next_restart();
        Ok(())
    }
}
