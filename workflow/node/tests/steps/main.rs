//! Steps, transfers and clean-up of the local world with real processes. This program is also the helper of the
//! steps that it runs, and `exec`; so it has a `main` of its own.

mod bench;
mod crashes;
mod far;
mod hints;
mod messages;
mod moving;
mod multi;
mod opened;
mod running;
mod sealed;
mod shell;
mod sockets;
mod tmp;
mod whole;

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
        Some(a) if a == "enter" => tarn_node::exec::enter(arguments),
        Some(a) if a == crashes::VICTIM => crashes::victim(arguments),
        _ => run_all(),
    }
}

fn run_all() -> ExitCode {
    let tests = [
        running::TESTS,
        sealed::TESTS,
        shell::TESTS,
        hints::TESTS,
        sockets::TESTS,
        tmp::TESTS,
        moving::TESTS,
        multi::TESTS,
        opened::TESTS,
        crashes::TESTS,
        far::TESTS,
        whole::TESTS,
    ];
    let trial = |&(name, test): &Test| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let mut arguments = Arguments::from_args();
    // Tests send signals to this process and look for what is left of its children.
    arguments.test_threads = Some(1);
    let trials = tests.concat().iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
