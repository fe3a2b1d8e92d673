//! What this node has, for a run that may use all of it.

use std::io::Read;
use std::path::Path;
use tarn_base::cluster::{Cluster, Link};
use tarn_base::layout::StateDir;
use tarn_local::machine::{self, ClusterSpec, TierSpec};

/// Bytes of a nonce file that are read.
const MAX_NONCE: u64 = 4 << 10;

/// Whether this node sees the state folder as tarn does: a file in it has the word that tarn wrote.
pub(super) fn sees(state: &Path, (name, word): &(String, String)) -> Result<(), String> {
    let wrong = |why: String| {
        format!(
            "it does not see the state folder {} as tarn does: {why}. Every node must see the state folder, the workflow's folder and the external store at the same paths: put them on a file system that all nodes mount",
            state.display()
        )
    };
    if Path::new(name).file_name() != Some(name.as_ref()) {
        return Err(wrong(format!("`{name}` is no file's name")));
    }
    let mut found = Vec::new();
    let file = std::fs::File::open(state.join(name));
    let read = file.and_then(|f| f.take(MAX_NONCE).read_to_end(&mut found));
    read.map_err(|e| wrong(format!("{name}: {e}")))?;
    match found == word.as_bytes() {
        true => Ok(()),
        false => Err(wrong(format!("{name} has another content there"))),
    }
}

/// The node as a cluster of one.
pub(super) fn measure(
    node: &str,
    tiers: &[String],
    external: Link,
    state: &Path,
) -> Result<Cluster, String> {
    let said = |e: machine::MachineError| e.to_string();
    let tiers: Result<Vec<TierSpec>, _> = tiers.iter().map(|t| t.parse()).collect();
    let mut tiers = tiers.map_err(said)?;
    if tiers.is_empty() {
        tiers.push(machine::default_tier());
    }
    let mut found = machine::machine().map_err(said)?;
    found.name = node.to_owned();
    // The job's share of the node: a job step may be bound to fewer.
    let given = std::env::var("SLURM_CPUS_ON_NODE").ok();
    if let Some(cores) = given.and_then(|c| c.parse().ok()).filter(|c| *c > 0) {
        found.cores = cores;
    }
    let remembered = memory(state, node)?;
    let asked = tiers.clone();
    for instead in machine::stand_in(&mut tiers, &remembered.0) {
        let (tier, wanted, root) = (&instead.tier, &instead.wanted, &instead.root);
        tracing::warn!(
            "{root} stands in for tier {tier}, which this node does not have at {wanted}: {}",
            instead.why,
            root = root.display(),
            wanted = wanted.display(),
        );
    }
    let spec = ClusterSpec {
        nodes: 1,
        tiers: &tiers,
        external,
        state: &remembered,
    };
    let mut cluster = machine::cluster(&found, &spec).map_err(said)?;
    for n in &mut cluster.nodes {
        node.clone_into(&mut n.name);
        let sizes = asked.iter().map(|t| t.size);
        for (tier, asked) in n.tiers.iter_mut().zip(sizes) {
            // A size that does not fit is refused of a tier, not of what stands in for it.
            tier.capacity = tier.capacity.min(asked.unwrap_or(u64::MAX));
        }
    }
    Ok(cluster)
}

/// The folder of what is remembered of this node; made.
pub(super) fn memory(state: &Path, node: &str) -> Result<StateDir, String> {
    let folder = state.join("hosts").join(node);
    std::fs::create_dir_all(&folder)
        .map_err(|e| format!("it cannot make {}: {e}", folder.display()))?;
    Ok(StateDir(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_is_recognised_by_its_word() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("nonce"), "word").unwrap();
        let sees = |name: &str, word: &str| sees(dir.path(), &(name.into(), word.into()));
        assert_eq!(sees("nonce", "word"), Ok(()));
        for (name, word) in [
            ("nonce", "wor"),
            ("none", "word"),
            ("../nonce", "word"),
            ("", ""),
        ] {
            let why = sees(name, word).unwrap_err();
            assert!(
                why.contains("it does not see") && why.contains("all nodes mount"),
                "{why}"
            );
        }
    }
}
