//! The trees that are sent. Content and sizes follow from a seed: the same everywhere.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use tarn_types::random::Random;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Parts of the decomposed case.
const RANKS: u32 = 8;
/// Times that were written.
const TIMES: u32 = 24;
/// Files of a part's mesh, with their sizes in KiB.
const MESH: [(&str, u64); 6] = [
    ("points", 9_000),
    ("faces", 14_000),
    ("owner", 3_400),
    ("neighbour", 3_300),
    ("cellProcAddressing", 1_100),
    ("boundary", 3),
];
/// Fields of a time: a vector has three times a scalar's bytes.
const FIELDS: [(&str, u64); 7] = [
    ("U", 1_650),
    ("phi", 1_700),
    ("p", 550),
    ("k", 550),
    ("epsilon", 550),
    ("nut", 550),
    ("yPlus", 40),
];
/// Results of function objects in each time, some KiB each.
const RESULTS: u32 = 10;

/// Within 30 % of `size`.
fn about(random: &mut Random, size: u64) -> u64 {
    size * (70 + random.below(61)) / 100 + random.below(97)
}

fn write(path: &Path, size: u64, seeded: &mut Random) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    // A period that is no multiple of a page, and differs from file to file.
    let block: Vec<u8> = (0..131_101).map(|_| seeded.bits() as u8).collect();
    let mut left = size;
    while left > 0 {
        let n = left.min(block.len() as u64);
        file.write_all(&block[..n as usize])?;
        left -= n;
    }
    Ok(())
}

/// 4 files of 1 GiB, or so many percent of that.
pub(super) fn large(root: &Path, percent: u32) -> std::io::Result<()> {
    let mut seeded = Random::new(1);
    let size = 1024 * MIB / 100 * u64::from(percent);
    (0..4).try_for_each(|n| write(&root.join(format!("file{n}")), size, &mut seeded))
}

/// The shape of a decomposed OpenFOAM case.
pub(super) fn openfoam(root: &Path, percent: u32) -> std::io::Result<()> {
    let mut seeded = Random::new(2);
    let scaled = |kib: u64| (kib * KIB * u64::from(percent) / 100).max(1);
    std::fs::create_dir(root.join("system"))?;
    for name in ["controlDict", "fvSchemes", "fvSolution", "decomposeParDict"] {
        write(&root.join("system").join(name), 2 * KIB, &mut seeded)?;
    }
    for rank in 0..RANKS {
        let rank = root.join(format!("processor{rank}"));
        let mesh = rank.join("constant/polyMesh");
        std::fs::create_dir_all(&mesh)?;
        for (name, kib) in MESH {
            let size = about(&mut seeded, scaled(kib));
            write(&mesh.join(name), size, &mut seeded)?;
        }
        for time in 1..=TIMES {
            let time = rank.join(format!("{}", f64::from(time) * 0.05));
            std::fs::create_dir_all(time.join("uniform"))?;
            write(&time.join("uniform/time"), 900, &mut seeded)?;
            for (name, kib) in FIELDS {
                let size = about(&mut seeded, scaled(kib));
                write(&time.join(name), size, &mut seeded)?;
            }
            for result in 0..RESULTS {
                let size = KIB + seeded.below(20 * KIB);
                write(&time.join(format!("probe{result}.dat")), size, &mut seeded)?;
            }
        }
    }
    Ok(())
}
