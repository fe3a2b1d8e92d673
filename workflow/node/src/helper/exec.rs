//! `tarn exec NODE -- command`: runs a command on another node of the same step. `tarn enter command`: a task that `srun` has
//! started on a node of the step runs it there, where the step's data is seen.
//!
//! With `--` the words are the command's arguments as they are. Without, they are joined by blanks and given to
//! `/bin/sh -c` on the node, as ssh does: this is how mpirun calls its remote agent.

use crate::helper::exec_env::{EXEC_DIRS, own_paths};
use crate::helper::exec_listener::{is_own_user, socket_path};
use crate::helper::protocol::{Channel, ExecReply, ExecRequest, ProcessEnd, line_of};
use crate::storage::store::warn;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use tarn_sys::fdpass::MAX_FDS;

/// The exit code when the node or the command cannot be reached (as ssh has it).
const UNREACHABLE: u8 = 255;
/// The exit code when the command cannot be started (as the shell has it).
const NOT_STARTED: u8 = 127;
/// The folder that slurmstepd uses for a task, and for its temporary files, when it cannot use the requested one.
const FALLBACK: &str = "/tmp";

/// The entry point of `tarn exec`; `arguments` are the words after `exec`.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut words = arguments.into_iter();
    let Some(node) = words.next() else {
        warn("exec: usage: tarn exec NODE -- COMMAND [ARGUMENT...]");
        return ExitCode::from(tarn_types::codes::Exit::Usage as u8);
    };
    let argv = command_line(words.collect());
    if argv.is_empty() {
        warn("exec: there is no command after the node's name");
        return ExitCode::from(tarn_types::codes::Exit::Usage as u8);
    }
    ended("exec", call(&node, argv))
}

/// The exit code of a requested command.
fn ended(how: &str, answer: io::Result<ExecReply>) -> ExitCode {
    match answer {
        Ok(ExecReply::Ended(ProcessEnd::Exited(status))) => {
            ExitCode::from(u8::try_from(status).unwrap_or(UNREACHABLE))
        }
        Ok(ExecReply::Ended(ProcessEnd::Signalled(signal))) => {
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(UNREACHABLE))
        }
        Ok(ExecReply::Refused(why)) => {
            warn(&format!("{how}: {why}"));
            ExitCode::from(NOT_STARTED)
        }
        Err(e) => {
            warn(&format!("{how}: {e}"));
            ExitCode::from(UNREACHABLE)
        }
    }
}

/// The entry point of `tarn enter`; `arguments` are the words after `enter`.
pub fn enter(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut argv: Vec<_> = arguments.into_iter().collect();
    if argv.first().is_some_and(|w| w == "--") {
        argv.remove(0);
    }
    if argv.is_empty() {
        warn("enter: usage: srun ... tarn enter COMMAND [ARGUMENT...]");
        return ExitCode::from(tarn_types::codes::Exit::Usage as u8);
    }
    // Files that srun has left open for the task, such as its connection for PMI ($PMI_FD), are for the command: listed before
    // anything is opened.
    let left = tarn_sys::handed::inherited();
    let entered = own_door().and_then(|(node, exec)| {
        let left = left.map_err(|e| {
            io::Error::new(e.kind(), format!("the open files cannot be listed: {e}"))
        })?;
        let closed = closed_pmi(&left, std::env::var_os(PMI_FD).as_deref())?;
        let files = left.into_iter().map(|n| Ok((n, tarn_sys::handed::inherited_fd(n)?)));
        let mut files = files.collect::<io::Result<Vec<_>>>()?;
        if let Some(number) = closed {
            warn(&format!(
                "enter: {PMI_FD} is `{number}`, but descriptor {number} is not open: the program that started `tarn enter` has closed it. An MPI \
                 program will fail in MPI_Init here: have srun start `tarn enter` itself, or leave the descriptor open"
            ));
            // It can be neither written nor has anything to read. Without PMI_FD, MPICH would be rank 0 of 1 in each task; with a number
            // that is free, it would write to the next file that the program opens.
            files.push((number, File::open("/dev/null")?.into()));
        }
        let hosts = exec.with_file_name("hosts");
        let mut env: BTreeMap<_, _> = std::env::vars_os().collect();
        for (name, path) in own_paths(&hosts, &exec) {
            env.insert(name.into(), path);
        }
        let cwd = as_srun_was_called(&mut env)?;
        let env = env.into_iter().collect();
        ask(&exec, OsStr::new(&node), (argv, cwd), env, files)
    });
    ended("enter", entered)
}

