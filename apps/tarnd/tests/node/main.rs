//! Real `tarnd --node` processes, driven as `tarn run` drives them. This program is also the `tarn` beside those tarnds, through
//! which steps are started, and a client that can be killed; so it has a `main` of its own.

mod bed;
mod ends;
mod messages;
mod peers;
mod pieces;
mod runs;
mod sealed;
mod strangers;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(a) if a == tarn_node::HELPER_ARGUMENT => {
            tarn_node::runner::main(|| Box::new(tarn_mover::Trees::new()))
        }
        Some(a) if a == "exec" => tarn_node::exec::main(arguments),
        Some(a) if a == ends::CLIENT => ends::client(),
        _ => run_all(),
    }
}

fn run_all() -> ExitCode {
    let tests = [
        runs::TESTS,
        ends::TESTS,
        messages::TESTS,
        peers::TESTS,
        pieces::TESTS,
        sealed::TESTS,
        strangers::TESTS,
    ];
    let trial = |&(name, test): &Test| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let mut arguments = Arguments::from_args();
    // Tests send signals to this process and look for leftovers of its children.
    arguments.test_threads = Some(1);
    let trials = tests.concat().iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
