//! Debian packages of the programs built beside the tests: their content, their dependencies, and that it works where dpkg has
//! installed it. Then pages, completions and units, read by the programs that read them for people.

use anyhow::{Context, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tarn_tests::{programs, tree};

type Outcome = anyhow::Result<()>;

/// The packages, and a file that each has.
const PACKAGES: [(&str, &str); 4] = [
    ("libtarn", "usr/lib/libtarn.so"),
    ("libtarn-dev", "usr/include/phx.h"),
    (
        "python3-tarn",
        "usr/lib/python3/dist-packages/tarn/__init__.py",
    ),
    ("tarn", "usr/bin/tarn"),
];

/// Whether these are there; else a message that a test cannot be done here.
fn here(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let lacks = |program: &&&str| !std::env::split_paths(&path).any(|f| f.join(program).is_file());
    match programs.iter().find(lacks) {
        Some(program) => {
            eprintln!("SKIPPED: no {program} here: scripts/deps.sh test installs it");
            false
        }
        None => true,
    }
}

fn run_for_stdout(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{command:?}"))?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}: {out}{err}",
        output.status
    );
    Ok(out)
}

fn script(name: &str) -> Command {
    let mut command = Command::new(tree::root().join("scripts").join(name));
    for variable in ["CC", "CFLAGS", "DESTDIR", "SOURCE_DATE_EPOCH"] {
        command.env_remove(variable);
    }
    command
}

/// The built programs and libraries in a folder as cargo's: no release is needed, and cargo's stays as it is.
fn built(folder: &Path) -> Outcome {
    std::fs::create_dir(folder)?;
    for name in [
        "tarn",
        "tarn-bench",
        "tarnd",
        "libtarn.so",
        "libtarn.a",
        "libtarn_python.so",
    ] {
        symlink(programs::built(name)?, folder.join(name))?;
    }
    Ok(())
}

/// The plug-ins, as far as their headers are here.
fn plug_ins(folder: &Path) -> Outcome {
    run_for_stdout(script("hdf5.sh").arg(folder))?;
    for plug_in in ["nbdkit.sh", "shim.sh", "spank.sh", "verbs.sh", "brick.sh"] {
        let output = script(plug_in).arg(folder).output()?;
        let lacking = output.status.code() == Some(3);
        ensure!(output.status.success() || lacking, "{output:?}");
    }
    Ok(())
}

/// Pages and completions, below a folder.
fn manual(share: &Path) -> Outcome {
    for program in ["tarn", "tarn-bench", "tarnd"] {
        let mut command = Command::new(programs::built(program)?);
        run_for_stdout(command.arg("__manual").arg(share).arg("2026-11-23"))?;
    }
    Ok(())
}

/// All files below a folder, relative to it.
fn files(folder: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in next.read_dir()? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => drop(found.insert(entry.path().strip_prefix(folder)?.to_owned())),
            }
        }
    }
    Ok(found)
}

#[test]
fn packages_are_whole_and_work_where_dpkg_has_installed_them() -> Outcome {
    if !here(&["dpkg", "dpkg-deb", "dpkg-shlibdeps", "dpkg-gencontrol"]) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    built(&at("built"))?;
    plug_ins(&at("built"))?;
    // Packing would take longer than all else.
    let mut package = script("package.sh");
    let package = package.args([at("built"), at("packages")]);
    run_for_stdout(
        package
            .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
            .env("TMPDIR", folder.path()),
    )?;
    let made = files(&at("packages"))?;
    let version = env!("CARGO_PKG_VERSION");
    let architecture = run_for_stdout(Command::new("dpkg").arg("--print-architecture"))?;
    let file = |package: &str| format!("{package}_{version}_{}.deb", architecture.trim());
    let wanted: BTreeSet<_> = PACKAGES.map(|(p, _)| PathBuf::from(file(p))).into();
    ensure!(made == wanted, "{made:?}");

    contents(&at("packages"), file)?;
    depends(&at("packages"), file)?;
    installed(&at("packages"), &at("root"))
}

