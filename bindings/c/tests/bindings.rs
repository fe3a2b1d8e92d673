//! Programs that link beside the C header: MPI, Fortran, pkg-config, man pages, and the proxies of examples/checkpoints.

#[path = "common/mod.rs"]
mod linked;
#[path = "common/proxies.rs"]
mod proxies;

use linked::{compiler, library, output_of, source};
use proxies::here;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A folder in memory, and a program in it.
fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("program");
    (folder, program)
}

/// Three ranks of MPI on this machine, by this kind of MPI.
struct Mpi {
    kind: &'static str,
    folder: TempDir,
    program: PathBuf,
}

impl Mpi {
    fn new(kind: &'static str) -> Option<Self> {
        let name = format!("mpicc.{kind}");
        if !here(&name) {
            return None;
        }
        let (folder, program) = place();
        let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wpedantic"];
        output_of(&mut compiler(&name, &flags, &["tests/phx_mpi.c"], &program));
        Some(Self {
            kind,
            folder,
            program,
        })
    }

    fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> (bool, String) {
        self.run_by(&[], arguments, environment)
    }

    /// The same, by way of another program.
    fn run_by(
        &self,
        by: &[&str],
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> (bool, String) {
        let mut command = Command::new("timeout");
        // cat ends when nobody holds the pipe of mpirun any more.
        let script = "set -o pipefail; \"$@\" 2>&1 | cat";
        command.args(["60", "bash", "-c", script, "ranks"]);
        command.arg(format!("mpirun.{}", self.kind));
        if self.kind == "openmpi" {
            command.arg("--oversubscribe");
        }
        let command = command
            .args(["-np", "3"])
            .args(by)
            .arg(&self.program)
            .arg(self.folder.path())
            .args(arguments)
            .env("TMPDIR", self.folder.path())
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env_remove("TARN_PHX_MEET")
            .envs(environment.iter().copied());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let code = output.status.code();
        assert_ne!(code, Some(124), "mpirun, or what it left, stays: {text}");
        (output.status.success(), text)
    }
}

fn each_rank(text: &str, expected: impl Fn(u32) -> String) {
    for rank in 0..3 {
        let line = expected(rank);
        assert!(text.lines().any(|l| l == line), "no {line:?} in: {text}");
    }
}

fn ranks_go_on_after_one_was_killed(kind: &'static str) {
    let Some(mpi) = Mpi::new(kind) else { return };
    let (ended, text) = mpi.run(&["4"], &[]);
    assert!(ended, "{text}");
    each_rank(&text, |rank| format!("rank {rank} of 3 done at step 4"));
    let (ended, text) = mpi.run(&["12", "7"], &[]);
    // mpiexec of MPICH 4.2 can return 0 when a rank was killed (pmodels/mpich#7057).
    assert!(!ended || kind == "mpich", "{text}");
    assert!(!text.contains("done at step"), "{text}");
    each_rank(&text, |rank| format!("rank {rank} restored step 4"));
    let (ended, text) = mpi.run(&["9"], &[]);
    assert!(ended, "{text}");
    // The others may have been ended before their seventh commit.
    let step = if text.contains("restored step 7") {
        7
    } else {
        6
    };
    each_rank(&text, |rank| format!("rank {rank} restored step {step}"));
    each_rank(&text, |rank| format!("rank {rank} of 3 done at step 9"));
}

fn what_ranks_do_not_agree_on_is_told_to_all(kind: &'static str) {
    let Some(mpi) = Mpi::new(kind) else { return };
    for (wrong, why) in [("names", "different names"), ("size", "size of a rank's")] {
        let (ended, text) = mpi.run(&[wrong], &[]);
        assert!(ended, "{text}");
        let errors = text
            .lines()
            .filter(|l| l.contains(": 2: ") && l.contains(why));
        assert_eq!(errors.count(), 3, "{text}");
    }
}

#[test]
fn ranks_of_openmpi_go_on_after_one_was_killed() {
    ranks_go_on_after_one_was_killed("openmpi");
}

#[test]
fn ranks_of_mpich_go_on_after_one_was_killed() {
    ranks_go_on_after_one_was_killed("mpich");
}

#[test]
fn what_ranks_of_openmpi_do_not_agree_on_is_told_to_all() {
    what_ranks_do_not_agree_on_is_told_to_all("openmpi");
}

#[test]
fn what_ranks_of_mpich_do_not_agree_on_is_told_to_all() {
    what_ranks_do_not_agree_on_is_told_to_all("mpich");
}

/// MPICH plays that each rank is on a node of its own; the memory of one is not that of another.
#[test]
fn ranks_on_several_nodes_meet_at_a_port_of_rank_0() {
    let Some(mpi) = Mpi::new("mpich") else { return };
    let nodes = [("MPIR_CVAR_NOLOCAL", "1")];
    for (steps, restored) in [("3", None), ("5", Some(3))] {
        let (ended, text) = mpi.run(&[steps, "apart"], &nodes);
        assert!(ended, "{text}");
        each_rank(&text, |rank| {
            format!("rank {rank} of 3 done at step {steps}")
        });
        if let Some(step) = restored {
            each_rank(&text, |rank| format!("rank {rank} restored step {step}"));
        }
    }
}

/// Each rank is on a host of its own name, and copies go from one to the other by libfabric, which the program's MPI may use as well.
fn ranks_write_to_each_others_memory(kind: &'static str, environment: &[(&str, &str)]) {
    let Some(mpi) = Mpi::new(kind) else { return };
    let own_name = ["unshare", "--uts"];
    let named = Command::new(own_name[0])
        .args([own_name[1], "true"])
        .status();
    if !named.is_ok_and(|s| s.success()) {
        println!("SKIPPED: nobody may give a process a host's name here (unshare --uts)");
        return;
    }
    let built = Command::new(source("../../scripts/shim.sh"))
        .arg(mpi.folder.path())
        .status();
    if built.unwrap().code() == Some(3) {
        println!("SKIPPED: no libfabric-dev");
        return;
    }
    let shim = mpi.folder.path().join("libtarnfabric.so");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let meet = listener.local_addr().unwrap().to_string();
    drop(listener);
    let key = format!("hex:{}", "5a".repeat(32));
    let ours = [
        ("TARN_PHX_MEET", meet.as_str()),
        ("TARN_PHX_KEY", &key),
        ("TARN_PHX_TRANSPORT", "libfabric:tcp;ofi_rxm"),
        ("TARN_FABRIC_LIBRARY", shim.to_str().unwrap()),
    ];
    let script = "hostname \"node${PMI_RANK:-$OMPI_COMM_WORLD_RANK}\" && exec \"$@\"";
    let by = [&own_name[..], &["sh", "-c", script, "rank"]].concat();
    let all = [&ours[..], environment].concat();
    for (steps, restored) in [("3", None), ("5", Some(3))] {
        let (ended, text) = mpi.run_by(&by, &[steps, "far"], &all);
        assert!(ended, "{text}");
        each_rank(&text, |rank| format!("rank {rank}: copies by RMA"));
        if let Some(step) = restored {
            each_rank(&text, |rank| format!("rank {rank} restored step {step}"));
        }
    }
}

#[test]
fn ranks_of_mpich_write_to_each_others_memory() {
    ranks_write_to_each_others_memory("mpich", &[]);
}

/// Its messages go by libfabric, too: the same library, loaded by both.
#[test]
fn ranks_of_openmpi_that_uses_libfabric_write_to_each_others_memory() {
    let by_libfabric = [
        ("OMPI_MCA_pml", "cm"),
        ("OMPI_MCA_mtl", "ofi"),
        ("OMPI_MCA_mtl_ofi_provider_include", "tcp"),
    ];
    ranks_write_to_each_others_memory("openmpi", &by_libfabric);
}

#[test]
fn the_header_for_mpi_is_cpp() {
    if !here("mpicxx.mpich") {
        return;
    }
    let (folder, program) = place();
    let file = folder.path().join("a.cc");
    let text =
        "#include \"phx_mpi.h\"\nint main() { return phx_init_mpi(MPI_COMM_WORLD, nullptr); }\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    output_of(&mut compiler(
        "mpicxx.mpich",
        &["-std=c++11"],
        &[file],
        &program,
    ));
}

