//! Steps that resume from images of their processes: a program that knows nothing of it, really killed, with the real CRIU.

mod common;

use common::{Ran, Site, files, send, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The CRIU that scripts/criu.sh has found or fetched; steps that are alone want 4.2.
fn criu(alone: bool) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_tarn")).ancestors().nth(2);
    let criu = target.expect("the target folder").join("criu/criu");
    let works = criu.is_file();
    if !works {
        eprintln!(
            "SKIPPED: no {}: scripts/deps.sh test makes it",
            criu.display()
        );
    }
    let works = works && (!alone || version(&criu) >= (4, 2));
    works.then_some(criu)
}

fn version(criu: &Path) -> (u32, u32) {
    let output = Command::new(criu).arg("--version").output();
    let stdout = output.map_or(Vec::new(), |o| o.stdout);
    let text = String::from_utf8_lossy(&stdout).into_owned();
    let number = text.lines().find_map(|l| l.strip_prefix("Version: "));
    let mut parts = number.unwrap_or_default().trim().split('.');
    let mut next = || parts.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let version = (next(), next());
    if version < (4, 2) {
        eprintln!(
            "SKIPPED: {} is older than 4.2: scripts/deps.sh test makes a newer one",
            criu.display()
        );
    }
    version
}

/// A step that counts so far, with images.
struct Counting {
    site: Site,
    criu: PathBuf,
    steps: u64,
    /// The path of its program in command lines.
    program: PathBuf,
    /// A tier in memory, where it is not the site's.
    tier: Option<TempDir>,
}

impl Counting {
    fn new(steps: u64, images: &str, more: &str) -> Option<Self> {
        let alone = more.starts_with("alone");
        let run = format!("python3 $TARN_WORKFLOW_DIR/count.py {steps} 0.05 {more}");
        Self::of("count.py", &run, steps, images, alone, "")
    }

    fn of(
        program: &str,
        run: &str,
        steps: u64,
        images: &str,
        alone: bool,
        more: &str,
    ) -> Option<Self> {
        let criu = criu(alone)?;
        let site = Site::new(&format!(
            "name = \"counts\"\n[data.result]\ndest = \"result\"\n[[step]]\nname = \"count\"\nout = [\"result\"]\n\
             restart = \"image\"\nimages = \"{images}\"\nalone = {alone}\nrun = \"{run}\"\n{more}"
        ));
        site.write("count.py", include_str!("count.py"));
        let program = site.path(program);
        Some(Self {
            site,
            criu,
            steps,
            program,
            tier: None,
        })
    }

    /// Two ranks of MPI of this kind, with only the settings that root needs, and `more`.
    fn of_mpi(kind: &str, steps: u64, images: &str, more: &str) -> Option<Self> {
        let compiler = format!("mpicc.{kind}");
        let Ok(version) = Command::new(&compiler).arg("--version").output() else {
            eprintln!("SKIPPED: no {compiler}");
            return None;
        };
        assert!(version.status.success());
        let options = match kind {
            "openmpi" => "--allow-run-as-root --oversubscribe",
            _ => "",
        };
        let run = format!("mpirun.{kind} {options} -n 2 $TARN_WORKFLOW_DIR/ring {steps}");
        let counting = Self::of("ring", &run, steps, images, true, more)?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ring.c");
        let mut compile = Command::new(compiler);
        compile.args([
            "-std=c11",
            "-D_DEFAULT_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-o",
        ]);
        let made = compile.arg(&counting.program).arg(source).output();
        let made = made.expect("the compiler");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        Some(counting)
    }

    /// Its tier is in memory, where programs have their shared memory too.
    fn in_memory(mut self) -> Self {
        let tier = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        self.site.options = vec![
            "--tier".into(),
            format!("fast={}:256MiB", tier.path().display()),
        ];
        self.tier = Some(tier);
        self
    }

    fn tier(&self) -> PathBuf {
        let own = self.tier.as_ref().map(|t| t.path().to_path_buf());
        own.unwrap_or_else(|| self.site.path("tier"))
    }

