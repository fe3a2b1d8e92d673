//! Many jobs, nodes that come and go, stores that are full: the site's account is true, and nothing is lost.

use super::{ends, makes, reads, world};
use crate::world::*;
use tarn_proto::site::{ControllerReply, ControllerRequest, Stage};
use tarn_site::{Config, SiteServiceEvent};
use tarn_types::workflow::Distribution::Single;
use tarn_types::workflow::Role;

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

#[test]
fn whatever_happens_bytes_are_counted_by_store_and_what_was_made_is_somewhere() {
    for seed in 0..24 {
        play(seed);
    }
}

fn play(seed: u64) {
    let mut random = Random(seed);
    let levels = [
        ("dram", (1 + random.below(3)) << 20, false),
        ("pmem", (1 + random.below(4)) << 20, true),
        ("nvme", (2 + random.below(6)) << 20, true),
    ];
    let mut world = world(2, &levels, Config::default());
    let mut made: Vec<String> = Vec::new();
    let mut running: Vec<u32> = Vec::new();
    for job in 1..50 {
        let node = format!("n{}", 1 + random.below(2));
        let script = match random.below(3) {
            0 if !made.is_empty() => {
                let at = random.below(made.len() as u64) as usize;
                reads(&made[at])
            }
            1 => {
                let mut data = dataset(&format!("s{}", random.below(4)));
                data.source = Some(format!("/lustre/{}", data.name).into());
                data.size = Some(900 << 10);
                script("sources", 1, vec![(Role::In, Single, data)])
            }
            _ => makes(&format!("d{job}")),
        };
        let is_maker = script.workflow.data[0].source.is_none()
            && script.workflow.steps[0].uses[0].role == Role::Out;
        if world.staged(job, Stage::Setup(Box::new(script))) == ControllerReply::Done
            && world.pre_run(job, &[&node]) == ControllerReply::Done
        {
            running.push(job);
            if is_maker {
                made.push(format!("d{job}"));
            }
        }
        // Running jobs end in any order. Inputs are made by then.
        while running.len() > random.below(3) as usize || is_maker && running.contains(&job) {
            let at = random.below(running.len() as u64) as usize;
            ends(&mut world, running.remove(at));
        }
        match random.below(12) {
            0 => {
                // In the middle of all work under way.
                world.close(&node);
                world.open(&node);
                world.settle();
            }
            1 => {
                world.event(SiteServiceEvent::began(u64::from(job)));
                for node in ["n1", "n2"] {
                    world.open(node);
                }
                world.settle();
            }
            2 => world.pass(60 + random.below(600)),
            _ => {}
        }
        check(&world, &made, seed, running.is_empty());
    }
    world.check_replay(Config::default());
}

fn check(world: &World, made: &[String], seed: u64, is_idle: bool) {
    let Some(ControllerReply::Nodes(nodes)) =
        world.site.answer(0, &[0], true, &ControllerRequest::Nodes)
    else {
        panic!("no nodes");
    };
    for node in &nodes {
        for store in &node.stores {
            let there = world.bytes_in(&node.name, &store.name);
            // Beside the data there are reservations of running jobs.
            let is_right = match is_idle {
                true => store.taken == there,
                false => store.taken >= there,
            };
            assert!(is_right, "seed {seed}: {} {store:?} {there}", node.name);
            assert!(
                store.taken <= store.capacity || store.name == "nvme",
                "seed {seed}: {store:?}"
            );
        }
    }
    for name in made {
        let somewhere = ["n1", "n2"]
            .iter()
            .any(|node| !world.places(node, name).is_empty());
        assert!(somewhere, "seed {seed}: {name} is lost");
    }
}