#[test]
fn a_fortran_program_goes_on_where_it_ended() {
    if !here("gfortran") {
        return;
    }
    let (folder, program) = place();
    let files = ["../fortran/phx.f90", "../fortran/test_phx.f90"];
    let modules = folder.path().to_str().unwrap();
    // Values are to be the same bit by bit.
    let flags = ["-std=f2008", "-Wno-compare-reals", "-J", modules];
    output_of(&mut compiler("gfortran", &flags, &files, &program));
    std::fs::create_dir(folder.path().join("store")).unwrap();
    let run = |steps| output_of(Command::new(&program).arg(folder.path()).arg(steps));
    assert_eq!(run("3"), "done at step 3\n");
    for lost in ["tier", "memory"] {
        std::fs::remove_dir_all(folder.path().join(lost)).unwrap();
    }
    assert_eq!(run("7"), "restored 3 step 3\ndone at step 7\n");
}

#[test]
fn what_is_installed_is_found_by_pkg_config() {
    if !here("pkg-config") {
        return;
    }
    let (folder, program) = place();
    let prefix = folder.path().join("usr");
    output_of(Command::new(source("../../scripts/hdf5.sh")).arg(library()));
    output_of(
        Command::new(source("../../scripts/install.sh"))
            .arg(library())
            .arg(&prefix)
            .env_remove("DESTDIR"),
    );
    let config = |what: &[&str]| {
        let mut command = Command::new("pkg-config");
        let command = command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let text = output_of(command.args(what).arg("tarn"));
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let (cflags, libs) = (config(&["--cflags"]), config(&["--libs"]));
    let mut cc = Command::new("cc");
    cc.args(&cflags)
        .arg(source("tests/phx.c"))
        .arg("-o")
        .arg(&program);
    output_of(cc.args(&libs).arg("-lpthread"));
    let run = Command::new(&program)
        .arg(folder.path())
        .arg("2")
        .env("LD_LIBRARY_PATH", prefix.join("lib"))
        .output();
    assert_eq!(run.unwrap().stdout, b"done at step 2\n");
    let module = config(&["--variable=fortran"]);
    assert!(Path::new(&module[0]).is_file(), "{module:?}");
    for file in [
        "include/phx_mpi.h",
        "include/tarn_objects.h",
        "include/dsa.h",
        "lib/tarn/hdf5/libh5fdtarn.so",
        "share/man/man3/phx_init.3",
    ] {
        assert!(prefix.join(file).is_file(), "{file}");
    }
}

/// Spaces, and where lines end, do not count.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The functions that a header declares, and how.
fn prototypes(header: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(source("include").join(header)).unwrap();
    let own = [" phx_", " *phx_", " tarn_", " *tarn_", " dsa_", " *dsa_"];
    let begins = |line: &str| own.iter().any(|name| line.contains(name));
    let of_function = |start: &str| {
        let end = start.find([';', '{'])?;
        let whole = plain(start[..end].trim_start_matches("static inline "));
        let name = whole
            .split_once('(')?
            .0
            .rsplit([' ', '*'])
            .next()?
            .to_owned();
        Some((name, format!("{whole};")))
    };
    let mut at = 0;
    let mut found = Vec::new();
    for line in text.split_inclusive('\n') {
        let typed = [
            "int ",
            "void ",
            "uint32_t ",
            "const char *",
            "static inline ",
        ];
        if typed.iter().any(|t| line.starts_with(t)) && begins(line) {
            found.extend(of_function(&text[at..]));
        }
        at += line.len();
    }
    found
}

#[test]
fn every_function_has_a_man_page_with_its_prototype() {
    let mut all = prototypes("phx.h");
    assert!(all.len() >= 15, "{all:?}");
    all.extend(
        prototypes("phx_mpi.h")
            .into_iter()
            .filter(|(name, _)| name == "phx_init_mpi"),
    );
    all.extend(prototypes("tarn_objects.h"));
    let tasks = prototypes("tarn.h");
    assert!(tasks.len() >= 26, "{tasks:?}");
    all.extend(tasks);
    let dsa = prototypes("dsa.h").into_iter();
    // All of `dsa_prep` is in the pages that use it.
    all.extend(dsa.filter(|(name, _)| name != "dsa_prep_copy"));
    let folder = source("../../docs/man");
    for (name, prototype) in &all {
        let page = std::fs::read_to_string(folder.join(format!("{name}.3"))).expect(name);
        let (_, rest) = page.split_once(".SH SYNOPSIS").unwrap();
        let (synopsis, _) = rest.split_once(".fi").unwrap();
        let (_, own) = synopsis.split_once(".h>").unwrap();
        assert_eq!(&plain(own), prototype);
    }
    let pages = std::fs::read_dir(&folder).unwrap();
    let mut pages: Vec<_> = pages.map(|page| page.unwrap().path()).collect();
    pages.sort();
    assert_eq!(pages.len(), all.len(), "a page of no function: {pages:?}");
    if here("mandoc") {
        output_of(
            Command::new("mandoc")
                .args(["-T", "lint", "-W", "style"])
                .args(&pages),
        );
    }
}

/// Calls in which a forked child has nothing of its parent's: they begin something, or have neither a session nor a connection.
const NOT_INHERITED: [&str; 25] = [
    "dsa_create",
    "dsa_create_units",
    "dsa_delete",
    "dsa_list",
    "dsa_open",
    "dsa_open_cyclic",
    "dsa_partition_info",
    "dsa_queue_create",
    "dsa_resize",
    "dsa_size",
    "phx_code_text",
    "phx_fail",
    "phx_last_error",
    "tarn_code_text",
    "tarn_connect",
    "tarn_connect_job",
    "tarn_last_error",
    "tarn_object_fetch",
    "tarn_object_get",
    "tarn_object_list",
    "tarn_object_map",
    "tarn_object_put",
    "tarn_object_versions",
    "tarn_task_init",
    "tarn_version",
];

/// All other calls are made in a forked child by the programs that try that; where they are refused, their man pages say so.
#[test]
fn every_call_is_made_in_a_forked_child_and_its_page_says_what_it_gives() {
    let files = ["forks.c", "forks_phx.c", "forks_tasks.c"];
    let text = files.map(|file| std::fs::read_to_string(source("tests").join(file)).unwrap());
    let text = text.concat();
    let dsa = std::fs::read_to_string(source("include/dsa.h")).unwrap();
    let inline = dsa.split("static inline ").skip(1);
    let inline = inline.filter_map(|of| of.split('(').next()?.rsplit([' ', '*']).next());
    let inline: Vec<String> = inline.map(str::to_owned).collect();
    let headers = ["dsa.h", "phx.h", "tarn.h", "tarn_objects.h"];
    for (name, _) in headers.into_iter().flat_map(prototypes) {
        // Those that are compiled into the program touch its rings only.
        if NOT_INHERITED.contains(&&*name) || inline.contains(&name) {
            continue;
        }
        let call = format!("{name}(");
        assert!(text.contains(&call), "{name} is not made in a child");
        let refused = text
            .lines()
            .any(|line| line.contains(&call) && line.contains("EUNSUPPORTED)"));
        let page = source("../../docs/man").join(format!("{name}.3"));
        let manual = plain(&std::fs::read_to_string(page).unwrap());
        assert!(
            !refused || manual.contains("forked from the one"),
            "the page of {name} does not say so"
        );
    }
}

/// The proxies, made as their users make them.
struct Proxies(TempDir);

impl Proxies {
    fn new(name: &str) -> Option<Self> {
        let to = tempfile::tempdir_in("/dev/shm").unwrap();
        proxies::make(&[name], to.path()).then_some(Self(to))
    }

    fn command(&self, name: &str, cycles: u32, environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(self.0.path().join(name));
        command
            .env("PROXIES", source("../../examples/checkpoints/proxies.conf"))
            .env("TARN_PHX_TIER", self.0.path().join("tier"))
            .env("TARN_PHX_MEMORY", self.0.path().join("memory"))
            .env("TARN_PHX_PROFILE", "device=300MB/s")
            .env("SCALE", "0.01")
            .env("CYCLES", cycles.to_string())
            .env("CHECKPOINTS", "always")
            .envs(environment.iter().copied());
        command
    }
}

/// The value of a line `key=value`.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let mut values = text.lines().filter_map(|l| l.split_once('='));
    let found = values.find(|(k, _)| *k == key);
    found.unwrap_or_else(|| panic!("no {key} in {text}")).1
}