/// Each file is in one package, root's, and nobody else may write to it.
fn contents(packages: &Path, file: impl Fn(&str) -> String) -> Outcome {
    let mut owners = BTreeMap::new();
    for (package, has) in PACKAGES {
        let path = packages.join(file(package));
        let list = run_for_stdout(Command::new("dpkg-deb").arg("--contents").arg(path))?;
        for line in list.lines().filter(|line| !line.starts_with('d')) {
            let words: Vec<_> = line.split_whitespace().collect();
            ensure!(words.len() == 6 && words[1] == "root/root", "{line}");
            let others = [
                "/hdf5/bench",
                "/tarn/tarn-mode-helper",
                "/verbs/verbs-serve",
            ];
            let is_other = others.iter().any(|other| words[5].ends_with(other));
            let executable = words[5].contains("/bin/") || is_other;
            let mode = ["-rw-r--r--", "-rwxr-xr-x"][usize::from(executable)];
            let name = words[5].trim_start_matches("./");
            let is_script = name.starts_with("usr/share/doc/tarn/examples/");
            ensure!(words[0] == mode || is_script, "{line}");
            let before = owners.insert(name.to_owned(), package);
            ensure!(before.is_none(), "{name} is in {package} and {before:?}");
        }
        ensure!(owners.get(has) == Some(&package), "{package} lacks {has}");
    }
    for has in [
        "usr/bin/tarn-bench",
        "usr/bin/tarnd",
        "usr/lib/systemd/system/tarnd-controller.service",
        "usr/lib/systemd/system/tarnd-site.service",
        "usr/lib/systemd/system/tarnd@.service",
        "usr/lib/systemd/user/tarnd.service",
        "usr/lib/tarn/hdf5/libh5fdtarn.so",
        "usr/lib/tarn/tarn-mode-helper",
        "usr/share/bash-completion/completions/tarnd",
        "usr/share/doc/tarn/docs/guide/install.md",
        "usr/share/doc/tarn/examples/montage/workflow.toml",
        "usr/share/doc/tarn/third-party.gz",
        "usr/share/fish/vendor_completions.d/tarn.fish",
        "usr/share/man/man1/tarn-data-put.1.gz",
        "usr/share/man/man8/tarnd.8.gz",
        "usr/share/zsh/vendor-completions/_tarn",
    ] {
        ensure!(owners.get(has) == Some(&"tarn"), "tarn lacks {has}");
    }
    let page = owners.get("usr/share/man/man3/phx_init.3.gz");
    ensure!(page == Some(&"libtarn-dev"), "{page:?}");
    Ok(())
}

/// The packages' dependencies are those of their programs.
fn depends(packages: &Path, file: impl Fn(&str) -> String) -> Outcome {
    let field = |package: &str, name: &str| {
        let path = packages.join(file(package));
        run_for_stdout(Command::new("dpkg-deb").arg("--field").arg(path).arg(name))
    };
    let own = format!("libtarn (= {})", env!("CARGO_PKG_VERSION"));
    for package in ["tarn", "libtarn-dev", "python3-tarn"] {
        let dependencies = field(package, "Depends")?;
        ensure!(dependencies.contains(&own), "{package}: {dependencies}");
    }
    for package in ["tarn", "libtarn"] {
        let dependencies = field(package, "Depends")?;
        ensure!(
            dependencies.contains("libc6 (>= 2."),
            "{package}: {dependencies}"
        );
        ensure!(
            !dependencies.contains("fabric"),
            "{package}: {dependencies}"
        );
    }
    let fabric = run_for_stdout(
        Command::new("dpkg-deb")
            .arg("--contents")
            .arg(packages.join(file("tarn"))),
    )?
    .contains("libtarnfabric.so");
    let recommended = field("tarn", "Recommends")?.contains("libfabric1");
    ensure!(fabric == recommended, "{fabric} {recommended}");
    Ok(())
}

