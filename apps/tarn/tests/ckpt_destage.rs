//! `tarn ckpt destage` by the real binary: it brings the data that dead programs have left in memory to their arenas.

mod common;

use common::{Ran, Site};
use std::fs;
use tarn_checkpoint::{CheckpointSession, Options, Properties, StagingShare, VersionId};

struct Node {
    site: Site,
}

impl Node {
    fn new() -> Self {
        let site = Site::new("");
        fs::create_dir_all(site.path("memory")).unwrap();
        Self { site }
    }

    /// A program of one rank that has this version, and has committed the next one.
    fn begin(&self, run: &str, from: Option<u64>) -> CheckpointSession {
        let mut session = CheckpointSession::begin(Options {
            run: Some(run.into()),
            tier: Some(self.site.path("tier")),
            memory: Some(self.site.path("memory")),
            staging: Some(StagingShare::All),
            helper: false,
            ..Options::default()
        })
        .unwrap();
        session
            .create("rows", 1 << 20, 8, Properties::default())
            .unwrap();
        let from = from.map(|generation| VersionId {
            generation,
            number: 1,
        });
        assert_eq!(session.restart(None).unwrap(), from);
        session.commit().unwrap();
        session
    }

    fn tarn(&self, arguments: &[&str]) -> Ran {
        self.tarn_in("memory", arguments)
    }

    /// As if this was where the program has what it has in memory.
    fn tarn_in(&self, memory: &str, arguments: &[&str]) -> Ran {
        let tier = self.site.path("tier").to_string_lossy().into_owned();
        let memory = self.site.path(memory).to_string_lossy().into_owned();
        let places = ["--tier", &tier, "--memory", &memory];
        let arguments = [&["ckpt"], arguments, &places[..]].concat();
        Ran::of(self.site.command(&arguments).output().expect("tarn starts"))
    }

    fn is_not_in(&self, memory: &str) -> String {
        let folder = self.site.path(memory);
        let folder = folder.display();
        format!("is not in {folder}: if the program uses another folder in memory")
    }

    fn loses_its_memory(&self) {
        fs::remove_dir_all(self.site.path("memory")).unwrap();
    }
}

#[test]
fn what_waits_in_memory_is_brought_to_the_tier_once_and_outlives_memory() {
    let node = Node::new();
    node.tarn(&["destage"])
        .exits(0)
        .prints("nothing waits in memory");
    node.tarn(&["destage", "heat"])
        .exits(7)
        .prints("no checkpoints of `heat`");
    let alive = node.begin("alive", None);
    drop(node.begin("heat", None));
    drop(node.begin("other", None));
    node.tarn(&["ls", "heat"]).exits(0).prints("1.1 committed ");
    // In another memory folder it is missing, not damaged.
    for (command, exit) in [("ls", 0), ("show", 0), ("verify", 1), ("destage", 1)] {
        let elsewhere = node.tarn_in("elsewhere", &[command, "heat"]).exits(exit);
        elsewhere.prints(&node.is_not_in("elsewhere"));
    }
    let done = node.tarn(&["destage", "heat"]).exits(0);
    let done = done.prints("version 1.1 of heat, rank 0: 1.00 MiB brought to ");
    done.prints("tier/phx/heat/1/0.arena");
    node.tarn(&["ls", "heat"]).exits(0).prints("1.1 durable ");
    node.tarn(&["destage", "heat"])
        .exits(0)
        .prints("nothing waits");
    // All programs: those that run have no need of it.
    let rows = node.tarn(&["destage", "--json"]).exits(0);
    let rows: Vec<serde_json::Value> = rows
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |row: &serde_json::Value| (row["run"].clone(), row["done"].clone());
    let all: Vec<_> = rows.iter().map(of).collect();
    let brought = ("other".into(), "brought".into());
    assert_eq!(all, [("alive".into(), "running".into()), brought]);
    assert_eq!(
        (&rows[1]["generation"], &rows[1]["number"]),
        (&1.into(), &1.into())
    );
    assert_eq!(rows[1]["bytes"], 1 << 20);
    let busy = node.tarn(&["destage", "alive"]).exits(6);
    busy.prints(&format!("process {} is its rank 0", std::process::id()));
    drop(alive);
    node.loses_its_memory();
    drop(node.begin("heat", Some(1)));
    // tarn reports staged data that memory has lost, and leaves the version as it is.
    node.loses_its_memory();
    let lost = node.tarn(&["destage", "heat"]).exits(1);
    let lost = lost.prints("version 2.1 of heat, rank 0: its staged data is damaged, or ");
    lost.prints(&node.is_not_in("memory"));
    node.begin("heat", Some(1)).end().unwrap();
    node.tarn(&["destage", "heat"])
        .exits(0)
        .prints("nothing waits");
}