/// The variable by which a task finds its connection to the process manager, if that uses PMI 1 or 2.
const PMI_FD: &str = "PMI_FD";

/// Checks that the files that are open beside the standard streams can be handed on. Gives the descriptor for PMI if it is not
/// among them.
fn closed_pmi(left: &[i32], pmi: Option<&OsStr>) -> io::Result<Option<i32>> {
    let number = match pmi {
        None => None,
        Some(pmi) => Some(pmi_number(pmi)?),
    };
    let closed = number.filter(|number| !left.contains(number));
    let most = MAX_FDS - 3 - closed.iter().len();
    if left.len() <= most {
        return Ok(closed);
    }
    Err(io::Error::other(format!(
        "{} files are open beside the standard streams, and at most {most} can be handed on: close those that the command does not need \
         before `tarn enter`",
        left.len()
    )))
}

fn pmi_number(pmi: &OsStr) -> io::Result<i32> {
    let number = pmi.to_str().and_then(|text| text.parse().ok());
    number.filter(|number| *number > 2).ok_or_else(|| {
        io::Error::other(format!(
            "{PMI_FD} is `{}`, which is not the number of a descriptor that srun gives to a task: have srun start `tarn enter` itself; \
             without PMI, unset {PMI_FD}",
            pmi.to_string_lossy()
        ))
    })
}

/// The entry point of `tarn __rank COMMAND...`: becomes the command, after the variables that its node has of its own. The launcher that
/// started it may have given it those of the node where the launcher is.
pub fn rank(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut words = arguments.into_iter();
    let Some(program) = words.next() else {
        warn("rank: there is no command");
        return ExitCode::from(tarn_types::codes::Exit::Usage as u8);
    };
    let mut command = Command::new(&program);
    command.args(words).envs(of_this_node());
    let e = command.exec();
    warn(&format!("{}: {e}", Path::new(&program).display()));
    ExitCode::from(NOT_STARTED)
}

/// A step's host name is its node's, where the step has several.
fn of_this_node() -> Vec<(OsString, OsString)> {
    let node = crate::host::machine::host_name();
    let Some((_, exec)) = find_exec_folder(&std::env::var(EXEC_DIRS).unwrap_or_default(), &node)
    else {
        return Vec::new();
    };
    let mut own = vec![("TARN_NODE".into(), node.into())];
    // Nodes of one machine share these.
    let is_here = std::env::var_os("TARN_HOSTFILE").is_some_and(|path| Path::new(&path).exists());
    if !is_here {
        let paths = own_paths(&exec.with_file_name("hosts"), &exec);
        own.extend(paths.map(|(name, path)| (name.into(), path)));
    }
    own
}

/// The line of a node in `$TARN_EXEC_DIRS`.
fn find_exec_folder(lines: &str, node: &str) -> Option<(String, PathBuf)> {
    let mut folders = lines.lines().filter_map(|l| l.split_once(' '));
    let (name, folder) = folders.find(|(name, _)| *name == node)?;
    Some((name.to_owned(), folder.into()))
}

/// slurmstepd does not see the step's folders: it goes to `/tmp` where it cannot enter the folder that srun was called in, and gives a task
/// `/tmp` for a `TMPDIR` where it cannot write.
fn as_srun_was_called(env: &mut BTreeMap<OsString, OsString>) -> io::Result<PathBuf> {
    let cwd = std::env::current_dir()?;
    let Some(scratch) = env.get(OsStr::new("TARN_SCRATCH")).cloned() else {
        return Ok(cwd);
    };
    if env
        .get(OsStr::new("TMPDIR"))
        .is_some_and(|at| at == FALLBACK)
    {
        env.insert("TMPDIR".into(), scratch.clone());
    }
    let called = env.get(OsStr::new("PWD")).map(PathBuf::from);
    let is_step = |at: &PathBuf| {
        Path::new(&scratch)
            .parent()
            .is_some_and(|p| at.starts_with(p))
    };
    match called.filter(is_step) {
        Some(called) if cwd == Path::new(FALLBACK) => Ok(called),
        _ => Ok(cwd),
    }
}