/// Installed by dpkg in a folder: programs, library and plug-ins find each other there; removed, nothing is left.
fn installed(packages: &Path, root: &Path) -> Outcome {
    let database = root.join("var/lib/dpkg");
    std::fs::create_dir_all(database.join("info"))?;
    std::fs::create_dir_all(database.join("updates"))?;
    std::fs::write(database.join("status"), "")?;
    let dpkg = |arguments: &[&str], files: &[PathBuf]| {
        // There is no libc6 on which it depends, and no shell inside for scripts.
        run_for_stdout(
            Command::new("dpkg")
                .arg(format!("--root={}", root.display()))
                .arg(format!("--log={}", root.join("log").display()))
                .args(["--force-not-root", "--force-depends", "--force-bad-path"])
                .arg("--force-script-chrootless")
                .args(arguments)
                .args(files),
        )
    };
    let all: Vec<_> = files(packages)?.iter().map(|f| packages.join(f)).collect();
    let root_here = std::fs::metadata("/proc/self")?.uid() == 0;
    if root_here {
        dpkg(&["--install"], &all)?;
    } else {
        eprintln!("SKIPPED: dpkg installs as root only; the packages are unpacked");
        for file in &all {
            run_for_stdout(
                Command::new("dpkg-deb")
                    .arg("--extract")
                    .arg(file)
                    .arg(root),
            )?;
        }
    }
    for program in ["tarn", "tarn-bench", "tarnd"] {
        let version =
            run_for_stdout(Command::new(root.join("usr/bin").join(program)).arg("--version"))?;
        let wanted = format!("{program} {}\n", env!("CARGO_PKG_VERSION"));
        ensure!(version == wanted, "{version}");
    }
    let storage = tempfile::tempdir_in("/dev/shm")?;
    let output = run_for_stdout(
        Command::new(root.join("usr/bin/tarn"))
            .args(["h5", "exec", "--folder"])
            .arg(storage.path())
            .args(["--", "sh", "-c", "echo $HDF5_PLUGIN_PATH"])
            .env_remove("TARN_HDF5_PLUGIN")
            .env_remove("HDF5_PLUGIN_PATH"),
    )?;
    let plug_in = root.join("usr/lib/tarn/hdf5").canonicalize()?;
    ensure!(Path::new(output.trim()) == plug_in, "{output}");
    if root.join("usr/lib/tarn/verbs").exists() {
        let output = run_for_stdout(
            Command::new(root.join("usr/bin/tarn"))
                .args(["verbs", "exec", "--", "sh", "-c", "echo $LD_PRELOAD"])
                .env_remove("TARN_VERBS_PLUGIN")
                .env_remove("LD_PRELOAD"),
        )?;
        let plug_in = root.join("usr/lib/tarn/verbs/libtarnverbs.so");
        let plug_in = plug_in.canonicalize()?;
        ensure!(Path::new(output.trim()) == plug_in, "{output}");
    }
    let python = Path::new("/usr/bin/python3");
    if python.exists() {
        run_for_stdout(
            Command::new(python)
                .args([
                    "-c",
                    "import tarn, phx; tarn.tasks.library(), tarn.checkpoint.Code",
                ])
                .env("PYTHONPATH", root.join("usr/lib/python3/dist-packages"))
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env("TARN_LIBRARY", root.join("usr/lib/libtarn.so")),
        )?;
    }
    if !root_here {
        return Ok(());
    }
    dpkg(&["--purge"], &PACKAGES.map(|(p, _)| PathBuf::from(p)))?;
    let left = files(root)?;
    let own = |file: &&PathBuf| file.starts_with("usr") || file.starts_with("lib");
    ensure!(!left.iter().any(|f| own(&f)), "{left:?}");
    Ok(())
}

/// The subcommands that the help of a command lists.
fn subcommands(tarn: &Path, words: &[String]) -> anyhow::Result<Vec<String>> {
    let help = run_for_stdout(Command::new(tarn).args(words).arg("--help"))?;
    let Some((_, list)) = help.split_once("\nCommands:\n") else {
        return Ok(Vec::new());
    };
    let list = list.lines().take_while(|line| !line.is_empty());
    // The next line of a description is further right.
    let named = list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let named = named.filter(|name| !name.is_empty() && *name != "help");
    Ok(named.map(str::to_owned).collect())
}

