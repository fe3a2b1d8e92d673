//! Man pages and completions of a program, from the same definition as its help, so that they agree.
//!
//! [`ARGUMENT`] requests them; a program's own command line does not have it: `scripts/install.sh` uses it.

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tarn_types::codes::Exit;

/// The first argument that requests them; a folder `share` and a date follow.
pub const ARGUMENT: &str = "__manual";
/// The folder in which each shell looks for completions, below a folder `share`.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {cause}; nothing uses what was written before it, so it can be written again", path.display())]
pub struct Error {
    path: PathBuf,
    cause: io::Error,
}

/// The main function of a program whose first argument is [`ARGUMENT`]: `words` are the arguments after it.
pub fn main(command: Command, section: u8, words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<_> = words.into_iter().collect();
    let [share, date] = words.as_slice() else {
        eprintln!(
            "error: give {ARGUMENT} DIR DATE: the folder `share`, and YYYY-MM-DD for the pages"
        );
        return ExitCode::from(Exit::Usage as u8);
    };
    match write(command, section, &date.to_string_lossy(), Path::new(share)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(Exit::State as u8)
        }
    }
}

/// Writes the pages of a command and its subcommands, and its completions, below a folder `share`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(command: Command, section: u8, date: &str, share: &Path) -> Result<(), Error> {
    let name = command.get_name().to_owned();
    let mut completed = command.clone();
    for (shell, folder) in SHELLS {
        let file = match shell {
            Shell::Zsh => format!("_{name}"),
            Shell::Fish => format!("{name}.fish"),
            _ => name.clone(),
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut completed, &name, &mut text);
        write_file(&share.join(folder), &file, &text)?;
    }
    // A page for `tarn help` would add nothing.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    pages(
        &command,
        section,
        date,
        &share.join(format!("man/man{section}")),
    )
}

/// The pages of a command that is built, and of those below it: at most as many as its definition has.
fn pages(command: &Command, section: u8, date: &str, folder: &Path) -> Result<(), Error> {
    let man = Man::new(command.clone())
        .section(section.to_string())
        .date(date)
        .source(concat!("tarn ", env!("CARGO_PKG_VERSION")))
        .manual("tarn");
    let mut page = Vec::new();
    let rendered = man.render(&mut page);
    rendered.map_err(|cause| Error {
        path: folder.to_owned(),
        cause,
    })?;
    // An empty line is a paragraph of its own; mandoc warns of line breaks around one.
    let page = String::from_utf8_lossy(&page).replace(".br\n\n.br\n", ".sp\n");
    write_file(folder, &man.get_filename(), page.as_bytes())?;
    let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
    for command in shown {
        pages(command, section, date, folder)?;
    }
    Ok(())
}

fn write_file(folder: &Path, name: &str, text: &[u8]) -> Result<(), Error> {
    let path = folder.join(name);
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::File::create(&path)?.write_all(text));
    written.map_err(|cause| Error { path, cause })
}