/// The node that this task is on, and where its part of the step listens.
fn own_door() -> io::Result<(String, PathBuf)> {
    let variable = |name: &str, why: &str| {
        std::env::var(name).map_err(|_| io::Error::other(format!("{why} ({name} is not set)")))
    };
    let lines = variable(
        EXEC_DIRS,
        "it works only in processes that a step of several nodes starts",
    )?;
    let node = variable(
        "SLURMD_NODENAME",
        "it is for tasks that srun starts; elsewhere use `tarn exec NODE`",
    )?;
    find_exec_folder(&lines, &node).ok_or_else(|| {
        io::Error::other(format!(
            "node `{node}` is not a node of the step: give srun the names in $TARN_HOSTFILE (--nodelist)"
        ))
    })
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

fn call(node: &OsStr, argv: Vec<OsString>) -> io::Result<ExecReply> {
    let folder = std::env::var_os("TARN_EXEC_DIR")
        .map(PathBuf::from)
        .ok_or_else(|| {
            io::Error::other(
                "it works only inside a step of several nodes (TARN_EXEC_DIR is not set)",
            )
        })?;
    let env = std::env::vars_os().collect();
    ask(
        &folder,
        node,
        (argv, std::env::current_dir()?),
        env,
        Vec::new(),
    )
}

fn ask(
    folder: &Path,
    node: &OsStr,
    (argv, cwd): (Vec<OsString>, PathBuf),
    env: Vec<(OsString, OsString)>,
    files: Vec<(i32, OwnedFd)>,
) -> io::Result<ExecReply> {
    let name = node
        .to_str()
        .filter(|n| !n.contains('/') && !n.starts_with('.'))
        .ok_or_else(|| {
            io::Error::other(format!(
                "`{}` is not the name of a node",
                node.to_string_lossy()
            ))
        })?;
    let fds = files.iter().map(|(number, _)| *number).collect();
    // Made before anything is sent: nobody waits for it.
    let request = line_of(&ExecRequest {
        argv,
        env,
        cwd,
        fds,
    })?;
    let held = File::open(folder)?;
    let socket = UnixStream::connect(socket_path(&held, name)).map_err(|e| {
        io::Error::new(
            e.kind(),
            format!(
                "node `{name}` cannot be reached: {e}; the nodes of this step are in $TARN_HOSTFILE"
            ),
        )
    })?;
    if !is_own_user(&socket) {
        return Err(io::Error::other(format!(
            "another user listens for node `{name}` in {}: nothing was handed on",
            folder.display()
        )));
    }
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    let mut all = vec![input.as_fd(), output.as_fd(), error.as_fd()];
    all.extend(files.iter().map(|(_, fd)| fd.as_fd()));
    let sent = tarn_sys::fdpass::send(&socket, &all);
    drop(files);
    let mut channel = Channel::new(socket);
    let sent = sent.and_then(|()| channel.send_line(&request));
    let is_closed = |e: &io::Error| {
        let kind = e.kind();
        kind == io::ErrorKind::BrokenPipe || kind == io::ErrorKind::ConnectionReset
    };
    // A node that refuses reads no further, and sends the reason.
    if let Err(e) = sent {
        return match is_closed(&e).then(|| channel.receive()) {
            Some(Ok(Some(answer))) => Ok(answer),
            _ => Err(e),
        };
    }
    channel
        .receive()?
        .ok_or_else(|| io::Error::other(format!("node `{name}` has gone away: its step has ended")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_for_pmi_is_among_what_is_handed_on() {
        let check = |left: &[i32], pmi: Option<&str>| {
            let closed = closed_pmi(left, pmi.map(OsStr::new));
            closed.map_err(|e| e.to_string())
        };
        assert_eq!(check(&[], None), Ok(None));
        assert_eq!(check(&[4, 9], Some("9")), Ok(None));
        assert_eq!(check(&[4, 9], Some("7")), Ok(Some(7)));
        for pmi in ["-1", "", "x", " 9", "99999999999999999999", "2"] {
            let why = check(&[4, 9], Some(pmi)).unwrap_err();
            assert!(why.contains(&format!("PMI_FD is `{pmi}`")) && why.contains("unset"));
        }
        let most: Vec<i32> = (3..MAX_FDS as i32).collect();
        assert_eq!(check(&most, Some("3")), Ok(None));
        // The one that is closed takes a place.
        let why = check(&most, Some("300")).unwrap_err();
        assert!(why.contains("61 files") && why.contains("most 60"), "{why}");
        let many: Vec<i32> = (3..300).collect();
        let why = check(&many, Some("3")).unwrap_err();
        assert!(why.contains("297 files") && why.contains("close"), "{why}");
    }

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