#[test]
fn every_command_has_a_page_which_mandoc_finds_clean() -> Outcome {
    let share = tempfile::tempdir()?;
    manual(share.path())?;
    let mut wanted = BTreeSet::from([PathBuf::from("man8/tarnd.8")]);
    for program in ["tarn", "tarn-bench"] {
        let file = programs::built(program)?;
        let mut commands = vec![Vec::new()];
        while let Some(words) = commands.pop() {
            let name = [&[program.to_owned()], words.as_slice()].concat().join("-");
            wanted.insert(PathBuf::from(format!("man1/{name}.1")));
            // Of `tarn bench` and `tarn reproduce`, tarn-bench has the pages.
            let passed_on = program == "tarn"
                && ["bench", "reproduce"]
                    .map(|w| vec![w.to_owned()])
                    .contains(&words);
            for name in subcommands(&file, &words)?
                .into_iter()
                .filter(|_| !passed_on)
            {
                commands.push([words.as_slice(), &[name]].concat());
            }
        }
    }
    ensure!(wanted.len() > 40, "only {wanted:?}");
    let man = share.path().join("man");
    let pages = files(&man)?;
    ensure!(pages == wanted, "{pages:?}\nbut of commands {wanted:?}");
    let page = std::fs::read_to_string(man.join("man8/tarnd.8"))?;
    for option in ["guests", "space", "checkpoints", "external\\-rate"] {
        ensure!(page.contains(option), "tarnd.8 lacks {option}");
    }
    if here(&["mandoc"]) {
        let pages = pages.iter().map(|page| man.join(page));
        run_for_stdout(
            Command::new("mandoc")
                .args(["-T", "lint", "-W", "warning"])
                .args(pages),
        )?;
    }
    Ok(())
}

/// The words that a shell's completion script offers, for each of some command lines that end where the tabulator is pressed.
fn offered(shell: &str, script: &str, share: &Path) -> anyhow::Result<Option<String>> {
    if !here(&[shell]) {
        return Ok(None);
    }
    // A shell that waits without end is ended.
    let mut command = Command::new("timeout");
    command.args(["60", shell]);
    let command = match shell {
        "bash" => command.args(["--norc", "--noprofile"]),
        "zsh" => command.arg("-f"),
        _ => command.arg("--no-config"),
    };
    let home = tempfile::tempdir()?;
    let words = run_for_stdout(
        command
            .args(["-c", script])
            .env("HOME", home.path())
            .env("TERM", "dumb")
            .env("SHARE", share),
    )?;
    Ok(Some(words))
}

