//! Copies to a medium and back, beside memcpy.

use super::{Args, MIB};
use crate::figure::{BenchFigure, median};
use crate::scratch::ScratchFolder;
use anyhow::{Context, ensure};
use std::ops::Range;
use std::time::Instant;
use tarn_media::{MappedFile, MappedPart};
use tarn_ports::{Medium, MediumWindow, ReadableMedium};
use tarn_types::units::Bytes;

/// Bytes that are written and checksummed at once, as a checkpoint has a checksum for each.
const CHUNK: usize = 256 << 10;

pub(super) fn copy(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let scratch = ScratchFolder::new(&args.dir)?;
    let threads = args.threads as usize;
    let each = usize::try_from(args.mib * MIB).context("too much for this machine")?;
    let all = each as u64 * u64::from(args.threads);
    // Touched before, as a program's memory is.
    let mut memory: Vec<Vec<u8>> = (0..threads).map(|n| vec![filled(n); each]).collect();
    let make = |name: &str| MappedFile::create(&scratch.path().join(name), all);
    let (mut ours, mut plain) = (make("ours")?, make("plain")?);
    let parts: Vec<Range<u64>> = (0..threads as u64)
        .map(|n| n * each as u64..(n + 1) * each as u64)
        .collect();
    let power_fail = ours.promises().power_fail;
    let mut seconds = [const { Vec::new() }; 4];
    for round in 0..=args.rounds {
        let mut windows = ours.windows(&parts)?;
        let mut plains = plain.windows(&parts)?;
        let took = [
            together(&mut windows, &mut memory, |window, memory| {
                save(window, memory)
            })?,
            together(&mut plains, &mut memory, |window, memory| {
                window.bytes().copy_from_slice(memory);
                Ok(())
            })?,
            together(&mut plains, &mut memory, |window, memory| {
                memory.copy_from_slice(window.bytes());
                Ok(())
            })?,
            {
                // The check at the end looks at the bytes that this brings back.
                memory.iter_mut().for_each(|m| m.fill(0));
                together(&mut windows, &mut memory, |window, memory| {
                    load(window, memory)
                })?
            },
        ];
        // The first is for warming up.
        if round > 0 {
            seconds
                .iter_mut()
                .zip(took)
                .for_each(|(all, took)| all.push(took));
        }
    }
    for (n, memory) in memory.iter().enumerate() {
        ensure!(
            memory.iter().all(|b| *b == filled(n)),
            "what came back is not what was saved"
        );
    }
    let rate = |seconds: &[f64]| all as f64 / median(seconds) / 1e9;
    let figure = |what: &str, ours: &[f64], plain: &[f64]| BenchFigure {
        name: format!(
            "{what}, {threads} threads, {} each, {power_fail:?}",
            Bytes(each as u64)
        ),
        value: rate(ours),
        unit: "GB/s",
        against: Some(("memcpy".into(), rate(plain))),
    };
    let [save, copied, back, load] = &seconds;
    Ok(vec![
        figure("copy with checksums, made persistent", save, copied),
        figure("copy back with checksums", load, back),
    ])
}

/// The byte that fills a thread's memory.
fn filled(thread: usize) -> u8 {
    (thread % 255) as u8 + 1
}

fn save(window: &mut MappedPart<'_>, memory: &mut [u8]) -> anyhow::Result<()> {
    let mut at = 0;
    for chunk in memory.chunks(CHUNK) {
        std::hint::black_box(window.write(at, chunk)?);
        at += chunk.len() as u64;
    }
    Ok(window.persist()?)
}

fn load(window: &mut MappedPart<'_>, memory: &mut [u8]) -> anyhow::Result<()> {
    let mut at = 0;
    for chunk in memory.chunks_mut(CHUNK) {
        std::hint::black_box(window.read(at, chunk)?);
        at += chunk.len() as u64;
    }
    Ok(())
}

/// Seconds until all threads are done.
fn together<'w>(
    windows: &mut [MappedPart<'w>],
    memory: &mut [Vec<u8>],
    work: impl Fn(&mut MappedPart<'w>, &mut [u8]) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<f64> {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let pairs = windows.iter_mut().zip(memory);
        let threads: Vec<_> = pairs
            .map(|(window, memory)| scope.spawn(|| work(window, memory)))
            .collect();
        threads.into_iter().try_for_each(|t| {
            t.join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a thread has died")))
        })
    })?;
    Ok(begun.elapsed().as_secs_f64())
}
