//! The proxies of examples/checkpoints, made as their users make them; the tests of tarn use this too.

use super::linked::{library, output_of, source};
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether a compiler is here; says so if not.
pub(crate) fn here(compiler: &str) -> bool {
    let mut version = Command::new(compiler);
    version.arg("--version").stdout(Stdio::null());
    let found = version.stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED: no {compiler}");
    }
    found
}

/// Makes some of them in a folder; false where what that takes is not here.
pub(crate) fn make(names: &[&str], to: &Path) -> bool {
    let compilers = ["make", "cc", "c++", "gfortran"];
    if !compilers.iter().all(|compiler| here(compiler)) {
        return false;
    }
    let library = library();
    let library = library.display();
    let libs = format!("-L{library} -Wl,--disable-new-dtags,-rpath,{library} -ltarn");
    let module = source("../fortran/phx.f90");
    output_of(
        Command::new("make")
            .arg("-C")
            .arg(source("../../examples/checkpoints"))
            .arg(format!("TO={}", to.display()))
            .arg(format!("TARN_CFLAGS=-I{}", source("include").display()))
            .arg(format!("TARN_LIBS={libs}"))
            .arg(format!("TARN_FORTRAN={}", module.display()))
            .args(names.iter().map(|name| to.join(name))),
    );
    true
}
