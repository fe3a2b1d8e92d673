//! The program that is tested.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static TARN: LazyLock<PathBuf> = LazyLock::new(|| {
    match (
        option_env!("CARGO_BIN_EXE_tarn"),
        option_env!("CARGO_BIN_EXE_tarn-bench"),
    ) {
        (Some(tarn), _) => tarn.into(),
        (None, Some(beside)) => Path::new(beside).with_file_name("tarn"),
        (None, None) => unreachable!("only tests of tarn and of tarn-bench use this"),
    }
});

/// The file of `tarn`: built for this crate's tests, or beside what is.
pub(crate) fn tarn() -> &'static Path {
    &TARN
}
