//! The readers of bytes from others, each as a function of bytes. It panics if something does not hold that must, whatever the
//! bytes are; a reader refuses garbage with an error, which is no finding. `fuzz/` has libFuzzer look for such bytes,
//! `tests/made_up.rs` tries some on every test run. docs/internals/testing.md, "Fuzzing".

mod files;
mod messages;
mod tools;

/// Something that reads bytes.
pub struct Target {
    /// The name: `--target` of `scripts/fuzz.sh`.
    pub name: &'static str,
    /// Reads them.
    pub run: fn(&[u8]),
    /// Bytes to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    target("workflow-file", files::workflow, files::workflows),
    target("job-script", files::job, files::jobs),
    target("scripts", files::scripts, files::jobs),
    target("machine-file", files::machine, files::machines),
    target("workload", files::workload, files::workloads),
    target("manifest", files::manifest, files::manifests),
    target("units", files::units, files::unit_texts),
    target("names", files::names, files::name_texts),
    target("key-ring", files::key_ring, files::key_rings),
    target("checkpoint-manifest", files::checkpoint, nothing),
    target("slurm-conf", files::slurm_conf, files::slurm_confs),
    target("site-messages", messages::site, messages::site_seeds),
    target("worker-messages", messages::worker, messages::site_seeds),
    target("node-messages", messages::node, messages::site_seeds),
    target("local-packets", messages::local, messages::local_seeds),
    target("peer-messages", messages::peer, messages::peer_seeds),
    target("data-plane", messages::data, nothing),
    target("storage-plane", messages::storage, nothing),
    target("ipmctl", tools::ipmctl, tools::ipmctl_seeds),
    target("ndctl", tools::ndctl, tools::ndctl_seeds),
    target("kernel-tables", tools::kernel, tools::kernel_seeds),
];

const fn target(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, run, seeds }
}

/// The seeds of a target that begins with nothing.
fn nothing() -> Vec<Vec<u8>> {
    vec![Vec::new()]
}

/// The target of a name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Bytes as text, as files are read that must be UTF-8.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn owned(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
