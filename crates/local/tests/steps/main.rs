//! Steps, transfers and clean-up of the local world with real processes. This program is also the helper of the
//! steps that it runs, and `exec`; so it brings its own small harness.

mod bench;
mod crashes;
mod far;
mod moving;
mod multi;
mod running;
mod whole;

use std::ffi::OsString;
use std::panic::catch_unwind;
use std::process::ExitCode;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(a) if a == tarn_local::HELPER_ARGUMENT => tarn_local::runner::main(),
        Some(a) if a == "exec" => tarn_local::exec::main(arguments),
        Some(a) if a == crashes::VICTIM => crashes::victim(arguments),
        first => run_all(first.into_iter().chain(arguments).collect()),
    }
}

fn run_all(arguments: Vec<OsString>) -> ExitCode {
    let tests: Vec<Test> = [
        running::TESTS,
        moving::TESTS,
        multi::TESTS,
        crashes::TESTS,
        far::TESTS,
        whole::TESTS,
    ]
    .concat();
    if arguments.iter().any(|a| a == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filter = arguments
        .iter()
        .filter_map(|a| a.to_str())
        .find(|a| !a.starts_with('-'));
    let chosen: Vec<&Test> = tests
        .iter()
        .filter(|(n, _)| filter.is_none_or(|f| n.contains(f)))
        .collect();
    println!("\nrunning {} tests", chosen.len());
    let mut failed = 0;
    for (name, test) in &chosen {
        let ok = catch_unwind(test).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        failed += usize::from(!ok);
    }
    let passed = chosen.len() - failed;
    let filtered = tests.len() - chosen.len();
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out\n"
    );
    ExitCode::from(u8::from(failed > 0))
}