    /// `tarn` with the CRIU of the tests.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.site.command(arguments);
        command.env("TARN_CRIU", &self.criu);
        command
    }

    fn tarn(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().expect("tarn starts"))
    }

    fn begin(&self, mut command: Command) -> Child {
        command.env("TARN_CRIU", &self.criu);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("tarn starts")
    }

    fn run(&self) -> Child {
        self.begin(self.site.command(&self.site.run_arguments()))
    }

    /// The images that are whole on the tier, by attempt and number.
    fn images(&self) -> Vec<(PathBuf, String)> {
        let mut all = Vec::new();
        files(&self.tier(), &mut all);
        let lists = all.iter().filter(|p| p.ends_with("manifest"));
        let folders = lists.filter_map(|p| {
            Some((
                p.parent()?.to_path_buf(),
                p.parent()?.file_name()?.to_str()?,
            ))
        });
        let mut images: Vec<_> = folders
            .filter(|(_, name)| *name != ".taking")
            .map(|(p, name)| (p.clone(), name.to_owned()))
            .collect();
        images.sort();
        images
    }

    /// The number of the newest image of this attempt that is whole.
    fn newest(&self, attempt: u64) -> u64 {
        let all = self.images();
        let of_it = all.iter().filter_map(|(_, name)| {
            let (generation, number) = name.split_once('.')?;
            let is_its = generation.parse::<u64>() == Ok(attempt);
            number.parse::<u64>().ok().filter(|_| is_its)
        });
        of_it.max().unwrap_or(0)
    }

    /// Waits until there is an image of this attempt in the middle of its work.
    fn imaged(&self, attempt: u64) {
        until("it counts", || self.printed(attempt).len() > 3);
        // One that is being taken may have been begun before that.
        let now = self.newest(attempt);
        until("an image", || self.newest(attempt) > now + 1);
    }

    /// The report of the first run.
    fn page(&self) -> String {
        self.site.read(".tarn/runs/counts-1/report.html")
    }

    /// The numbers that this attempt has printed.
    fn printed(&self, attempt: u64) -> Vec<u64> {
        let mut all = Vec::new();
        files(&self.site.path(".tarn/runs"), &mut all);
        let name = format!("count-0.{attempt}.log");
        let mut logs: Vec<_> = all.iter().filter(|p| p.ends_with(&name)).collect();
        logs.sort();
        let text = logs
            .last()
            .and_then(|p| fs::read_to_string(p).ok())
            .unwrap_or_default();
        text.lines().filter_map(|l| l.parse().ok()).collect()
    }

    /// Waits until this attempt has done some steps after its newest image.
    fn goes_on(&self, attempt: u64) {
        let count = || self.printed(attempt).last().copied().unwrap_or(0);
        let enough = count() + 3;
        until("it goes on", || count() >= enough);
    }

    /// The program's processes.
    fn processes(&self) -> Vec<i32> {
        let all = named(&self.program.display().to_string()).into_iter();
        let shell = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.starts_with(b"bash\0")
        };
        all.filter(|pid| !shell(pid)).collect()
    }

    /// The first one: that whose parent is none of its own.
    fn program(&self) -> Option<Pid> {
        let own = self.processes();
        let parent = |pid: &i32| tarn_sys::process::parent(*pid);
        let first = own
            .iter()
            .find(|p| parent(p).is_some_and(|above| !own.contains(&above)));
        first.copied().and_then(Pid::from_raw)
    }

    /// It may come to its end.
    fn may_end(&self) {
        self.site.write("go", "");
    }

    /// Prints the last lines of the step and of tarn, and the rest of its processes: why a test has failed.
    fn print_state(&self) {
        let mut all = Vec::new();
        files(&self.site.path(".tarn/runs"), &mut all);
        let is_log = |p: &&PathBuf| p.extension().is_some_and(|e| e == "log");
        for path in all.iter().filter(is_log) {
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(20)..];
            eprintln!("{}:\n{}", path.display(), last.join("\n"));
        }
        for pid in self.processes() {
            let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let text = [file("cmdline"), file("wchan"), file("status")].concat();
            eprintln!(
                "{pid}: {}",
                String::from_utf8_lossy(&text).replace('\0', " ")
            );
        }
    }

    /// Kills a rank, of which mpirun then ends the others; or all of them at once.
    fn kill_ranks(&self, all: bool) {
        let first = self.program().expect("it runs");
        let below = tarn_sys::process::descendants(first).expect("/proc");
        let ranks = below.iter().copied().filter(|pid| {
            let exe = fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero()));
            exe.is_ok_and(|exe| exe == self.program)
        });
        let of: Vec<Pid> = match all {
            true => std::iter::once(first)
                .chain(below.iter().copied())
                .collect(),
            false => ranks.skip(1).collect(),
        };
        assert!(!of.is_empty(), "it has ranks");
        for pid in of {
            // They end each other.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    fn kill_program(&self) {
        let pid = self.program().expect("it runs");
        kill_process(pid, Signal::KILL).expect("kill");
    }

    /// How many steps its result has: as many as it should at least, each once and in order.
    #[track_caller]
    fn counted(&self) -> u64 {
        let numbers = self.site.read("result/numbers");
        let steps = numbers.lines().count() as u64;
        assert!(self.steps <= steps, "{steps} steps of {}", self.steps);
        let right: String = (0..steps).map(|n| format!("{n} {}\n", n * n)).collect();
        assert_eq!(numbers, right);
        steps
    }

    /// The result is that of a program that nobody has disturbed, and it was begun once.
    #[track_caller]
    fn is_right(&self, attempts: u64) {
        let steps = self.counted();
        assert_eq!(self.site.read("result/begun"), "begun\n");
        let sum: u64 = (0..steps).map(|n| n * n).sum();
        assert_eq!(self.site.read("result/total"), format!("{sum}\n"));
        let mut before = self.printed(1);
        assert_eq!(before.first(), Some(&0));
        for attempt in 2..=attempts {
            // It resumes in the middle: nothing is left out, and less is done again than was done.
            let printed = self.printed(attempt);
            let (first, last) = (printed[0], *before.last().expect("a number"));
            assert!(
                0 < first && first <= last + 1,
                "attempt {attempt}: {first} after {last}"
            );
            before = printed;
        }
        assert_eq!(before.last(), Some(&(steps - 1)));
        assert!(self.printed(attempts + 1).is_empty());
    }
}

