//! Files: of users, of administrators, of tarn itself.

use crate::{owned, text};
use std::io;
use std::path::Path;
use tarn_seal::ring::KeyRing;
use tarn_slurm::conf::{includes, value, with, without};
use tarn_spec::site::{ReadOptions, parse_machine, read_workload};
use tarn_spec::{SbatchScript, parse, parse_job, parse_scripts, step_jobs};
use tarn_types::manifest::Manifest;
use tarn_types::named::{NamedDataset, Whose};
use tarn_types::units::{parse_rate, parse_size, parse_time};

const FOLDER: &str = "/home/ann/flow";
const FOAM: &str = include_str!("../../../examples/openfoam/workflow.toml");
const MONTAGE: &str = include_str!("../../../examples/montage/workflow.toml");
const JOB: &str = "#!/bin/bash\n#SBATCH -N 2 -n 4 --time=1:00 --array=1,3-5%2 --mem=4G\n#TARN name = \"foam\"\n#TARN data.case = { scatter = \"p{rank}\", size = \"4 GiB\", keep = \"2h\" }\n#TARN [[step]]\n#TARN inout = [\"case:scatter\"]\n#TARN in = [\"mesh\"]\ntrue\n";
const MACHINE: &str = include_str!("../../../examples/machines/eight-nodes.toml");
const TRACE: &str = "; Version: 2.2\n; MaxNodes: 4\n1 0 10 60 4 -1 -1 4 120 -1 1 1 1 1 1 1 -1 -1\n2 5 0 30 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1\n";

/// The jobs of a workflow are read back, where jobs can do it.
pub(crate) fn workflow(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let Ok(parsed) = parse("w.toml", text, Path::new(FOLDER)) else {
        return;
    };
    let Ok(jobs) = step_jobs(&parsed.workflow) else {
        return;
    };
    for job in &jobs {
        let script = SbatchScript {
            name: "job",
            text: &job.script,
        };
        let read = parse_job(&script, Path::new("/elsewhere"), false);
        let read = read.unwrap_or_else(|why| panic!("{:?}\n{}", why.problems(), job.script));
        assert_eq!(read.map(|job| job.is_alone), Some(false), "{}", job.script);
    }
}

pub(crate) fn workflows() -> Vec<Vec<u8>> {
    owned(&[FOAM, MONTAGE])
}

pub(crate) fn job(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let script = SbatchScript { name: "job", text };
    for chained in [false, true] {
        if let Err(rejected) = parse_job(&script, Path::new(FOLDER), chained) {
            assert!(!rejected.problems().is_empty());
        }
    }
}

pub(crate) fn jobs() -> Vec<Vec<u8>> {
    owned(&[JOB])
}

/// Two scripts of one workflow: the bytes, divided at the first NUL.
pub(crate) fn scripts(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let texts = text.split('\0').take(4).enumerate();
    let named: Vec<(String, &str)> = texts.map(|(at, text)| (format!("{at}.sh"), text)).collect();
    let scripts: Vec<SbatchScript<'_>> = named
        .iter()
        .map(|(name, text)| SbatchScript { name, text })
        .collect();
    let _ = parse_scripts(&scripts, Path::new(FOLDER));
}

pub(crate) fn machine(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        let _ = parse_machine("cluster.toml", text);
    }
}

pub(crate) fn machines() -> Vec<Vec<u8>> {
    owned(&[MACHINE])
}

/// A workload on a small machine; files that it names are not there.
pub(crate) fn workload(bytes: &[u8]) {
    let machine = parse_machine("cluster.toml", MACHINE);
    let machine = machine.unwrap_or_else(|why| panic!("{:?}", why.problems()));
    let named = Path::new("/workload");
    let read = |path: &Path| match path == named {
        true => Ok(bytes.to_vec()),
        false => Err(io::ErrorKind::NotFound.into()),
    };
    let _ = read_workload(named, &machine, &ReadOptions::default(), &read);
}

pub(crate) fn workloads() -> Vec<Vec<u8>> {
    owned(&[TRACE, FOAM])
}

/// A manifest is written as it was read.
pub(crate) fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::decode(bytes) {
        let again = Manifest::decode(&manifest.encode());
        assert_eq!(again.ok().as_ref(), Some(&manifest));
    }
}

pub(crate) fn manifests() -> Vec<Vec<u8>> {
    vec![Manifest::default().encode()]
}

pub(crate) fn units(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let _ = (parse_size(text), parse_rate(text), parse_time(text));
    let _ = tarn_memory_modes::parse_capacity(text);
}

pub(crate) fn unit_texts() -> Vec<Vec<u8>> {
    owned(&["400 GiB", "1.5GB", "10m", "1h30m", "2 GB/s", "25gbit"])
}

/// The name of a dataset or an owner is written as it was read.
pub(crate) fn names(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(named) = text.parse::<NamedDataset>() {
        assert_eq!(named.to_string(), text);
    }
    if let Ok(whose) = text.parse::<Whose>() {
        assert_eq!(whose.to_string(), text);
    }
}

pub(crate) fn name_texts() -> Vec<Vec<u8>> {
    owned(&["foam/mesh", "alice/foam/mesh", "@climate/forcing"])
}

pub(crate) fn key_ring(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        let _ = KeyRing::parse(text);
    }
}

pub(crate) fn key_rings() -> Vec<Vec<u8>> {
    owned(&[
        "# tarn keys\n1 0123456789abcdef 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n",
    ])
}

/// The objects in an arena's slot.
pub(crate) fn checkpoint(bytes: &[u8]) {
    let _ = tarn_checkpoint_core::RankManifest::decode(bytes, 1 << 30);
}

/// Lines that are written into Slurm's files can be taken out again.
pub(crate) fn slurm_conf(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let _ = (value(text, "BurstBufferType"), includes(text).count());
    let Ok(before) = without(text) else { return };
    let Ok(written) = with(&before, "A=1\n") else {
        return;
    };
    let after = without(&written).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(after.trim_end_matches('\n'), before.trim_end_matches('\n'));
}

pub(crate) fn slurm_confs() -> Vec<Vec<u8>> {
    owned(&["ClusterName=x\nInclude nodes.conf\nBurstBufferType=burst_buffer/lua # ours\n"])
}
