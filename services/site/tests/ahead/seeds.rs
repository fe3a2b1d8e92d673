//! Any order of reservations, losses, restarts and jobs: the log gives the same state, and every job ends.

use super::{ends, makes, reads, reserve};
use crate::world::*;
use tarn_proto::site::{ControllerReply, Stage};
use tarn_site::{Config, SiteServiceEvent};
use tarn_types::random::Random;

const NODES: usize = 4;

#[test]
fn reservations_in_any_order_fail_no_job_and_replay_to_the_same_state() {
    let (mut began_with_data, mut stopped) = (0, 0);
    for seed in 0..24 {
        let (with_data, stops) = play(seed);
        began_with_data += with_data;
        stopped += stops;
    }
    assert!(
        began_with_data > 100 && stopped > 3,
        "{began_with_data} {stopped}"
    );
}

fn some_nodes(random: &mut Random, count: u64) -> Vec<String> {
    let first = random.below(NODES as u64);
    let at = |i| format!("n{}", 1 + (first + i) % NODES as u64);
    (0..count).map(at).collect()
}

/// Some of the orders are done.
fn work_on(world: &mut World, random: &mut Random) {
    for _ in 0..random.below(6) {
        if world.queue.is_empty() {
            return;
        }
        let at = random.below(world.queue.len() as u64) as usize;
        let (node, number, order) = world.queue.remove(at);
        world.perform(&node, number, order);
    }
}

/// Jobs that found all data on their nodes, and copies that were stopped.
fn play(seed: u64) -> (usize, usize) {
    let mut random = Random::new(seed);
    let config = Config {
        ahead: random.below(2) == 0,
        ..Config::default()
    };
    let mut world = World::new(NODES, config.clone());
    // Of one dataset at a time, or of all.
    let is_tight = random.below(2) == 0;
    world.capacity = if is_tight { 2 << 20 } else { 16 << 20 };
    for node in 1..=NODES {
        world.close(&format!("n{node}"));
        world.open(&format!("n{node}"));
    }
    let mut with_data = 0;
    for turn in 0..12 {
        let (maker, reader) = (2 * turn + 1, 2 * turn + 2);
        let name = format!("d{turn}");
        let wants = 1 + random.below(3);
        let setup = |script| Stage::Setup(Box::new(script));
        assert_eq!(
            world.staged(maker, setup(makes(&name, 1))),
            ControllerReply::Done
        );
        let script = reads(&name, wants as u32);
        assert_eq!(world.staged(reader, setup(script)), ControllerReply::Done);
        let home = some_nodes(&mut random, 1);
        let home: Vec<&str> = home.iter().map(String::as_str).collect();
        assert_eq!(world.pre_run(maker, &home), ControllerReply::Done);
        let mut reserved = some_nodes(&mut random, wants);
        let mut is_called = false;
        for step in 0..10 {
            match random.below(8) {
                0 | 5 | 6 => reserved = some_nodes(&mut random, wants),
                1 => {
                    world.event(SiteServiceEvent::Advised {
                        job: reader,
                        nodes: Vec::new(),
                    });
                }
                2 => {
                    let node = some_nodes(&mut random, 1).remove(0);
                    world.close(&node);
                    world.open(&node);
                }
                3 => {
                    world.queue.clear();
                    world.event(SiteServiceEvent::began(u64::from(reader) * 10 + step));
                    (1..=NODES).for_each(|n| world.open(&format!("n{n}")));
                    is_called = false;
                }
                4 if !is_called => {
                    is_called = true;
                    let expected = some_nodes(&mut random, wants);
                    world.stage(reader, Stage::Ahead(expected));
                }
                _ => world.pass(60),
            }
            let names: Vec<&str> = reserved.iter().map(String::as_str).collect();
            if random.below(4) > 0 {
                reserve(&mut world, reader, &names);
            }
            work_on(&mut world, &mut random);
            if step == 1 {
                world.settle();
                ends(&mut world, maker);
            }
        }
        let nodes = match random.below(4) {
            0 => some_nodes(&mut random, wants),
            _ => reserved,
        };
        let input = format!("{name}/1.0");
        let is_there = nodes.iter().all(|n| world.parts_on(n).contains(&input));
        let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let reply = world.pre_run(reader, &names);
        assert_eq!(reply, ControllerReply::Done, "seed {seed}, job {reader}");
        with_data += usize::from(is_there);
        ends(&mut world, reader);
        assert!(
            world.nodes.values().all(|n| n.admitted.is_empty()),
            "seed {seed}"
        );
        if is_tight || random.below(2) == 0 {
            crate::end(&mut world, &name);
        }
    }
    world.check_replay(config);
    (with_data, world.stops)
}