/// In any cycle in which it is killed, it ends with the result of an undisturbed run without checkpoints.
fn a_killed_proxy_ends_as_if_undisturbed(name: &str) {
    let Some(proxies) = Proxies::new(name) else {
        return;
    };
    let mut endless = proxies.command(name, i32::MAX as u32, &[("WORK", "20")]);
    let mut endless = endless.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(endless.stdout.take().unwrap()).lines();
    let fourth = lines
        .by_ref()
        .map_while(Result::ok)
        .find(|l| l.starts_with("cycle=4 "));
    endless.kill().unwrap();
    endless.wait().unwrap();
    let fourth = fourth.expect("a fourth cycle");
    let last = lines.map_while(Result::ok).last().unwrap_or(fourth);
    let last = last["cycle=".len()..].split_once(' ').unwrap().0;
    let last: u32 = last.parse().unwrap();
    let end = last + 3;
    let again = output_of(&mut proxies.command(name, end, &[("WORK", "2")]));
    let restored: u32 = value(&again, "restored").parse().unwrap();
    // The next one may have been committed, and not printed.
    assert!(restored == last || restored == last + 1, "{last}: {again}");
    let none = [("CHECKPOINTS", "none"), ("TARN_PHX_RUN", "undisturbed")];
    let undisturbed = output_of(&mut proxies.command(name, end, &none));
    assert_eq!(value(&undisturbed, "commits"), "0");
    assert_eq!(value(&again, "checksum"), value(&undisturbed, "checksum"));
}