impl Drop for Counting {
    /// A test that has failed leaves nothing that waits for it: neither tarn nor the step name another folder.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_state();
        }
        for pid in named(&self.site.dir.path().display().to_string()) {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// The processes whose command lines name this.
fn named(what: &str) -> Vec<i32> {
    let is_it = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(what)
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(is_it).collect()
}

/// Kills all of these at once, as it is when the power goes.
fn kill_all(child: Child) {
    let id = i32::try_from(child.id()).expect("an id");
    let tarn = Pid::from_raw(id).expect("a process");
    let below = tarn_sys::process::descendants(tarn).expect("/proc");
    for pid in [tarn].into_iter().chain(below) {
        let _ = kill_process(pid, Signal::KILL);
    }
    Ran::end(child);
}

#[test]
fn a_program_that_is_killed_twice_goes_on_from_its_images() {
    let Some(counting) = Counting::new(40, "200ms", "wait") else {
        return;
    };
    let child = counting.run();
    for attempt in [1, 2] {
        counting.imaged(attempt);
        counting.goes_on(attempt);
        counting.kill_program();
    }
    counting.may_end();
    let ran = Ran::end(child).exits(0);
    counting.is_right(3);
    let ran = ran.prints("count resumes from image 1.");
    let ran = ran
        .prints("count resumes from image 2.")
        .prints("(2nd restart)");
    ran.prints("images    count: ");
    assert!(counting.page().contains("Images of processes"));
    counting.site.leaves_nothing_on_its_tier();
}

/// Its clocks must continue too: the machine is one that has just been started.
#[test]
fn after_kill_9_of_tarn_it_goes_on_though_the_machines_clock_has_gone_back() {
    let Some(counting) = Counting::new(40, "200ms", "wait") else {
        return;
    };
    let mut command = Command::new("unshare");
    command.args(["-T", "--monotonic", "500000", "--boottime", "500000"]);
    command
        .arg(env!("CARGO_BIN_EXE_tarn"))
        .args(counting.site.run_arguments());
    command
        .current_dir(counting.site.dir.path())
        .stdin(Stdio::null());
    command.env("NO_COLOR", "1").env_remove("TARN_STATE");
    let child = counting.begin(command);
    counting.imaged(1);
    counting.goes_on(1);
    send(Signal::KILL, &child);
    Ran::end(child);
    until("it is gone", || counting.program().is_none());
    counting.may_end();
    let ran = counting.tarn(&["resume"]).exits(0);
    counting.is_right(2);
    ran.prints("count resumes from image 1.");
}

/// The newest image has lost its last bytes, another was being taken: neither is used.
#[test]
fn after_a_loss_of_power_it_goes_on_from_the_newest_image_that_is_whole() {
    let Some(counting) = Counting::new(40, "1s", "wait") else {
        return;
    };
    let child = counting.run();
    counting.imaged(1);
    // Stopped: while the next one is taken there is only one.
    let tarn = Pid::from_child(&child);
    until("two images", || {
        let both = stop(tarn) && counting.images().len() == 2;
        if !both {
            send(Signal::CONT, &child);
        }
        both
    });
    kill_all(child);
    let images = counting.images();
    assert_eq!(images.len(), 2, "two at most");
    let (newest, name) = &images[1];
    let mut all = Vec::new();
    files(newest, &mut all);
    let largest = all
        .iter()
        .max_by_key(|p| p.metadata().map_or(0, |m| m.len()));
    let largest = fs::OpenOptions::new()
        .write(true)
        .open(largest.expect("a file"));
    let largest = largest.expect("open");
    let size = largest.metadata().expect("its size").len();
    largest.set_len(size - 4096).expect("cut");
    let torn = newest.with_file_name(".taking");
    fs::create_dir_all(torn.join("image/processes")).expect("a torn image");
    counting.may_end();
    let ran = counting.tarn(&["resume"]).exits(0);
    counting.is_right(2);
    let ran = ran.prints(&format!("image {name} cannot be used and was removed"));
    ran.prints(&format!("count resumes from image {}", images[0].1));
    counting.site.leaves_nothing_on_its_tier();
}

#[test]
fn a_kill_while_an_image_is_taken_leaves_the_one_before() {
    let Some(counting) = Counting::new(40, "200ms", "wait") else {
        return;
    };
    let child = counting.run();
    counting.imaged(1);
    let taking = counting.images()[0]
        .0
        .with_file_name(".taking/image/processes");
    until("another is being taken", || taking.exists());
    kill_all(child);
    counting.may_end();
    counting
        .tarn(&["resume"])
        .exits(0)
        .prints("count resumes from image 1.");
    counting.is_right(2);
}

/// Kills CRIU while it takes an image.
fn kill_criu(child: &Child) {
    let tarn = Pid::from_child(child);
    let criu = || -> Vec<Pid> {
        let mut below = tarn_sys::process::descendants(tarn).unwrap_or_default();
        below.retain(|pid| {
            let words = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
            words.is_ok_and(|w| String::from_utf8_lossy(&w).contains("\0dump\0"))
        });
        below
    };
    // The first of it, which the process that takes the image has started: a child that outlives it holds nothing.
    let is_first = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        let parent = stat.ok().and_then(|stat| {
            let after = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.to_owned();
            fs::read(format!("/proc/{after}/cmdline")).ok()
        });
        parent.is_some_and(|words| String::from_utf8_lossy(&words).contains("\0__image"))
    };
    // Stopped before that: a process that is ending already takes a signal without a trace. All of it: without one of the
    // children by which it finds out what the kernel can do, it continues.
    until("CRIU", || {
        let stopped: Vec<_> = criu().into_iter().filter(|pid| stop(*pid)).collect();
        stopped.iter().any(is_first) && stopped.len() == criu().len()
    });
    for pid in criu() {
        kill_process(pid, Signal::KILL).expect("CRIU is killed");
    }
}

