//! `nodes PROGRAM`: starts a program on each node of the allocation as tarn starts tarnd, prints the nodes that have
//! started and how long the allocation lasts, and ends them.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use tarn_proto::node::NodeStartInput;
use tarn_slurm::{SlurmAllocation, SlurmError, SrunLaunch, SrunNodes};

fn main() -> ExitCode {
    match run(&std::env::args().nth(1).unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(program: &str) -> Result<(), SlurmError> {
    let Some(allocation) = SlurmAllocation::here()? else {
        let what = "this is no allocation".to_owned();
        return Err(SlurmError::Environment { what });
    };
    match allocation.time_left()? {
        Some(left) => println!("seconds left: {}", left.as_secs()),
        None => println!("no end"),
    }
    let start = NodeStartInput {
        keys: "keys".into(),
        run: "r1".into(),
        timeouts: (1, 2),
        transport: "tcp".into(),
        borrow: None,
        data: (1, [1; 32]),
    };
    let launch = SrunLaunch {
        program: Path::new(program),
        words: &[],
        start: &start,
        name: "example",
        timeout: Duration::from_secs(20),
    };
    let (nodes, started) = SrunNodes::start(&allocation, &launch)?;
    for one in started {
        println!("{} started with process {}", one.node, one.control);
    }
    drop(nodes);
    Ok(())
}