#[test]
fn a_killed_gtc_ends_as_if_undisturbed() {
    a_killed_proxy_ends_as_if_undisturbed("gtc");
}

#[test]
fn a_killed_cm1_ends_as_if_undisturbed() {
    a_killed_proxy_ends_as_if_undisturbed("cm1");
}

#[test]
fn a_killed_s3d_ends_as_if_undisturbed() {
    a_killed_proxy_ends_as_if_undisturbed("s3d");
}

/// The programs in a language that a page has.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(source("../..").join(page)).unwrap();
    let begin = format!("```{language}\n");
    let rest = text.split(&begin).skip(1);
    rest.map(|t| t[..t.find("```").unwrap()].to_owned())
        .collect()
}

#[test]
fn programs_of_the_page_go_on_where_they_ended() {
    let compilers = ["cc", "gfortran", "mpicc.openmpi"];
    if !compilers.iter().all(|compiler| here(compiler)) {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.into_os_string().into_string().unwrap()
    };
    let c = blocks("docs/guide/checkpoints.md", "c");
    let [heat, mpi, bridge, watch] = &c[..] else {
        panic!("{} programs in C", c.len())
    };
    let fortran = blocks("docs/guide/checkpoints.md", "fortran").remove(0);
    let [heat, mpi] = [write("heat.c", heat), write("mpi.c", mpi)];
    let watch = write("watch.c", watch);
    let [bridge, program] = [write("bridge.c", bridge), write("heat.f90", &fortran)];
    let to = |name: &str| folder.path().join(name);
    output_of(&mut compiler("cc", &["-std=c11"], &[&heat], &to("c")));
    let both = [mpi.as_str(), bridge.as_str()];
    output_of(&mut compiler(
        "mpicc.openmpi",
        &["-std=c11"],
        &both,
        &to("mpi"),
    ));
    let module = ["../fortran/phx.f90", program.as_str()];
    let modules = folder.path().to_str().unwrap();
    let flags = ["-std=f2008", "-J", modules];
    output_of(&mut compiler("gfortran", &flags, &module, &to("fortran")));
    for (name, rank) in [("c", ""), ("fortran", ""), ("mpi", "rank 0 ")] {
        for step in [0, 100] {
            let mut command = Command::new(to(name));
            let text = output_of(
                command
                    .env("TARN_PHX_TIER", to(name).with_extension("tier"))
                    .env("TARN_PHX_MEMORY", to(name).with_extension("memory"))
                    .env("OMPI_MCA_orte_tmpdir_base", folder.path()),
            );
            assert_eq!(text, format!("{rank}from step {step}\n"), "{name}");
        }
    }
    // A tier that is not mounted here, and one that has lost its slash.
    let lost = format!("/tarn-no-such-tier-{}", std::process::id());
    for (tier, why) in [
        (
            format!("{lost}/me"),
            "would be made on the node's root disk",
        ),
        ("nvme/me".to_owned(), "is not an absolute path"),
    ] {
        for name in ["c", "fortran", "mpi"] {
            let mut command = Command::new(to(name));
            let output = command
                .current_dir(folder.path())
                .env("TARN_PHX_TIER", &tier)
                .env("TARN_PHX_MEMORY", to(name).with_extension("memory"))
                .env("OMPI_MCA_orte_tmpdir_base", folder.path())
                .output()
                .unwrap();
            let printed =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(
                !output.status.success() && printed.contains(why),
                "{name}: {printed}"
            );
        }
    }
    assert!(!Path::new(&lost).exists() && !to("nvme").exists());
    // The values of the C program that another program sees.
    output_of(&mut compiler("cc", &["-std=c11"], &[&watch], &to("watch")));
    let tier = to("c").with_extension("tier");
    let text = output_of(Command::new(to("watch")).env("TARN_PHX_TIER", tier));
    assert_eq!(text, "at most 5050\n");
}

