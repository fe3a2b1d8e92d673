//! The treatment of each block of commands of the pages.

/// The treatment of a block.
pub(crate) enum Way {
    /// It is run as it is printed, after those above it.
    Run(Run),
    /// This test covers it: its file, and its name.
    Test(&'static str, &'static str),
    /// It cannot be run in a test, for this reason.
    Not(&'static str),
}

/// How a block is run.
pub(crate) struct Run {
    /// Programs and modules of Python without which it is left out, with a message.
    pub(crate) needs: &'static [&'static str],
    /// The block of another label above it that the page has one save: its label, and the file.
    pub(crate) saves: Option<(&'static str, &'static str)>,
    /// The commands that make the things a page takes for granted, and that set up its terminal.
    pub(crate) given: &'static [&'static str],
    /// For a block that ends on a signal: the reader's commands meanwhile. It runs until the page ends.
    pub(crate) beside: Option<&'static str>,
    /// The commands that must succeed afterwards.
    pub(crate) then: &'static str,
}

const PLAIN: Run = Run {
    needs: &[],
    saves: None,
    given: &[],
    beside: None,
    then: "",
};
const RUN: Way = Way::Run(PLAIN);

/// Commands that no page's block is run for, by the beginning of its lines: they measure for minutes, on a machine that
/// does nothing else. They are parsed (parser.rs); `bench_*.rs` and `reproduce.rs` of apps/tarn-bench/tests have small
/// cases of them.
pub(crate) const LONG: &[&str] = &["tarn bench ", "tarn reproduce", "bench/"];