/// Stops a process: false if it has ended before.
fn stop(pid: Pid) -> bool {
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    kill_process(pid, Signal::STOP).is_ok() && {
        until("it stops or ends", || {
            matches!(state(), None | Some('T' | 'Z' | 'X'))
        });
        state() == Some('T')
    }
}

/// CRIU is gone while it holds the processes: the result is right whether they survive or not.
#[test]
fn a_kill_of_criu_does_no_harm() {
    let Some(counting) = Counting::new(40, "200ms", "wait") else {
        return;
    };
    let child = counting.run();
    counting.imaged(1);
    kill_criu(&child);
    counting.may_end();
    Ran::end(child)
        .exits(0)
        .prints("no image of its processes was taken, it continues");
    counting.counted();
}

/// The connections that it held would be lost.
#[test]
fn a_kill_of_criu_ends_a_step_that_is_alone() {
    let Some((counting, _port)) = alone(40, "200ms") else {
        return;
    };
    let child = counting.run();
    counting.imaged(1);
    kill_criu(&child);
    counting.may_end();
    let ran = Ran::end(child).exits(0);
    counting.is_right(2);
    ran.prints("its connections may be held for ever, so it is ended")
        .prints("count resumes from image 1.");
}

/// A step that is alone, and a port of this machine that is not for it.
fn alone(steps: u64, images: &str) -> Option<(Counting, std::net::TcpListener)> {
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("its number").port();
    let counting = Counting::new(steps, images, &format!("alone {port}"))?;
    Some((counting, other))
}

