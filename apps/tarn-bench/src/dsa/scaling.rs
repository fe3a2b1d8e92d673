//! A table over partitions, which are used as one, and threads.

use super::{Args, BenchFigure, DsaCase, Ground, MIB, median, populated};
use tarn_partitions::Partition;
use tarn_types::units::Bytes;

/// Bytes of a block.
const BLOCK: u64 = MIB;

/// # Errors
/// When there is no space.
pub(super) fn measure(args: &Args, ground: &Ground<'_>) -> anyhow::Result<Vec<BenchFigure>> {
    let mut figures = Vec::new();
    let shape = DsaCase::Scaling.shape(args);
    for count in [1, 2, 4, 8] {
        // Whole blocks.
        let bytes = (args.mib * MIB).div_ceil(count).next_multiple_of(BLOCK);
        let names: Vec<_> = (0..count)
            .map(|n| ground.folder.join(format!("part-{count}-{n}")))
            .collect();
        for name in &names {
            Partition::create_units(name, bytes, 0, Vec::new())?;
        }
        let partition = Partition::open_cyclic(&names, BLOCK, populated())?;
        let doubled = std::iter::successors(Some(1), |threads| Some(threads * 2));
        for threads in doubled.take_while(|threads| *threads <= args.threads) {
            let both = ground.compared(args, shape, threads, &partition)?;
            figures.push(BenchFigure {
                name: format!(
                    "scaling, {count} partitions, {threads} threads, read {} by {} at random places, {} requests a doorbell",
                    Bytes(args.mib * MIB),
                    Bytes(shape.bytes),
                    shape.batch
                ),
                value: median(&both[0]),
                unit: "M/s",
                against: Some((DsaCase::Scaling.plain().into(), median(&both[1]))),
            });
        }
        drop(partition);
        for name in &names {
            Partition::delete(name)?;
        }
    }
    Ok(figures)
}