/// A page, and its blocks: by words that are in this one alone, and the treatment. Blocks of [`LONG`] are not listed.
pub(crate) type Page = (&'static str, &'static [(&'static str, Way)]);

/// A Python with h5py.
const PYTHON: &str = "export PATH=$PYTHONS/new/bin:$PATH\n";

/// The package tarn, as pip would install it.
const PACKAGE: &str =
    "$TARN_SOURCE/scripts/python.sh $TARN_SOURCE/target/release ~/lib\nexport PYTHONPATH=~/lib\n";

/// A run of a workflow of the name that the pages show.
const WORDS_RUN: &str = r#"
printf 'name = "words"\n[[step]]\nname = "count"\nrun = "true"\n' > words.toml
tarn run words.toml
"#;

/// Open MPI starts programs for root, and more of them than the machine has processors.
const MPI: &str = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1\n";

/// Two nodes, as far as dataspaces are concerned; this one is n1.
const TWO_NODES: &str = r#"
printf 'key = "%064d"\n[nodes.n1]\naddress = "127.0.0.1:7411"\n[nodes.n2]\naddress = "127.0.0.1:7412"\n' 1 > peers.toml
chmod 600 peers.toml
for n in n1 n2; do
    mkdir -p /dev/shm/$n
    tarnd --node-name $n --socket /run/$n --state $n --peers peers.toml --space fast=/dev/shm/$n:64MiB &
    soon test -S /run/$n
done
export TARN_SOCKET=/run/n1
"#;

/// A recorded workflow of two tasks.
const RECORDED: &str = r#"
cat > montage.json <<'END'
{"name": "montage", "schemaVersion": "1.5", "workflow": {
  "specification": {
    "tasks": [
      {"name": "a", "id": "a", "parents": [], "children": ["b"], "inputFiles": ["raw"], "outputFiles": ["half"]},
      {"name": "b", "id": "b", "parents": ["a"], "children": [], "inputFiles": ["half"], "outputFiles": ["whole"]}],
    "files": [{"id": "raw", "sizeInBytes": 1000000}, {"id": "half", "sizeInBytes": 500000}, {"id": "whole", "sizeInBytes": 9000}]},
  "execution": {"makespanInSeconds": 15, "executedAt": "2026-01-01", "tasks": [
    {"id": "a", "runtimeInSeconds": 10, "coreCount": 1}, {"id": "b", "runtimeInSeconds": 5, "coreCount": 1}]}}}
END
gzip montage.json
"#;

/// A run of that name, and a copy of its log.
const MONTAGE: &str = r#"
cat > montage.toml <<'END'
name = "montage"
[data.picture]
dest = "picture"
[[step]]
name = "draw"
run = "seq 1000 > $TARN_picture/pixels"
out = ["picture"]
END
tarn run montage.toml
mkdir -p path/to
cp .tarn/runs/montage-1/events.log path/to
"#;

pub(crate) const PAGES: &[Page] = &[
    (
        "README.md",
        &[
            (
                "make demo",
                Way::Not(
                    "`make test` is what runs this; `make demo` makes its mosaic, as scripts/montage-check.sh does",
                ),
            ),
            (
                "tarn plan words.toml",
                Way::Run(Run {
                    saves: Some(("toml", "words.toml")),
                    then: "test $(cat result/words) = 3000; tarn run words.toml --nodes 4 > again; grep -q '0 run, 3 unchanged' again",
                    ..PLAIN
                }),
            ),
            (
                "python3 heat.py",
                Way::Run(Run {
                    needs: &["numpy"],
                    saves: Some(("python", "heat.py")),
                    given: &[PACKAGE],
                    then: "python3 heat.py > third; grep -qx 'from 1.100, step 100' third",
                    ..PLAIN
                }),
            ),
        ],
    ),
    (
        "CONTRIBUTING.md",
        &[
            (
                "make check",
                Way::Not(
                    "`make test` runs the same checks; a build inside a test would take too long",
                ),
            ),
            (
                "cut -c10-",
                Way::Run(Run {
                    needs: &["jq"],
                    given: &[WORDS_RUN],
                    ..PLAIN
                }),
            ),
            (
                "TARN_SEED=4711",
                Way::Test("workflow/engine/tests/run_seeds/main.rs", "one_seed"),
            ),
        ],
    ),
    (
        "docs/guide/block.md",
        &[
            (
                "tarn block serve",
                Way::Run(Run {
                    needs: &["nbdkit", "nbdkit.h"],
                    beside: Some("soon test -S /dev/shm/me/socket"),
                    ..PLAIN
                }),
            ),
            (
                "nbdinfo",
                Way::Run(Run {
                    needs: &["nbdkit", "nbdinfo", "nbdkit.h"],
                    ..PLAIN
                }),
            ),
            (
                "nbd-client",
                Way::Not("it needs a kernel with the module nbd"),
            ),
            (
                "nbdfuse",
                Way::Test(
                    "apps/tarn/tests/nbd/kernel.rs",
                    "the_kernel_reads_and_writes_it_and_mounts_a_file_system_on_it",
                ),
            ),
        ],
    ),
    (
        "docs/guide/checkpoint-models.md",
        &[("tarn ckpt model", RUN)],
    ),
    (
        "docs/guide/checkpoints.md",
        &[
            ("make install", RUN),
            (
                "cc heat.c",
                Way::Run(Run {
                    needs: &["cc", "pkg-config"],
                    saves: Some(("c", "heat.c")),
                    then: "./heat | grep -qx 'from step 100'; tarn ckpt ls | grep -q '1.10 durable'",
                    ..PLAIN
                }),
            ),
            (
                "mpicc heat-mpi.c",
                Way::Run(Run {
                    needs: &["cc", "pkg-config", "mpicc", "mpirun"],
                    saves: Some(("c", "heat-mpi.c")),
                    given: &[MPI],
                    then: "mpirun -n 2 ./heat-mpi | grep -qx 'rank 1 from step 100'",
                    ..PLAIN
                }),
            ),
            (
                "gfortran",
                Way::Run(Run {
                    needs: &["cc", "pkg-config", "gfortran"],
                    saves: Some(("fortran", "heat.f90")),
                    then: "./heat-fortran | grep -qx 'from step 100'",
                    ..PLAIN
                }),
            ),
            (
                "tarn ckpt ls --tier",
                Way::Test(
                    "apps/tarn/tests/ckpt.rs",
                    "versions_are_listed_with_what_can_be_restored_of_them",
                ),
            ),
            (
                "tarn ckpt show",
                Way::Test(
                    "apps/tarn/tests/ckpt.rs",
                    "a_flipped_bit_is_found_where_it_is",
                ),
            ),
            (
                "tarn run heat.toml",
                Way::Test(
                    "apps/tarn/tests/restart.rs",
                    "a_step_that_is_killed_goes_on_from_its_newest_version_until_it_is_done",
                ),
            ),
        ],
    ),
    ("docs/admin/energy.md", &[("tarn nodes", RUN)]),
    (
        "docs/guide/first-hour.md",
        &[
            ("tarn doctor", FIRST_HOUR),
            ("mkdir -p first/books", FIRST_HOUR),
            ("tarn why counts", FIRST_HOUR),
            ("seq 4000", FIRST_HOUR),
            ("touch allowed", FIRST_HOUR),
            ("stage-through", FIRST_HOUR),
            ("tarn sim", FIRST_HOUR),
            ("tarn data rm", FIRST_HOUR),
        ],
    ),
    (
        "docs/guide/inside-your-allocation.md",
        &[
            ("mkdir -p words/books", ALLOCATION),
            ("sbatch", ALLOCATION),
            ("--tier fast", ALLOCATION),
            ("both.toml <<", ALLOCATION),
            ("tarn why work", ALLOCATION),
        ],
    ),
    (
        "docs/admin/installing-on-your-cluster.md",
        &[
            ("mkdir -p /etc/tarn", INSTALLING),
            ("enable --now tarnd-controller", INSTALLING),
            (
                "firewall-cmd",
                Way::Not("it needs firewalld; the cluster of the test has no firewall"),
            ),
            ("tarn slurm install\n", INSTALLING),
            ("--check", INSTALLING),
            ("tarn submit", INSTALLING),
            ("tarn usage", INSTALLING),
            ("tarn slurm off", INSTALLING),
            ("--remove", INSTALLING),
            ("disable --now tarnd-site", INSTALLING),
        ],
    ),
    (
        "docs/admin/switching-on.md",
        &[
            ("tarn slurm mode observe", MODES),
            ("tarn slurm status", MODES),
            ("tarn slurm mode drive", MODES),
            ("scontrol show reservation", MODES),
        ],
    ),
    (
        "docs/guide/direct-access.md",
        &[
            (
                "cc -o field",
                Way::Test(
                    "bindings/c/tests/dsa.rs",
                    "the_page_shows_a_program_that_works",
                ),
            ),
            ("tarn partition create", RUN),
        ],
    ),
    (
        "docs/guide/hdf5.md",
        &[
            (
                "n2:fast",
                Way::Run(Run {
                    needs: &["h5dump", "h5py"],
                    saves: Some(("python", "simulate.py")),
                    given: &[PYTHON, TWO_NODES],
                    then: "h5dump -H result.h5 | grep -q '( 1000 )'",
                    ..PLAIN
                }),
            ),
            (
                "watch.py",
                Way::Run(Run {
                    needs: &["h5dump", "h5py"],
                    given: &[WATCH],
                    then: "wait $!",
                    ..PLAIN
                }),
            ),
        ],
    ),
    (
        "docs/guide/install.md",
        &[(
            "spack install",
            Way::Not("no Spack is here, and it builds what it needs for hours"),
        )],
    ),
    ("docs/guide/lower-bound.md", &[("--advice", RUN)]),
    (
        "docs/admin/memory-modes.md",
        &[(
            "tarn mode",
            Way::Test(
                "apps/tarn/tests/mode.rs",
                "a_change_is_made_once_and_a_reboot_makes_it_so",
            ),
        )],
    ),
    (
        "docs/guide/object-stores.md",
        &[
            (
                "AWS_PROFILE=climate",
                Way::Test(
                    "apps/tarn/tests/object_store.rs",
                    "a_run_reads_from_a_store_and_delivers_there",
                ),
            ),
            (
                "tarn data copy",
                Way::Test(
                    "apps/tarn/tests/data_outside.rs",
                    "trees_and_files_are_copied_to_a_store_and_from_it",
                ),
            ),
        ],
    ),
    (
        "docs/guide/objects.md",
        &[
            (
                "export TARN_OBJECTS=store",
                Way::Run(Run {
                    given: &["seq 10 > mesh.dat; mkdir store"],
                    then: "cmp copy.dat mesh.dat; test ! -s store/mesh/coarse/1.obj",
                    ..PLAIN
                }),
            ),
            (
                "--from n2",
                Way::Test(
                    "apps/tarnd/tests/objects.rs",
                    "an_object_is_brought_from_another_node_and_is_the_same_there",
                ),
            ),
        ],
    ),
    (
        "docs/guide/python.md",
        &[
            (
                "pip install",
                Way::Not(
                    "pip gets maturin and numpy from the network; bindings/python/tests lays the package out as a wheel does",
                ),
            ),
            (
                "python3 first.py",
                Way::Run(Run {
                    saves: Some(("python", "first.py")),
                    given: &[PACKAGE],
                    then: "python3 first.py | grep -qx 'done words: 3'",
                    ..PLAIN
                }),
            ),
        ],
    ),
    (
        "research/results.md",
        &[
            ("--policy fcfs,greedy", RUN),
            (
                "for x in",
                Way::Not("FILE stands for recorded workflows that are no part of the repository"),
            ),
            (
                "scripts/measure-code",
                Way::Not("CHECKOUT stands for another state of the repository"),
            ),
            (
                "time make build",
                Way::Not("a release build of everything takes minutes"),
            ),
        ],
    ),
    ("docs/internals/scheduling.md", &[("tarn sim", RUN)]),
    (
        "docs/internals/stacks.md",
        &[(
            "unshare --uts",
            Way::Not(
                "it shows a fault of Open MPI 6.0.0rc2; workflow/node/tests/steps/messages.rs does the same",
            ),
        )],
    ),
    (
        "docs/guide/sim.md",
        &[
            (
                "montage.json.gz",
                Way::Run(Run {
                    given: &[RECORDED],
                    ..PLAIN
                }),
            ),
            (
                "--replay",
                Way::Run(Run {
                    given: &[MONTAGE],
                    ..PLAIN
                }),
            ),
            ("--calibrate", RUN),
        ],
    ),
    (
        "docs/admin/site.md",
        &[
            (
                "store dram=",
                Way::Test(
                    "tests/tests/site/levels.rs",
                    "jobs_hand_on_data_that_came_down_and_goes_up_for_its_reader",
                ),
            ),
            (
                "tarnd --controller",
                Way::Test(
                    "tests/tests/site/jobs.rs",
                    "three_jobs_hand_on_their_data_on_the_nodes",
                ),
            ),
            (
                "tarn slurm audit",
                Way::Test(
                    "tests/tests/site/accounts.rs",
                    "workflows_have_sums_and_metrics_and_ordinary_jobs_an_audit",
                ),
            ),
            (
                "SLURM_TIME_FORMAT=%s sacct",
                Way::Not("it needs slurmdbd, which the test cluster lacks"),
            ),
        ],
    ),
    (
        "docs/guide/on-a-site.md",
        &[
            ("tarn submit", INSTALLING),
            (
                "/kerberos/project",
                Way::Test(
                    "tests/tests/site/data.rs",
                    "a_jobs_own_step_copies_where_only_it_can",
                ),
            ),
            (
                "srun solve",
                Way::Test(
                    "tests/tests/site/scatter.rs",
                    "each_node_of_a_job_has_the_entries_of_its_ranks_and_no_others",
                ),
            ),
            (
                "mpirun heat",
                Way::Test(
                    "tests/tests/site/restart.rs",
                    "a_program_continues_where_its_node_was_lost_its_time_was_over_and_its_user_cancelled_it",
                ),
            ),
            (
                "srun refine",
                Way::Test(
                    "tests/tests/site/exported.rs",
                    "a_job_has_partitions_on_its_nodes_as_long_as_it_is_there",
                ),
            ),
        ],
    ),
    (
        "docs/guide/tasks.md",
        &[
            (
                "# everywhere.sh",
                Way::Test(
                    "tests/tests/tasks.rs",
                    "programs_of_one_step_reach_each_other",
                ),
            ),
            (
                "python3 first.py",
                Way::Run(Run {
                    saves: Some(("python", "first.py")),
                    then: "cmp input.dat /dev/shm/me/input.dat",
                    ..PLAIN
                }),
            ),
            (
                "--external-rate",
                Way::Run(Run {
                    beside: Some("soon test -S /run/user/1000/tarn"),
                    ..PLAIN
                }),
            ),
        ],
    ),
    (
        "docs/internals/testing-slurm.md",
        &[(
            "slurm-cluster up",
            Way::Test("tests/tests/slurm_cluster.rs", "programs_run_over_nodes"),
        )],
    ),
    (
        "docs/guide/verbs.md",
        &[
            (
                "ibv_devinfo",
                Way::Run(Run {
                    needs: &["ibv_devinfo", "ib_write_bw", "verbs.h"],
                    ..PLAIN
                }),
            ),
            (
                "--mmap-offset",
                Way::Run(Run {
                    needs: &["ib_write_bw", "verbs.h"],
                    ..PLAIN
                }),
            ),
        ],
    ),
    (
        "docs/guide/restart.md",
        &[(
            "tarn run count.toml",
            Way::Run(Run {
                saves: Some(("toml", "count.toml")),
                then: "test $(cat result/n) = 5",
                ..PLAIN
            }),
        )],
    ),
    (
        "docs/reference/cluster-file.md",
        &[(
            "--cluster cluster.toml",
            Way::Run(Run {
                saves: Some(("toml", "cluster.toml")),
                ..PLAIN
            }),
        )],
    ),
    (
        "docs/guide/sbatch-scripts.md",
        &[(
            "tarn run count.sh sum.sh",
            Way::Run(Run {
                then: "test $(cat result/lines) = 6",
                ..PLAIN
            }),
        )],
    ),
    (
        "docs/reference/workload-file.md",
        &[(
            "--workload workload.toml",
            Way::Run(Run {
                saves: Some(("toml", "workload.toml")),
                ..PLAIN
            }),
        )],
    ),
    (
        "docs/reference/workflow-file.md",
        &[(
            "tarn run add.toml",
            Way::Run(Run {
                saves: Some(("toml", "add.toml")),
                then: "test $(cat result/sum) = 16",
                ..PLAIN
            }),
        )],
    ),
    (
        "examples/analysis/README.md",
        &[(
            "tarn run",
            Way::Run(Run {
                needs: &["xarray", "dask", "zarr"],
                ..PLAIN
            }),
        )],
    ),
    (
        "examples/checkpoints/README.md",
        &[
            (
                "make install",
                Way::Run(Run {
                    needs: &["gfortran", "pkg-config"],
                    given: &["cd ../..; mkdir /dev/shm/tier"],
                    ..PLAIN
                }),
            ),
            (
                "torch_state.py",
                Way::Test(
                    "bindings/python/tests/python.rs",
                    "training_that_is_killed_goes_on_where_it_was",
                ),
            ),
        ],
    ),
    (
        "examples/lammps/README.md",
        &[(
            "tarn run",
            Way::Run(Run {
                needs: &["lmp"],
                ..PLAIN
            }),
        )],
    ),
    (
        "examples/montage/README.md",
        &[(
            "tarn run",
            Way::Run(Run {
                needs: &["mProjectPP", "astropy"],
                then: "test -s results/picture/mosaic.png",
                ..PLAIN
            }),
        )],
    ),
    (
        "examples/openfoam/README.md",
        &[(
            "salloc",
            Way::Test("tests/tests/openfoam.rs", "mpirun_solves_on_two_nodes"),
        )],
    ),
    ("examples/tasks/README.md", &[("make -C ../.. build", RUN)]),
    (
        "examples/training/README.md",
        &[
            (
                "scripts/python.sh",
                Way::Run(Run {
                    needs: &["torch"],
                    ..PLAIN
                }),
            ),
            (
                "sbatch",
                Way::Test(
                    "tests/tests/training.rs",
                    "training_goes_on_from_a_buddys_memory_when_a_node_is_lost",
                ),
            ),
            (
                "MASTER_PORT",
                Way::Run(Run {
                    needs: &["torch"],
                    ..PLAIN
                }),
            ),
        ],
    ),
    ("examples/weiland-table4/README.md", &[("tarn sim", RUN)]),
];

const FIRST_HOUR: Way = Way::Test(
    "tests/tests/guide.rs",
    "the_first_hour_works_when_followed_word_for_word",
);
const ALLOCATION: Way = Way::Test(
    "tests/tests/guide.rs",
    "the_page_works_when_followed_word_for_word",
);
const INSTALLING: Way = Way::Test(
    "tests/tests/installing.rs",
    "the_page_works_when_followed_word_for_word",
);

const MODES: Way = Way::Test(
    "tests/tests/site/drive.rs",
    "one_command_changes_the_mode_at_once_and_for_good",
);

/// A simulation that writes a file at each of its steps, and a reader that looks at it after one.
const WATCH: &str = r#"
export PATH=$PYTHONS/new/bin:$PATH
cat > simulate.py <<'END'
import h5py
for step in range(3):
    with h5py.File("steps.h5", "w") as file:
        file["x"] = [step]
END
cat > watch.py <<'END'
import h5py
with h5py.File("steps.h5") as file:
    assert file["x"][0] in range(3)
END
"#;
