//! `tarn exec NODE -- command`: runs a command on another node of the same step.
//!
//! With `--` the words are the command's arguments as they are. Without, they are joined by blanks and given to
//! `/bin/sh -c` on the node, as ssh does: this is how mpirun calls its remote agent.

use crate::guests::socket_path;
use crate::protocol::{Answer, Channel, End, Request};
use crate::store::warn;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

/// The exit code when the node or the command cannot be reached (as ssh has it).
const UNREACHABLE: u8 = 255;
/// The exit code when the command cannot be started (as the shell has it).
const NOT_STARTED: u8 = 127;

/// The entry point of `tarn exec`; `arguments` are the words after `exec`.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut words = arguments.into_iter();
    let Some(node) = words.next() else {
        warn("exec: usage: tarn exec NODE -- COMMAND [ARGUMENT...]");
        return ExitCode::from(tarn_base::codes::Exit::Usage as u8);
    };
    let argv = command_line(words.collect());
    if argv.is_empty() {
        warn("exec: there is no command after the node's name");
        return ExitCode::from(tarn_base::codes::Exit::Usage as u8);
    }
    match call(&node, argv) {
        Ok(Answer::Ended(End::Exited(status))) => {
            ExitCode::from(u8::try_from(status).unwrap_or(UNREACHABLE))
        }
        Ok(Answer::Ended(End::Signalled(signal))) => {
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(UNREACHABLE))
        }
        Ok(Answer::Refused(why)) => {
            warn(&format!("exec: {}: {why}", node.to_string_lossy()));
            ExitCode::from(NOT_STARTED)
        }
        Err(e) => {
            warn(&format!("exec: {e}"));
            ExitCode::from(UNREACHABLE)
        }
    }
}

fn command_line(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.first().is_some_and(|w| w == "--") {
        words.remove(0);
        return words;
    }
    if words.is_empty() {
        return words;
    }
    vec!["/bin/sh".into(), "-c".into(), words.join(OsStr::new(" "))]
}

fn call(node: &OsStr, argv: Vec<OsString>) -> io::Result<Answer> {
    let folder = std::env::var_os("TARN_EXEC_DIR")
        .map(PathBuf::from)
        .ok_or_else(|| {
            io::Error::other(
                "it works only inside a step of several nodes (TARN_EXEC_DIR is not set)",
            )
        })?;
    let name = node
        .to_str()
        .filter(|n| !n.contains('/') && !n.starts_with('.'))
        .ok_or_else(|| {
            io::Error::other(format!(
                "`{}` is not the name of a node",
                node.to_string_lossy()
            ))
        })?;
    let held = File::open(&folder)?;
    let socket = UnixStream::connect(socket_path(&held, name)).map_err(|e| {
        io::Error::new(
            e.kind(),
            format!(
                "node `{name}` cannot be reached: {e}; the nodes of this step are in $TARN_HOSTFILE"
            ),
        )
    })?;
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    tarn_sys::fdpass::send(&socket, &[input.as_fd(), output.as_fd(), error.as_fd()])?;
    let mut channel = Channel::new(socket);
    channel.send(&Request {
        argv,
        env: std::env::vars_os().collect(),
        cwd: std::env::current_dir()?,
    })?;
    channel
        .receive()?
        .ok_or_else(|| io::Error::other(format!("node `{name}` has gone away: its step has ended")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_arguments_after_a_double_dash_and_a_script_otherwise() {
        let words = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            command_line(words(&["--", "a b", "$c"])),
            words(&["a b", "$c"])
        );
        assert_eq!(
            command_line(words(&["a", "b;", "c"])),
            words(&["/bin/sh", "-c", "a b; c"])
        );
        assert!(command_line(words(&["--"])).is_empty() && command_line(Vec::new()).is_empty());
    }
}
