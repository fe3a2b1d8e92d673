//! A simulation that counts: `counts STEPS` continues from its newest version, or from nothing, to that step. Started by srun, each task is
//! a rank; the environment sets where versions are stored (docs/guide/checkpoints.md). It verifies the restored cells, and prints.
//!
//! Every second version is copied to another node. When one is there, a file `replicated` in the working folder names it.

use std::process::ExitCode;
use std::time::Duration;
use tarn_checkpoint::{
    CheckpointError, CheckpointErrorCode, CheckpointSession, Options, PersistenceLevel, Properties,
    Replicate,
};

const CELLS: usize = 100_000;

/// The content of a rank's cell in a step.
fn cell(rank: u32, step: u64, number: usize) -> u64 {
    (step << 40 | u64::from(rank) << 32 | number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn number(variable: &str, or: u32) -> u32 {
    let number = std::env::var(variable).ok().and_then(|v| v.parse().ok());
    number.unwrap_or(or)
}

fn run(steps: u64) -> Result<(), CheckpointError> {
    let (rank, ranks) = (number("SLURM_PROCID", 0), number("SLURM_NTASKS", 1));
    let mut session = CheckpointSession::begin(Options {
        rank,
        ranks,
        replicate: Replicate::Copies(1),
        replicate_every: 2,
        timeout: Duration::from_secs(30),
        ..Options::default()
    })?;
    session.create("step", 8, 8, Properties::default())?;
    session.create("cells", CELLS * 8, 8, Properties::default())?;
    let from = session.restart(None)?;
    let mut step = session.values::<u64>("step")?[0];
    if let Some(id) = from {
        let cells = session.values::<u64>("cells")?;
        let whole = (0..).zip(&*cells).all(|(n, c)| *c == cell(rank, step, n));
        println!(
            "rank {rank}: version {id}, step {step}, {}",
            if whole { "whole" } else { "MIXED" }
        );
    }
    while step < steps {
        step += 1;
        session.values::<u64>("step")?[0] = step;
        let cells = session.values::<u64>("cells")?;
        (0..).zip(cells).for_each(|(n, c)| *c = cell(rank, step, n));
        std::thread::sleep(Duration::from_millis(50));
        let id = session.commit()?.id;
        if id.number % 2 == 0 && rank == 0 {
            session.wait(id, PersistenceLevel::Replicated, None)?;
            let written = std::fs::write("replicated", format!("{id} {step}"));
            written.map_err(|e| {
                CheckpointError::new(
                    CheckpointErrorCode::Io,
                    format!("cannot write replicated: {e}"),
                )
            })?;
        }
    }
    session.end()
}

fn main() -> ExitCode {
    let steps = std::env::args().nth(1).and_then(|a| a.parse().ok());
    let Some(steps) = steps else {
        eprintln!("usage: counts STEPS");
        return ExitCode::from(2);
    };
    match run(steps) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("counts: {fault}");
            ExitCode::FAILURE
        }
    }
}
