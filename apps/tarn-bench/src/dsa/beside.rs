//! Queue pairs beside fio's engines, measured in turns.

use super::{
    Args, BenchFigure, DsaCase, Ground, LOCAL, MIB, MemoryQueueLoad, fio, median, name, places,
};
use std::time::Instant;
use tarn_partitions::Op;

/// fio does so many times the requests of a round: it begins each with a file that it has not mapped yet.
const MORE: u64 = 4;

/// # Errors
/// When there is no space, or fio fails.
pub(super) fn measure(
    args: &Args,
    case: DsaCase,
    engine: &str,
    ground: &Ground<'_>,
) -> anyhow::Result<BenchFigure> {
    let shape = case.shape(args);
    let bytes = args.mib * MIB;
    let file = ground.folder.join("fio");
    let fill: Vec<u8> = (0..LOCAL).map(|at| at as u8).collect();
    let mut whole = std::fs::File::create(&file)?;
    for _ in 0..args.mib {
        std::io::Write::write_all(&mut whole, &fill)?;
    }
    let reads = shape.op == Op::Read;
    let mut options = vec![
        format!("--ioengine={engine}"),
        format!("--filename={}", file.display()),
        format!("--rw={}", if reads { "randread" } else { "randwrite" }),
        format!("--bs={}", shape.bytes),
        format!("--size={bytes}"),
        format!("--io_size={}", MORE * args.requests * shape.bytes),
        // Nothing that it would do besides.
        "--norandommap=1".to_owned(),
        "--gtod_reduce=1".to_owned(),
        "--invalidate=0".to_owned(),
    ];
    match engine {
        "io_uring" => options.push("--iodepth=32".to_owned()),
        // Else each store would go through the caches, and be flushed.
        "libpmem" => options.push("--direct=1".to_owned()),
        _ => {}
    }
    let places = places(args, shape.bytes, bytes);
    let mut hands = MemoryQueueLoad::new(shape, &ground.partition, 0, bytes, places)?;
    let (mut ours, mut beside) = (Vec::new(), Vec::new());
    for round in 0..args.warm + args.rounds {
        let theirs = fio::rate(reads, &options)? / 1e6;
        let begun = Instant::now();
        hands.round()?;
        let took = begun.elapsed().as_secs_f64();
        if round >= args.warm {
            beside.push(theirs);
            ours.push(args.requests as f64 / took / 1e6);
        }
    }
    std::fs::remove_file(file)?;
    Ok(BenchFigure {
        name: name(args, case, 1, shape, &ground.partition),
        value: median(&ours),
        unit: "M/s",
        against: Some((format!("fio's {engine} engine"), median(&beside))),
    })
}