/// Its own connections by TCP, its shared memory and its terminal are as they were, and none of them is this machine's.
#[test]
fn a_step_that_is_alone_goes_on_with_its_connections_and_shared_memory() {
    let Some((counting, _port)) = alone(40, "200ms") else {
        return;
    };
    let counting = counting.in_memory();
    let child = counting.run();
    counting.imaged(1);
    counting.goes_on(1);
    counting.kill_program();
    counting.imaged(2);
    counting.goes_on(2);
    assert!(!Path::new("/dev/shm/tarn-test-count").exists());
    kill_all(child);
    counting.may_end();
    counting
        .tarn(&["resume"])
        .exits(0)
        .prints("count resumes from image 2.");
    counting.is_right(3);
    assert!(!Path::new("/dev/shm/tarn-test-count").exists());
}

/// A rank is killed, then all of them at once, then tarn.
fn mpi_goes_on(kind: &str) {
    let Some(counting) = Counting::of_mpi(kind, 40, "300ms", "") else {
        return;
    };
    let child = counting.run();
    for (attempt, all) in [(1, false), (2, true)] {
        counting.imaged(attempt);
        counting.goes_on(attempt);
        counting.kill_ranks(all);
    }
    counting.imaged(3);
    counting.goes_on(3);
    send(Signal::KILL, &child);
    Ran::end(child);
    until("it is gone", || counting.processes().is_empty());
    counting.may_end();
    let ran = counting.tarn(&["resume"]).exits(0);
    counting.is_right(4);
    ran.prints("count resumes from image 3.");
    counting.site.leaves_nothing_on_its_tier();
}

#[test]
fn ranks_of_openmpi_that_are_killed_go_on_from_their_image() {
    mpi_goes_on("openmpi");
}

#[test]
fn ranks_of_mpich_that_are_killed_go_on_from_their_image() {
    mpi_goes_on("mpich");
}

