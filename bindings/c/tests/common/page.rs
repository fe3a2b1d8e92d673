//! Programs that pages of docs show.

use super::{compiler, output_of, source};
use std::path::{Path, PathBuf};

/// The first program in C that a page of docs shows, compiled in a folder.
pub(crate) fn of_page(page: &str, folder: &Path) -> PathBuf {
    let page = std::fs::read_to_string(source("../../docs").join(page)).unwrap();
    let (_, block) = page.split_once("```c\n").unwrap();
    let file = folder.join("page.c");
    std::fs::write(&file, block.split_once("```").unwrap().0).unwrap();
    let program = folder.join("page");
    let file = file.to_str().unwrap();
    output_of(&mut compiler("cc", &["-std=c11"], &[file], &program));
    program
}
