//! libFuzzer's program for all targets: `$FUZZ_TARGET` selects one. Its seeds are written to the folder `$FUZZ_SEEDS` first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tarn_fuzz::{TARGETS, Target};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| {
        for target in TARGETS {
            eprintln!("{}", target.name);
        }
        std::process::exit(2);
    })
});

fn seeds() {
    let Some(folder) = std::env::var_os("FUZZ_SEEDS") else {
        return;
    };
    for (at, seed) in (TARGET.seeds)().iter().enumerate() {
        let path = std::path::Path::new(&folder).join(format!("seed{at}"));
        if let Err(e) = std::fs::write(&path, seed) {
            eprintln!("{}: {e}", path.display());
            std::process::exit(2);
        }
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    (TARGET.run)(bytes);
});
