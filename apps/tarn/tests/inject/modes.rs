//! `tarn mode set`, with tools that are played.

use crate::calls::is_swept;
use crate::common::{Ran, Site};
use crate::programs::{install, sweep_programs, with_programs};
use crate::verbs::of;
use std::path::Path;
use std::process::Command;

/// A node whose memory modules have a namespace.
pub(crate) fn node() -> Site {
    let site = Site::new("");
    let played = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../services/memory-modes/tests/played/memory-tools");
    install(&site, &played, &["ipmctl", "ndctl", "daxctl"]);
    site.write("state/log", "");
    site.write("state/namespaces", "namespace0.0 fsdax 1073741824 pmem77\n");
    site
}

pub(crate) fn mode(site: &Site, words: &[&str]) -> Command {
    let (_, mut command) = of(site, &[&["mode"], words].concat());
    with_programs(site, &mut command);
    command
        .env("PLAYED_MODES", site.path("state"))
        .env_remove("TARN_SOCKET")
        .env_remove("TARN_MODE_DESTROY");
    command
}

fn kept(site: &Site, name: &str) -> String {
    std::fs::read_to_string(site.path("state").join(name)).unwrap_or_default()
}

pub(crate) fn mode_set() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root may change a memory mode");
        is_swept("mode set");
        return;
    }
    let set = ["set", "2lm", "--destroy", "namespace0.0"];
    let command = |site: &Site| mode(site, &set);
    sweep_programs(
        "mode set",
        node,
        command,
        |site| site,
        |site, hit| {
            let is_there = || kept(site, "goal") == "100\n" && kept(site, "namespaces").is_empty();
            assert!(!hit.done() || is_there(), "{}", hit.what);
            let again = Ran::of(command(site).output().unwrap());
            assert_eq!(again.code, Some(0), "{}; set: {}", hit.what, again.err);
            assert!(is_there(), "{}", hit.what);
        },
    );
    // A tool that says nothing today does not make a namespace free to go.
    let command = |site: &Site| mode(site, &["set", "2lm"]);
    sweep_programs(
        "mode set (refused)",
        node,
        command,
        |site| site,
        |site, hit| {
            assert!(!hit.done(), "{}: {}", hit.what, hit.ran.out);
            assert_ne!(kept(site, "namespaces"), "", "{}", hit.what);
            assert_eq!(kept(site, "goal"), "", "{}", hit.what);
        },
    );
}