/// A step of which no image can be taken continues without, and tarn says why.
fn without(more: &str, tier: Option<(&str, &str)>, why: &str) {
    // Long enough for the program to have what it says before the first one, however slow the machine is.
    let Some(counting) = Counting::new(300, "2s", more) else {
        return;
    };
    let mut counting = counting;
    if let Some((_, bytes)) = tier {
        let tier = counting.site.path("tier").display().to_string();
        counting.site.options = vec!["--tier".into(), format!("fast={tier}:{bytes}")];
    }
    let mut command = counting.site.command(&counting.site.run_arguments());
    if let Some((size, _)) = tier {
        command = Command::new("unshare");
        let script = format!("mount -t tmpfs -o size={size} tmpfs tier && exec \"$@\"");
        command.args(["-m", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_tarn")]);
        command.args(counting.site.run_arguments());
        command
            .current_dir(counting.site.dir.path())
            .stdin(Stdio::null());
        command.env("NO_COLOR", "1").env_remove("TARN_STATE");
    }
    let ran = Ran::end(counting.begin(command)).exits(0);
    counting.is_right(1);
    ran.prints("count: no image of its processes was taken, it continues")
        .prints(why);
    let log = counting.site.log();
    let images = log.iter().filter(|r| r["event"] == "image");
    assert!(images.clone().count() > 1, "it is tried again");
    assert!(counting.page().contains(why), "the report says why");
}

/// CRIU 4.1 refuses on Linux 6.18 because of an option that such sockets have no more; elsewhere because of the sockets.
#[test]
fn a_program_with_a_tcp_connection_goes_on_without_images() {
    let why = match criu(true) {
        Some(_) => "images of a step with `alone = true` hold",
        None => "not taken: CRIU: ",
    };
    without("tcp", None, why);
}

/// It would be missing. That is known when all is written: the step's connections are as they were.
#[test]
fn a_step_that_has_left_a_daemon_goes_on_without_images() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("its number").port();
    let more = match criu(true) {
        Some(_) => format!("alone {port} daemon"),
        None => "daemon".to_owned(),
    };
    without(&more, None, "is not below the step's first process");
}

/// That is looked at before.
#[test]
fn a_tier_without_space_for_an_image_leaves_the_step_alone() {
    without("hold 40000000", Some(("32m", "24MiB")), "and its tier has");
}

/// A file without a name is in no estimate.
#[test]
fn a_tier_that_is_full_before_the_image_is_whole_leaves_the_step_alone() {
    without(
        "ghost 36000000",
        Some(("64m", "48MiB")),
        "not taken: CRIU: ",
    );
}

#[test]
fn without_criu_nothing_is_started() {
    let Some(mut counting) = Counting::new(5, "1s", "") else {
        return;
    };
    counting.criu = "/no/such/criu".into();
    let ran = Ran::end(counting.run()).exits(4);
    let ran = ran.prints("no_images").prints("/no/such/criu");
    ran.prints("TARN_CRIU");
    assert!(counting.printed(1).is_empty());
    let mut off = counting.site.run_arguments();
    off.extend(["--isolation", "off"]);
    counting.tarn(&off).exits(4).prints("it needs namespaces");
}

/// Without any rights over the machine: as `nobody`.
fn as_nobody(counting: Counting) {
    const NOBODY: u32 = 65534;
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY));
    let mut all = vec![
        counting.site.dir.path().to_path_buf(),
        counting.site.path("tier"),
    ];
    files(counting.site.dir.path(), &mut all);
    all.iter().try_for_each(|p| own(p)).expect("chown");
    let as_nobody = |arguments: &[&str]| {
        let mut command = counting.site.command(arguments);
        command
            .uid(NOBODY)
            .gid(NOBODY)
            .env("HOME", counting.site.dir.path());
        command.env("PATH", "/usr/bin:/bin");
        command
    };
    let reaches = as_nobody(&["--version"]).output();
    if !reaches.is_ok_and(|r| r.status.success()) {
        eprintln!(
            "SKIPPED: nobody cannot reach {}",
            env!("CARGO_BIN_EXE_tarn")
        );
        return;
    }
    let child = counting.begin(as_nobody(&counting.site.run_arguments()));
    counting.imaged(1);
    counting.goes_on(1);
    counting.kill_program();
    counting.may_end();
    Ran::end(child)
        .exits(0)
        .prints("count resumes from image 1.");
    counting.is_right(2);
}

/// If this user is not root, all other tests are this one.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn an_ordinary_user_has_images_too() {
    let counting = is_root().then(|| Counting::new(40, "200ms", "wait"));
    counting.flatten().into_iter().for_each(as_nobody);
}

#[test]
fn an_ordinary_user_has_images_of_steps_that_are_alone() {
    let counting = is_root().then(|| alone(40, "200ms")).flatten();
    if let Some((counting, _port)) = counting {
        as_nobody(counting);
    }
}

#[test]
fn an_ordinary_user_has_images_of_openmpi() {
    let counting = is_root().then(|| Counting::of_mpi("openmpi", 40, "300ms", ""));
    counting.flatten().into_iter().for_each(as_nobody);
}

/// MPICH shares memory by nameless files, which CRIU cannot open for users other than root; with TCP it works:
/// docs/guide/restart.md.
#[test]
fn an_ordinary_user_has_images_of_mpich_by_tcp() {
    let settings = "env = { UCX_TLS = \"tcp,self\", MPIR_CVAR_NOLOCAL = \"1\" }\n";
    let counting = is_root().then(|| Counting::of_mpi("mpich", 40, "300ms", settings));
    counting.flatten().into_iter().for_each(as_nobody);
}