/// The constants of the Fortran module have the numbers of the header.
#[test]
fn the_fortran_module_has_the_numbers_of_the_header() {
    let header = std::fs::read_to_string(source("include/phx.h")).unwrap();
    let module = source("../fortran/phx.f90");
    let module = std::fs::read_to_string(module).unwrap().to_lowercase();
    let mut found = 0;
    for line in header.lines() {
        let line = line.trim_start().trim_start_matches("#define ");
        let line = line.replacen(" = ", " ", 1);
        let mut words = line.split([' ', ',']);
        let (name, number) = (words.next().unwrap(), words.next().unwrap_or_default());
        let number = number.trim_end_matches('u');
        if name.starts_with("PHX_") && number.parse::<u8>().is_ok() {
            let constant = format!("{} = {number}", name.to_lowercase());
            let here = module
                .split(['\n', ',', ':', '&'])
                .any(|c| c.trim() == constant);
            // Fortran has no readers.
            let only_c = ["PHX_MAX_DIMENSIONS", "PHX_UNVERIFIED"].contains(&name);
            assert!(here || only_c, "no {constant}");
            found += 1;
        }
    }
    assert!(found > 25, "{found}");
}

#[test]
fn the_headers_are_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.cc");
    for (header, call) in [
        ("tarn.h", "tarn_code_text(0) == nullptr"),
        ("phx.h", "phx_code_text(0) == nullptr"),
        ("tarn_objects.h", "tarn_object_abandon(nullptr) == PHX_OK"),
        ("dsa.h", "dsa_close(nullptr) == TARN_OK"),
    ] {
        let text = format!("#include \"{header}\"\nint main() {{ return {call}; }}\n");
        std::fs::write(&file, text).unwrap();
        output_of(
            Command::new("c++")
                .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
                .arg(source("include"))
                .arg(&file),
        );
    }
}
