//! The files that `tarn slurm` writes: for Slurm, in an image of its host, and of its history.

use crate::calls::sweep;
use crate::common::{Ran, Site};
use crate::controller::{Controller, ENDED, install_slurm, with_slurm, write_accounting};
use crate::verbs::{of, tree, well};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

const OFF: &str = "etc/slurm/tarn.off";

/// Slurm's files as a site has them.
fn host() -> Site {
    let site = Site::new("");
    site.write("etc/slurm/slurm.conf", "ClusterName=here\n# the end\n");
    site.write("etc/slurm/plugstack.conf", "optional /usr/lib/other.so\n");
    site.write("usr/lib/spank_tarn.so", "a library");
    site.write("usr/bin/tarn", "a program");
    let conf = site.path("etc/slurm/slurm.conf");
    fs::set_permissions(conf, fs::Permissions::from_mode(0o640)).unwrap();
    site
}

fn install(site: &Site, more: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = ["slurm", "install", "--root"].map(str::to_owned).into();
    all.push(site.path("").display().to_string());
    let rest = "--conf /etc/slurm --program /usr/bin/tarn --plugin /usr/lib/spank_tarn.so";
    all.extend(
        rest.split(' ')
            .chain(more.iter().copied())
            .map(str::to_owned),
    );
    all
}

fn off(site: &Site, on: bool) -> Vec<String> {
    let conf = site.path("etc/slurm").display().to_string();
    let words = match on {
        true => vec!["slurm", "on", "--conf", &conf],
        false => vec!["slurm", "off", "--conf", &conf, "for", "repairs"],
    };
    words.into_iter().map(str::to_owned).collect()
}

