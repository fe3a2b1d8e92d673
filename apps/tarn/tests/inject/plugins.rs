//! Verbs that become another program: with libraries that say what they are, and hold nothing.

use crate::calls::{injector, sweep};
use crate::common::{Site, tarn};
use crate::verbs::{of, well};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Puts them into a site: each is a file with its version.
pub(crate) fn install(site: &Site) {
    let version = env!("CARGO_PKG_VERSION");
    let text = |mark: &str| format!("{mark}={version}\n");
    site.write("plugins/libtarn.so", &text("tarn-libtarn-version"));
    let of_hdf5 = text("tarn-hdf5-plugin-version");
    site.write("plugins/hdf5/libh5fdtarn.so", &of_hdf5);
    let of_verbs = text("tarn-verbs-plugin-version");
    site.write("plugins/verbs/libtarnverbs.so", &of_verbs);
    // The storage peer.
    let peer = site.path("plugins/verbs/verbs-serve");
    std::os::unix::fs::symlink("/bin/true", peer).unwrap();
}

/// Of a command: they are those of the site.
pub(crate) fn with_plugins(site: &Site, command: &mut Command) {
    command
        .env("TARN_HDF5_PLUGIN", site.path("plugins/hdf5"))
        .env("TARN_VERBS_PLUGIN", site.path("plugins/verbs"))
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("TARN_SOCKET");
}

/// It makes the folder, if that is not there.
pub(crate) fn h5_exec() {
    let prepare = || {
        let site = Site::new("");
        install(&site);
        site
    };
    let command = |site: &Site| -> (PathBuf, Command) {
        let words = ["h5", "exec", "--folder", "./tier/new", "--"];
        let program = ["sh", "-c", "echo $HDF5_DRIVER_CONFIG > said"];
        let (folder, mut command) = of(site, &[&words[..], &program].concat());
        with_plugins(site, &mut command);
        (folder, command)
    };
    sweep("h5 exec", "tarn", prepare, command, |site, hit| {
        let is_run = site.path("said").exists();
        assert_eq!(is_run, hit.done(), "{}: {}", hit.what, hit.ran.err);
        if hit.how != crate::calls::How::Kill && !hit.done() {
            let err = &hit.ran.err;
            assert!(err.contains("os error"), "{}: no reason: {err}", hit.what);
        }
        let again = crate::common::Ran::of(command(site).1.output().unwrap());
        well(hit, "exec", again);
        let output = site.read("said");
        assert!(output.contains("tier/new"), "{}: {output}", hit.what);
        assert!(site.path("tier/new").is_dir(), "{}", hit.what);
        assert_eq!(fs::read_dir(site.path("tier")).unwrap().count(), 1);
    });
}

const STEP: &str = r#"
set -- $(cut -d ' ' -f 1 "$TARN_HOSTFILE")
at=$TARN_WORKFLOW_DIR
INJECT $at/exec 0 eio / tarn TARN exec $2 -- printenv TARN_NODE > $TARN_o/exec
export SLURMD_NODENAME=$1
INJECT $at/enter 0 eio / tarn TARN enter printenv TARN_NODE > $TARN_o/enter
"#;

/// A step's own command asks a helper to run another: `tarn exec` and `tarn enter` change no file of the machine.
#[test]
fn commands_in_a_step_write_nothing() {
    let Some(injector) = injector() else { return };
    let run = STEP
        .replace("INJECT", &injector.display().to_string())
        .replace("TARN ", &format!("{} ", tarn().display()));
    let flow = format!(
        "name = \"w\"\n[data.o]\ndest = \"out\"\n[[step]]\nname = \"s\"\nnodes = 2\nrun = '''{run}'''\nout = [\"o:single\"]\n"
    );
    let site = Site::new(&flow).with(&["--nodes", "2"]);
    let ran = site.run();
    if ran.code == Some(4) || ran.err.contains("namespaces") {
        eprintln!("SKIPPED: no namespaces: {}", ran.err);
        return;
    }
    ran.exits(0);
    for (verb, node) in [("exec", "node1\n"), ("enter", "node0\n")] {
        assert_eq!(site.read(&format!("out/{verb}")), node);
        assert_eq!(site.read(verb), "0\n", "calls of `tarn {verb}`");
    }
}