#[test]
fn shells_complete_subcommands_and_options() -> Outcome {
    let share = tempfile::tempdir()?;
    manual(share.path())?;
    let bash = r#"
        . "$SHARE/bash-completion/completions/tarn"; . "$SHARE/bash-completion/completions/tarnd"
        complete -p tarn tarnd > /dev/null || exit 1
        ask() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            "_$1" "$1" "${!#}" "${@: -2:1}"
            echo "${COMPREPLY[*]}"
        }
        ask tarn pl; ask tarn data pu; ask tarn run --poli; ask tarn run --bind ""; ask tarnd --gue"#;
    if let Some(offered) = offered("bash", bash, share.path())? {
        let wanted = "plan\nput\n--policy\nnone socket\n--guests\n";
        ensure!(offered == wanted, "bash: {offered}");
    }
    let fish = r#"
        source "$SHARE/fish/vendor_completions.d/tarn.fish"; source "$SHARE/fish/vendor_completions.d/tarnd.fish"
        for line in "tarn pl" "tarn data pu" "tarn run --poli" "tarn run --bind " "tarnd --gue"
            complete --do-complete $line | string split --fields 1 \t | string join " "
        end
        true"#;
    if let Some(offered) = offered("fish", fish, share.path())? {
        let wanted = "plan\nput\n--policy\nnone socket\n--guests\n";
        ensure!(offered == wanted, "fish: {offered}");
    }
    // In a terminal of its own, as zsh completes nowhere else: the typed text is followed by the tabulator, and run.
    let zsh = r#"
        zmodload zsh/zpty
        ask() {
            zpty -b terminal zsh -f -i
            zpty -w terminal "PS1= PS2= RPS1=; unset zle_bracketed_paste; fpath=('$SHARE/zsh/site-functions' \$fpath); autoload -U compinit; compinit -u -D"
            zpty -w terminal 'tarn() { print -r -- "=run= tarn $*" }; tarnd() { print -r -- "=run= tarnd $*" }; print -r -- "=rea""dy="'
            zpty -r terminal answer '*=ready=*' || exit 1
            zpty -w -n terminal "$1"$'\t\n'
            zpty -r terminal answer $'*\n=run= *\n' || exit 1
            print -r -- "${${answer##*=run= }%%$'\r'*}"
            zpty -d terminal
        }
        ask "tarn pl"; ask "tarn data pu"; ask "tarn run --poli"; ask "tarnd --gue""#;
    if let Some(offered) = offered("zsh", zsh, share.path())? {
        let lines: Vec<_> = offered.lines().map(str::trim_end).collect();
        let wanted = [
            "tarn plan",
            "tarn data put",
            "tarn run --policy",
            "tarnd --guests",
        ];
        ensure!(lines == wanted, "zsh: {offered}");
    }
    Ok(())
}

#[test]
fn units_are_what_systemd_understands() -> Outcome {
    if !here(&["systemd-analyze"]) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let prefix = folder.path().join("usr");
    built(&folder.path().join("built"))?;
    run_for_stdout(script("install.sh").args([&folder.path().join("built"), &prefix]))?;
    let units = prefix.join("lib/systemd");
    // As if it were enabled for a user.
    let instance = folder.path().join("tarnd@root.service");
    std::fs::copy(units.join("system/tarnd@.service"), &instance)?;
    let verify = |unit: &Path, whose: &str| {
        let mut command = Command::new("systemd-analyze");
        let output = command.args([whose, "--man=no", "verify"]).arg(unit);
        let output = output
            .env("XDG_RUNTIME_DIR", folder.path())
            .env("SYSTEMD_LOG_LEVEL", "warning")
            .output()?;
        // It ends well with warnings too.
        let warned = String::from_utf8_lossy(&output.stderr).into_owned();
        let name = unit.file_name().unwrap_or_default().to_string_lossy();
        let own = warned.lines().any(|line| line.contains(&*name));
        anyhow::Ok((output.status.success() && !own, warned))
    };
    for (unit, whose) in [
        (instance.clone(), "--system"),
        (units.join("system/tarnd-controller.service"), "--system"),
        (units.join("system/tarnd-site.service"), "--system"),
        (units.join("user/tarnd.service"), "--user"),
    ] {
        let (clean, warned) = verify(&unit, whose)?;
        ensure!(clean, "{}: {warned}", unit.display());
    }
    // Its mounts for jobs reach Slurm's tasks only in the mounts that all share.
    let site = std::fs::read_to_string(units.join("system/tarnd-site.service"))?;
    let mut settings = site.lines().filter(|line| !line.starts_with('#'));
    let own = settings.find(|line| line.starts_with("Private") || line.starts_with("Protect"));
    ensure!(own.is_none(), "tarnd has mounts of its own: {own:?}");
    // An error would have been reported.
    let wrong = folder.path().join("wrong@root.service");
    let text = std::fs::read_to_string(&instance)?;
    std::fs::write(&wrong, text.replace("Restart=on-failure", "Restart=maybe"))?;
    ensure!(!verify(&wrong, "--system")?.0, "a wrong unit was accepted");
    // Of 100, less is better: a user's process without restrictions has 92.
    run_for_stdout(
        Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=40", "--no-pager"])
            .arg(&instance),
    )?;
    Ok(())
}
