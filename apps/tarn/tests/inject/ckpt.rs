//! Checkpoints that `tarn` moves after their program has died.

use crate::calls::{Hit, sweep};
use crate::common::{Ran, Site};
use crate::verbs::{of, well};
use std::fs;
use std::path::Path;
use tarn_checkpoint::{CheckpointSession, Options, Properties, StagingShare, VersionId};
use tarn_checkpoint_core::{arena, flush};
use tarn_media::ExternalFolder;

const ROWS: u64 = 20_000;

fn options(site: &Site) -> Options {
    Options {
        run: Some("heat".into()),
        tier: Some(site.path("tier")),
        memory: Some(site.path("memory")),
        external: Some(site.path("store")),
        staging: Some(StagingShare::All),
        helper: false,
        ..Options::default()
    }
}

fn id(generation: u64) -> VersionId {
    VersionId {
        generation,
        number: 1,
    }
}

/// A start of the program, which continues from its newest version, and the content of that version.
fn begin(site: &Site) -> (CheckpointSession, Option<VersionId>) {
    let mut session = CheckpointSession::begin(options(site)).unwrap();
    let size = ROWS as usize * 8;
    session
        .create("rows", size, 8, Properties::default())
        .unwrap();
    let from = session.restart(None).unwrap();
    if let Some(from) = from {
        let rows = session.values::<u64>("rows").unwrap();
        let whole = (0..).zip(&*rows).all(|(i, x)| *x == i + from.generation);
        assert!(whole, "version {from}");
    }
    (session, from)
}

/// Commits a version of this generation, and dies.
fn commits(site: &Site, generation: u64) {
    let (mut session, _) = begin(site);
    let rows = session.values::<u64>("rows").unwrap();
    (generation..).zip(rows).for_each(|(i, x)| *x = i);
    assert_eq!(session.commit().unwrap().id, id(generation));
}

/// A first version that is on the tier and outside, and a second one that is in memory only.
pub(crate) fn two() -> Site {
    let site = Site::new("");
    fs::create_dir(site.path("store")).unwrap();
    fs::create_dir(site.path("memory")).unwrap();
    commits(&site, 1);
    tarn(&site, "destage").exits(0);
    tarn(&site, "drain").exits(0);
    commits(&site, 2);
    site
}

fn words(site: &Site, verb: &str) -> Vec<String> {
    let place = |name: &str| site.path(name).to_string_lossy().into_owned();
    let mut all: Vec<String> = ["ckpt", verb, "heat"].map(str::to_owned).into();
    all.extend(["--tier".into(), place("tier")]);
    all.extend(["--memory".into(), place("memory")]);
    if verb == "drain" {
        all.extend(["--to".into(), place("store")]);
    }
    all
}

fn tarn(site: &Site, verb: &str) -> Ran {
    let words = words(site, verb);
    site.tarn(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn command(site: &Site, verb: &str) -> (std::path::PathBuf, std::process::Command) {
    let words = words(site, verb);
    of(site, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The version that `latest` names outside, all of which is whole.
fn latest(site: &Site, hit: &Hit) -> Option<VersionId> {
    let store = ExternalFolder::there(&site.path("store"), Path::new("heat"));
    let latest = flush::latest(&store).unwrap()?;
    let all = flush::list(&store).unwrap();
    let found = all.iter().find(|v| v.version == latest);
    let found = found.unwrap_or_else(|| panic!("{}: no {latest:?}", hit.what));
    assert!(found.is_complete(), "{}: {found:?}", hit.what);
    for rank in &found.parts {
        let (part, version, _) = flush::open(&store, latest, *rank).unwrap();
        for object in &version.manifest.objects {
            let mut bytes = vec![0; object.size() as usize];
            let damaged = arena::read(&part, object, &mut bytes).unwrap();
            assert!(damaged.is_empty(), "{}", hit.what);
        }
    }
    Some(latest.id)
}

fn loses_memory(site: &Site) {
    fs::remove_dir_all(site.path("memory")).unwrap();
    fs::create_dir(site.path("memory")).unwrap();
}

pub(crate) fn ckpt_destage() {
    let destage = |site: &Site| command(site, "destage");
    sweep("ckpt destage", "tarn", two, destage, |site, hit| {
        well(hit, "verify", tarn(site, "verify"));
        if !hit.done() {
            well(hit, "destage", tarn(site, "destage"));
        }
        assert_eq!(latest(site, hit), Some(id(1)), "{}", hit.what);
        loses_memory(site);
        assert_eq!(begin(site).1, Some(id(2)), "{}", hit.what);
    });
}

pub(crate) fn ckpt_drain() {
    let drain = |site: &Site| command(site, "drain");
    sweep("ckpt drain", "tarn", two, drain, |site, hit| {
        let there = latest(site, hit);
        let old = there == Some(id(1)) && !hit.done();
        assert!(old || there == Some(id(2)), "{}: {there:?}", hit.what);
        well(hit, "verify", tarn(site, "verify"));
        well(hit, "drain", tarn(site, "drain"));
        assert_eq!(latest(site, hit), Some(id(2)), "{}", hit.what);
        // The node is lost.
        loses_memory(site);
        fs::remove_dir_all(site.path("tier")).unwrap();
        fs::create_dir(site.path("tier")).unwrap();
        assert_eq!(begin(site).1, Some(id(2)), "{}", hit.what);
    });
}