fn command(site: &Site, words: &[String]) -> (PathBuf, std::process::Command) {
    of(site, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn tarn(site: &Site, words: &[String]) -> Ran {
    Ran::of(command(site, words).1.output().unwrap())
}

fn files(site: &Site) -> BTreeMap<PathBuf, Vec<u8>> {
    tree(&site.path("etc"))
}

/// Each of the files that count is as it was or as it is to be. Slurm does not read files that begin with a dot, and the next
/// command removes them (see [`nothing_is_unfinished`]).
fn each_is_one_of(
    now: &BTreeMap<PathBuf, Vec<u8>>,
    both: [&BTreeMap<PathBuf, Vec<u8>>; 2],
    what: &str,
) {
    let is_read = |path: &&PathBuf| {
        !path
            .file_name()
            .unwrap()
            .as_encoded_bytes()
            .starts_with(b".")
    };
    let all: std::collections::BTreeSet<_> = both
        .iter()
        .flat_map(|files| files.keys())
        .chain(now.keys().filter(is_read))
        .collect();
    for path in all {
        let now = now.get(path);
        let one = both.iter().any(|files| files.get(path) == now);
        assert!(one, "{what}: {}", path.display());
    }
}

/// After the next command that ends well.
fn nothing_is_unfinished(site: &Site, what: &str) {
    let is_hidden = |path: &&PathBuf| {
        let name = path.file_name().unwrap();
        name.as_encoded_bytes().starts_with(b".")
    };
    let now = files(site);
    let left: Vec<_> = now.keys().filter(is_hidden).collect();
    assert!(left.is_empty(), "{what}: {left:?}");
}

pub(crate) fn slurm_install() {
    let before = files(&host());
    // The image's folder is not among what is written.
    let after = {
        let site = host();
        tarn(&site, &install(&site, &[])).exits(0);
        files(&site)
    };
    let write = |site: &Site| command(site, &install(site, &[]));
    sweep("slurm install", "tarn", host, write, |site, hit| {
        let now = files(site);
        each_is_one_of(&now, [&before, &after], &hit.what);
        assert!(!hit.done() || now == after, "{}: {now:?}", hit.what);
        well(hit, "install", tarn(site, &install(site, &[])));
        nothing_is_unfinished(site, &hit.what);
        assert_eq!(files(site), after, "{}", hit.what);
        well(hit, "check", tarn(site, &install(site, &["--check"])));
        let conf = fs::metadata(site.path("etc/slurm/slurm.conf")).unwrap();
        assert_eq!(conf.permissions().mode() & 0o777, 0o640, "{}", hit.what);
    });
}

pub(crate) fn slurm_install_remove() {
    let prepare = || {
        let site = host();
        tarn(&site, &install(&site, &[])).exits(0);
        tarn(&site, &off(&site, false)).exits(0);
        site
    };
    let before = files(&prepare());
    let after = files(&host());
    let remove = |site: &Site| command(site, &install(site, &["--remove"]));
    let name = "slurm install --remove";
    sweep(name, "tarn", prepare, remove, |site, hit| {
        let now = files(site);
        each_is_one_of(&now, [&before, &after], &hit.what);
        assert!(!hit.done() || now == after, "{}: {now:?}", hit.what);
        well(hit, "remove", tarn(site, &install(site, &["--remove"])));
        nothing_is_unfinished(site, &hit.what);
        assert_eq!(files(site), after, "{}", hit.what);
    });
}

pub(crate) fn slurm_off_and_on() {
    let off_words = |site: &Site| command(site, &off(site, false));
    sweep("slurm off", "tarn", host, off_words, |site, hit| {
        let there = fs::read_to_string(site.path(OFF)).ok();
        let whole = there.as_deref() == Some("for repairs\n");
        assert!(whole || (there.is_none() && !hit.done()), "{}", hit.what);
        well(hit, "off", tarn(site, &off(site, false)));
        nothing_is_unfinished(site, &hit.what);
        assert_eq!(site.read(OFF), "for repairs\n", "{}", hit.what);
        assert_eq!(files(site).len(), 3, "{}", hit.what);
    });
    let prepare = || {
        let site = host();
        tarn(&site, &off(&site, false)).exits(0);
        site
    };
    let on = |site: &Site| command(site, &off(site, true));
    sweep("slurm on", "tarn", prepare, on, |site, hit| {
        let there = site.path(OFF).exists();
        assert!(!there || !hit.done(), "{}: it is still off", hit.what);
        well(hit, "on", tarn(site, &off(site, true)));
        nothing_is_unfinished(site, &hit.what);
        assert_eq!(files(site), files(&host()), "{}", hit.what);
    });
}

/// A site with a history.
struct Past {
    /// Ends before the folder.
    _controller: Controller,
    site: Site,
}

impl Past {
    fn new() -> Self {
        let site = Site::new("");
        install_slurm(&site);
        write_accounting(&site);
        Self {
            _controller: Controller::start(&site),
            site,
        }
    }

    fn export(&self, folder: &str) -> (PathBuf, Command) {
        let words = ["slurm", "export", folder, "--since", ENDED];
        let (path, mut command) = of(&self.site, &words);
        with_slurm(&self.site, &mut command);
        (path, command)
    }

    fn exported(&self, folder: &str) -> Ran {
        Ran::of(self.export(folder).1.output().unwrap())
    }
}

/// Each file is there whole, or not at all. If one is there, the next command names it and leaves it; another folder is free.
pub(crate) fn slurm_export() {
    let none = BTreeMap::new();
    let after = {
        let past = Past::new();
        past.exported("twin").exits(0);
        tree(&past.site.path("twin"))
    };
    assert_eq!(after.len(), 2, "{:?}", after.keys());
    let export = |past: &Past| past.export("twin");
    sweep("slurm export", "tarn", Past::new, export, |past, hit| {
        let files = |folder| tree(&past.site.path(folder));
        let now = files("twin");
        each_is_one_of(&now, [&none, &after], &hit.what);
        let is_whole = now == after || !hit.done();
        assert!(is_whole, "{}: {:?}", hit.what, now.keys());
        let again = past.exported("twin");
        match now.keys().next() {
            None => {
                well(hit, "export", again);
                assert_eq!(files("twin"), after, "{}", hit.what);
            }
            Some(first) => {
                let is_named = again.err.contains(&format!("twin/{}", first.display()));
                let is_refused = again.code != Some(0) && is_named;
                assert!(is_refused, "{}: {:?}: {}", hit.what, again.code, again.err);
                assert_eq!(files("twin"), now, "{}", hit.what);
            }
        }
        well(hit, "export to another folder", past.exported("other"));
        assert_eq!(files("other"), after, "{}", hit.what);
    });
}
