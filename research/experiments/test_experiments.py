"""Tests of what the experiments share, and that each has its page: /usr/bin/python3 -m unittest discover -s research/experiments."""

import json
import os
import re
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import dsa
import experiment
import flowjobs
import ior
import onslurm
import table4
from experiment import FAILS, HOLDS, MIB, TOP, UNCLEAR, check_bounds, claim, every, exact, factors, point, some, spread, times

FOLDER = os.path.join(TOP, "research", "experiments")
PAGES = os.path.join(TOP, "research", "evidence")
NAMES = sorted(name.removesuffix(".py") for name in os.listdir(FOLDER) if name.endswith(".py") and os.access(os.path.join(FOLDER, name), os.X_OK))
# What a page says, each at the beginning of a paragraph.
SECTIONS = (r"\*\*The papers?\*\*", r"\*\*Here\*\*", r"\*\*Emulated\*\*", r"\*\*Repeated\*\*", r"\*\*What may be concluded\*\*")
# What `--quick` and everything may take, in minutes.
QUICK, FULL = 15, 85
IOR_4 = """IOR-4.0.0: MPI Coordinated Test of Parallel I/O
Began               : Thu Nov 26 10:00:00 2026
Command line        : ior -a POSIX -w -r -R -C -e -t 1048576 -F -b 16777216 -o /x/ior
Options:
api                 : POSIX
access              : file-per-process

Results:

access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----
write     1351.28    1365.92    0.002922    16384      1024.00    0.000208   0.046959   0.000026   0.047363   0
read      2713.01    2813.92    0.001422    16384      1024.00    0.000108   0.023259   0.000016   0.023590   0
Max Write: 1351.28 MiB/sec (1416.92 MB/sec)
Max Read:  2713.01 MiB/sec (2844.80 MB/sec)

Summary of all tests:
Operation   Max(MiB)   Min(MiB)  Mean(MiB)     StdDev   Max(OPs)   Min(OPs)  Mean(OPs)     StdDev    Mean(s)
write        1351.28    1351.28    1351.28       0.00    1351.28    1351.28    1351.28       0.00    9.99999
read         2713.01    2713.01    2713.01       0.00    2713.01    2713.01    2713.01       0.00    9.99999
Finished            : Thu Nov 26 10:00:01 2026
"""
IOR_3 = """IOR-3.2.1: MPI Coordinated Test of Parallel I/O
access    bw(MiB/s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ---------- ---------  --------   --------   --------   --------   ----
write     7.00       45.91      45.91      0.000208   0.5        0.000026   0.5125     0
read      9.00       45.91      45.91      0.000108   0.2        0.000016   0.25       0
remove    -          -          -          -          -          -          0.000100   0
Max Write: 7.00 MiB/sec (7.34 MB/sec)
"""


def about(name):
    """What an experiment says of itself."""
    return json.loads(subprocess.run([os.path.join(FOLDER, f"{name}.py"), "about"], check=True, capture_output=True, text=True).stdout)


def text(path):
    """A file's."""
    with open(path, encoding="utf-8") as file:
        return file.read()


class Verdicts(unittest.TestCase):
    """One rule for all claims."""

    def test_all_repetitions_must_support_it(self):
        self.assertEqual(check_bounds([1.1, 1.5, 1.3], least=1), HOLDS)
        self.assertEqual(check_bounds([0.9, 1.5, 1.3], least=1), UNCLEAR)
        self.assertEqual(check_bounds([0.9, 0.8], least=1), FAILS)
        self.assertEqual(check_bounds([0.9, 0.8], most=1), HOLDS)
        self.assertEqual(check_bounds([0.9, 1.1], most=1), UNCLEAR)
        self.assertEqual(check_bounds([1.2, 1.1], most=1), FAILS)
        self.assertEqual(check_bounds([0.9, 1.1], least=0.8, most=1.25), HOLDS)
        self.assertEqual(check_bounds([0.9, 1.3], least=0.8, most=1.25), UNCLEAR)
        self.assertEqual(check_bounds([1.3, 1.4], least=0.8, most=1.25), FAILS)

    def test_one_round_alone_needs_a_factor_of_two(self):
        self.assertEqual([check_bounds([x], least=1) for x in (2, 1.99, 1, 0.51, 0.49)], [HOLDS, UNCLEAR, UNCLEAR, UNCLEAR, FAILS])
        self.assertEqual([check_bounds([x], most=1) for x in (0.5, 0.51, 1.99, 2.01)], [HOLDS, UNCLEAR, UNCLEAR, FAILS])
        self.assertEqual(check_bounds([1], least=0.8, most=1.25), UNCLEAR)

    def test_two_things_are_compared_by_all_their_repetitions(self):
        self.assertEqual(times([4, 6], [1, 2]), [2, 6])
        self.assertEqual(times([4], [2]), [2])
        # Pair by pair the one is larger each time; its spread still overlaps.
        self.assertEqual(check_bounds(times([2, 4], [1, 3]), least=1), UNCLEAR)
        self.assertEqual(check_bounds(times([4, 5], [1, 3]), least=1), HOLDS)
        self.assertEqual(check_bounds(times([1, 2], [3, 4]), least=1), FAILS)
        for more, less in (([1, 2], [1]), ([], [])):
            with self.assertRaises(ValueError):
                times(more, less)

    def test_parts_and_best_cases(self):
        self.assertEqual([every(HOLDS, HOLDS), every(HOLDS, UNCLEAR), every(HOLDS, UNCLEAR, FAILS)], [HOLDS, UNCLEAR, FAILS])
        self.assertEqual([some(FAILS, HOLDS), some(FAILS, UNCLEAR), some(FAILS, FAILS)], [HOLDS, UNCLEAR, FAILS])
        self.assertEqual([exact(True), exact(False)], [HOLDS, FAILS])
        for nothing in (every, some, lambda: check_bounds([1])):
            with self.assertRaises(ValueError):
                nothing()

    def test_a_claim_takes_a_verdict_of_the_rule_only(self):
        self.assertEqual(claim("c", "p", "h", check_bounds([3], least=1))["verdict"], HOLDS)
        for other in (True, False, None, "maybe"):
            with self.assertRaises(ValueError):
                claim("c", "p", "h", other)

    def test_no_experiment_has_a_rule_of_its_own(self):
        for name in NAMES:
            with self.subTest(name):
                source = text(os.path.join(FOLDER, f"{name}.py"))
                self.assertNotRegex(source, r"\b(HOLDS|FAILS)\b|[\"'](holds|fails|unclear)[\"']")
                # Nothing but "it was not tried" and "it was fitted" is unclear by itself.
                self.assertNotRegex(source, r"True if|else False|UNCLEAR if (?!bench\.quick else)")
                self.assertIn("claim(", source)


class Figures(unittest.TestCase):
    """Medians, with the least and the greatest."""

    def test_medians_and_spread(self):
        self.assertEqual(spread([3, 1, 2]), {"value": 2, "low": 1, "high": 3})
        self.assertEqual(spread(iter([4, 1, 2, 3]), paper=7), {"value": 2.5, "low": 1, "high": 4, "paper": 7})
        self.assertEqual(spread([5]), {"value": 5})
        self.assertEqual(point("x", [3, 1, 2]), ["x", 2, 1, 3])
        self.assertEqual(point(8, [5]), [8, 5])

    def test_ranges_of_factors(self):
        self.assertEqual([factors([1.04, 2.26]), factors([2, 2.04]), factors([1.234], 2)], ["1.0 to 2.3 times", "2.0 times", "1.23 times"])


class Needs(unittest.TestCase):
    """What an experiment needs is looked for before it begins."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = folder.name

    def put(self, path, **files):
        """A control group."""
        os.makedirs(os.path.join(self.top, path), exist_ok=True)
        for name, value in files.items():
            with open(os.path.join(self.top, path, f"memory.{name}"), "w", encoding="ascii") as file:
                file.write(f"{value}\n")

    def left(self, own):
        """What groups leave to a process whose line that is."""
        path = os.path.join(self.top, "own")
        with open(path, "w", encoding="ascii") as file:
            file.write(own)
        return experiment.group_memory(path, self.top)

    def test_groups_above_count_too_and_cached_files_are_free(self):
        self.put("a/b", max="max", current=10 * MIB, stat="inactive_file 0")
        self.assertIsNone(self.left("0::/a/b\n"))
        self.put("a", max=100 * MIB, current=70 * MIB, stat=f"anon 1\ninactive_file {20 * MIB}")
        self.assertEqual(self.left("0::/a/b\n"), 50 * MIB)
        self.put("a/b", max=40 * MIB, current=10 * MIB, stat="inactive_file 0")
        self.assertEqual(self.left("0::/a/b\n"), 30 * MIB)
        # That of a container is the root.
        self.put(".", max=8 * MIB, current=MIB, stat="inactive_file 0")
        self.assertEqual(self.left("1:name=systemd:/\n0::/\n"), 7 * MIB)

    def test_those_of_version_1(self):
        self.put("memory/x", **{"limit_in_bytes": 100 * MIB, "usage_in_bytes": 60 * MIB, "stat": f"inactive_file 0\ntotal_inactive_file {10 * MIB}"})
        self.assertEqual(self.left("4:cpu,memory:/x\n0::/\n"), 50 * MIB)
        self.assertIsNone(self.left("4:cpu:/x\n"))

    def test_the_least_of_machine_and_groups_is_free(self):
        meminfo = os.path.join(self.top, "meminfo")
        with open(meminfo, "w", encoding="ascii") as file:
            file.write("MemTotal: 9999999 kB\nMemAvailable: 2097152 kB\n")
        for left, free in ((None, 2048), (512 * MIB, 512), (8192 * MIB, 2048), (-5, 0)):
            self.assertEqual(experiment.free_memory(meminfo, lambda left=left: left), free)

    def test_what_lacks_is_said(self):
        def disk(path):
            return types.SimpleNamespace(free=(64 if path == "/dev/shm" else 128) * MIB)

        cases = (
            ({"programs": {"no-such-program": "build it"}}, "needs no-such-program: build it"),
            ({"memory": 301}, "needs 301 MiB of free memory, 300 are there"),
            ({"shm": 65}, "needs 65 MiB in /dev/shm, 64 are free"),
            ({"disk": ("/scratch", 129)}, "needs 129 MiB on the disk of /scratch, 128 are free"),
        )
        with mock.patch.object(experiment, "free_memory", lambda: 300), mock.patch.object(experiment.shutil, "disk_usage", disk), mock.patch.object(experiment, "report_progress") as report_progress:
            for words, lacks in cases:
                with self.assertRaises(SystemExit) as ended:
                    experiment.need(**words)
                self.assertEqual(ended.exception.code, 3)
                self.assertIn(lacks, report_progress.call_args[0][0])
            report_progress.reset_mock()
            experiment.need(memory=300, shm=64, disk=("/scratch", 128))
            report_progress.assert_not_called()


class Parsers(unittest.TestCase):
    """What other programs say."""

    def test_iors_own_output(self):
        self.assertEqual(ior.seconds(IOR_4), {"write": 0.047363, "read": 0.02359})
        self.assertEqual(ior.seconds(IOR_3), {"write": 0.5125, "read": 0.25})
        self.assertEqual(ior.seconds("write 1.500000\nread 0.250000\n"), {"write": 1.5, "read": 0.25})
        for bad in ("", "write 1.0\n", IOR_4[: IOR_4.index("read  ")]):
            with self.assertRaises(SystemExit):
                ior.seconds(bad)

    def test_ior_is_used_where_it_is_installed_and_told_with_its_version(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("ior", "mpirun"):
                path = os.path.join(folder, name)
                with open(path, "w", encoding="ascii") as file:
                    file.write("#!/bin/sh\n")
                os.chmod(path, 0o755)
            with mock.patch.dict(os.environ, {"PATH": folder}):
                found = ior.Ior(folder, "how")
            self.assertEqual(found.seconds(IOR_4)["read"], 0.02359)
            self.assertEqual(found.name(), f"IOR 4.0.0 ({folder}/ior)")
            self.assertEqual(found.words("posix", "fpp", MIB, 16, "f")[1:], "-a POSIX -w -r -R -C -e -t 1048576 -F -b 16777216 -o f".split())
            self.assertEqual(found.words("mpiio", "shared", 47008, 100, "f")[1:], "-a MPIIO -w -r -R -C -e -t 47008 -b 47008 -s 100 -o f".split())

    def test_the_stand_in_is_named_as_such(self):
        found = ior.Ior.__new__(ior.Ior)
        found.installed, found.program, found.version = None, "/x/ior", None
        self.assertIn("a stand-in for IOR", found.name())
        self.assertEqual(found.words("mpiio", "shared", 47008, 100, "f"), ["/x/ior", "mpiio", "shared", "47008", "100", "f"])

    def test_rates_of_a_whole_script(self):
        table3 = module("jackson-table3")
        found = ior.Ior.__new__(ior.Ior)
        found.installed, found.program, found.version = "/usr/bin/ior", "/usr/bin/ior", None
        output = "".join(f"TURN {turn} posix {pattern}\n{IOR_4}" for turn in range(3) for pattern in ("fpp", "shared"))
        rates = table3.rates(output, found, 16 * MIB)
        self.assertEqual(sorted(rates), [("posix", pattern, what) for pattern in ("fpp", "shared") for what in ("read", "write")])
        # The first warms up.
        self.assertEqual(len(rates[("posix", "fpp", "write")]), 2)
        self.assertAlmostEqual(rates[("posix", "fpp", "write")][0], 4 * 16 * MIB / 1e6 / 0.047363)

    def test_the_script_of_table_3_runs_both(self):
        table3 = module("jackson-table3")
        with tempfile.TemporaryDirectory() as folder:
            for program, installed in (("/usr/bin/ior", "/usr/bin/ior"), ("/shared/ior", None)):
                found = ior.Ior.__new__(ior.Ior)
                found.installed, found.program = installed, program
                path = table3.shell(os.path.join(folder, "ior.sh"), found, MIB, 1)
                subprocess.run(["bash", "-n", path], check=True)
                # Played: what mpirun is told, as it would be.
                played = subprocess.run(["bash", "-c", f'mpirun() {{ echo "$@"; }}; . {path}', "x", folder, "--some"], check=True, capture_output=True, text=True).stdout
                self.assertEqual(played.count("TURN "), 8)
                wanted = f"--some -np 4 {program} " + ("-a MPIIO -w" if installed else f"mpiio shared 47008 22 {folder}/ior")
                self.assertIn(wanted, played)

    def test_fio_and_dd(self):
        output = 'fio: a note\n{"jobs": [{"read": {"bw_bytes": 0}, "write": {"bw_bytes": 2500000000}}]}'
        self.assertEqual(dsa.fio_rate(output, "write"), 2.5)
        self.assertAlmostEqual(dsa.dd_rate("256+0 records in\n256+0 records out\n268435456 bytes (268 MB, 256 MiB) copied, 0.134217728 s, 2.0 GB/s\n"), 2.0)
        self.assertAlmostEqual(dsa.dd_rate("1000000 bytes (1.0 MB, 977 KiB) copied, 1e-3 s, 1.0 GB/s"), 1.0)

    def test_what_tarns_benchmarks_are_called(self):
        import producers

        figures = {
            "1 pair(s) x 10 x 10.486 MB, external directory (fuse.glusterfs), without cache (O_DIRECT): write, median": (2.0, None),
            "1 pair(s) x 10 x 10.486 MB, node tier (tmpfs), with cache (page cache): read, least": (0.5, None),
            "1 pair(s) x 10 x 10.486 MB, tarn run (x): write, median": (0.25, None),
        }
        bench = types.SimpleNamespace(figures=lambda *_: figures, folder="/x")
        found = producers.measured(bench, "/o", 1, 0.01, 2)
        wanted = {(10, "external store", "without"): {"write, median": 2.0}, (10, "tier", "with"): {"read, least": 0.5}, (10, producers.BY_TARN, None): {"write, median": 0.25}}
        self.assertEqual(found, wanted)
        ends = {"write, least": 1, "write, most": 2, "read, least": 3, "read, most": 4}
        self.assertEqual((producers.ends(ends, 2, "write", "read"), producers.ends(ends, 1, "write")), ([4, 6], [2]))


class OnSlurm(unittest.TestCase):
    """What experiments on a real Slurm submit, and what they give the simulator."""

    def test_table_4_as_jobs(self):
        weiland = module("weiland-slurm")
        specs = weiland.specs_of(0.2, [job[0] for job in weiland.JOBS])
        alone, local = ({job.name: job for job in flowjobs.jobs_of(mode, specs)} for mode in (onslurm.BACKFILL, "advise"))
        self.assertEqual([job.name for job in flowjobs.jobs_of("advise", specs)], [f"job{n}" for n in range(1, 11)])
        # Ordinary jobs are the same, and the workflow's differ in where their data are.
        for name, job in alone.items():
            self.assertEqual(job.lines, [], name)
            self.assertEqual(job == local[name], name not in weiland.FLOW_NAMES, name)
        # 330 s of the paper are 66 s here, and Slurm's limits are whole minutes.
        self.assertEqual((alone["job7"].minutes, alone["job7"].after), (2, "job1"))
        thirty = flowjobs.size(6)
        self.assertIn(f"/shared/bin/part /store/of_job1 {thirty} 36.000 /store/of_job7 {4 * thirty}", alone["job7"].body)
        self.assertIn('in = ["of_job1:scatter"]', local["job7"].lines)
        self.assertIn(f"/shared/bin/part $TARN_of_job1 {thirty} 36.000 $TARN_of_job7 {flowjobs.size(2)} $TARN_rest_job7 {flowjobs.size(22)}", local["job7"].body)

    def test_who_is_submitted_how(self):
        jobs = [
            onslurm.Job("a", 1, 1, "true"),
            onslurm.Job("b", 1, 1, "true", at=1, lines=["x"], flow="f"),
            onslurm.Job("c", 1, 1, "true", at=1, after="b", lines=["x"], flow="f"),
            onslurm.Job("d", 1, 1, "true", at=2, after="a"),
        ]
        words = {together: [item["words"] for item in onslurm.planned(jobs, together)] for together in (True, False)}
        last = ["sbatch", "--parsable", "-d", "afterok:{a}", "d.sh"]
        self.assertEqual(words[True], [["sbatch", "--parsable", "a.sh"], ["tarn", "submit", "b.sh", "c.sh"], last])
        self.assertEqual(words[False], [["sbatch", "--parsable", f"{name}.sh"] for name in "abc"] + [last])

    def test_nodes_of_slurm(self):
        self.assertEqual(onslurm.hosts("node[1-3,7]"), [1, 2, 3, 7])
        self.assertEqual(onslurm.hosts("node12"), [12])

    def test_a_controllers_last_words(self):
        log = "2026-11-30T16:00:47Z  INFO begins\n2026-11-30T16:00:48Z ERROR /shared/site.toml: TOML parse error\\n  |\\nunknown field `mode`, expected one of `nodes`, `sinfo`\\n"
        self.assertEqual(onslurm.last_words(log), "/shared/site.toml: TOML parse error | unknown field `mode`")

    def test_the_auditors_verdict(self):
        verdicts = [onslurm.audited("", delayed)["verdict"] for delayed in ([0], [0, 0], [0, 1], [1, 2])]
        self.assertEqual(verdicts, ["holds", "holds", "unclear", "fails"])
        self.assertEqual(onslurm.audited("", [0, 1])["here"], "0, 1 jobs in 2 runs")

    def test_days_of_the_trace(self):
        mixed = module("slurm-mixed-day")
        for day in range(len(mixed.DAYS)):
            specs, span = mixed.trace(day, mixed.JOBS_A_DAY, 0.01, mixed.NODES)
            self.assertEqual(len(specs), mixed.JOBS_A_DAY)
            self.assertTrue(700 < span < 900, span)
            self.assertTrue(all(0 < spec.compute <= spec.limit and 1 <= spec.nodes <= mixed.NODES for spec in specs))
            flows = mixed.flows(day, mixed.FLOWS, span, 0.01, mixed.NODES)
            self.assertEqual(len(flows), 3 * mixed.FLOWS)
            self.assertEqual(flows, mixed.flows(day, mixed.FLOWS, span, 0.01, mixed.NODES))

    def test_figures_of_a_day(self):
        mixed = module("slurm-mixed-day")
        specs = [flowjobs.Spec("a", 2, 0, 20, 0, 30), flowjobs.Spec("w_1", 1, 0, 5, 0, 9, at=10, flow="w"), flowjobs.Spec("w_2", 1, 0, 5, 0, 9, before="w_1", at=10, flow="w")]
        times_of = {name: dict(zip(("started", "began", "left"), of)) for name, of in {"a": (19, 20, 40), "w_1": (11, 12, 17), "w_2": (18, 21, 50)}.items()}
        found = mixed.figures(specs, times_of, 2)
        self.assertEqual(found, {"flows": 40, "ordinary": 2.0, "use": (40 + 5 + 29) / 100, "queue": 2, "gate": 4, "commands": 34})

    def test_when_commands_of_a_simulated_slurm_run(self):
        # Job w_1 gets its nodes, two parts of the machine, at 2 s, begins at 2.5 s, and ends 0.05 s before they are free; the other has no such times.
        boxes = [[0, 0, node, node + 1, 2_000_000, 9_000_000, 0, 4] for node in (0, 3)] + [[1, -1, 1, 2, 0, 5_000_000, 0, 0]]
        idle = [[node, node + 1, *times_of, 0, table4.IDLE] for times_of in ((2_000_000, 2_500_000), (8_950_000, 9_000_000)) for node in (0, 3)]
        reads = [[1, 2, 0, 1_000_000, 1, 0]]
        found = table4.simulation({"policy": "x"}, {"names": ["flow/w_1", "a"], "boxes": boxes, "phases": reads + idle})
        self.assertEqual(found.commands, {"w_1": (2.5, 8.95), "a": (0, 5)})
        self.assertEqual(found.boxes, [("w_1", 0, 1, 2, 9), ("w_1", 3, 4, 2, 9), ("a", 1, 2, 0, 5)])

    def test_what_the_simulator_is_given(self):
        specs = [flowjobs.Spec("a", 2, 0, 20, 0, 30), flowjobs.Spec("b", 1, 0, 5, 2, 9, flow="w"), flowjobs.Spec("c", 1, 2, 5, 0, 9, before="b", at=3, flow="w")]

        def simulate(_, __, workload, policies, modes=()):
            return [(policies, way, text(workload)) for way in [*policies, *modes]]

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(flowjobs, "simulate", simulate):
            bench = types.SimpleNamespace(folder=folder)
            plain = flowjobs.simulated(bench, specs, 4)
            found = flowjobs.predicted(bench, specs, 4, ["backfill", "advise", "drive"], 59.5)
        self.assertEqual([way for _, way, _ in plain.values()], ["easy", "data"])
        self.assertEqual({mode: [way for _, way, _ in of] for mode, of in found.items()}, {"backfill": ["alone"] * 5, "advise": ["advise"] * 5, "drive": ["drive"] * 5})
        self.assertEqual({tuple(policies) for policies, _, _ in found["drive"]}, {("data:bound=60s",)})
        # Times are those of the real jobs, limits Slurm's; jobs come at other parts of a second each time.
        texts = [of for _, _, of in found["drive"]]
        self.assertTrue(all('limit = "60.000000s"' in of and 'compute = "20.000000s"' in of for of in texts))
        self.assertEqual([re.findall(r'arrives = "([0-9.]+)s"', of) for of in texts[:2]], [[f"{later + at:.6f}" for at in (0, 0, 3)] for later in flowjobs.PHASES[:2]])
        # srun takes time where a program reads or writes.
        self.assertIn(f'compute = "{5 + flowjobs.SRUN + flowjobs.SRUN_NODE:.6f}s"', texts[0])
        # Where tarn is, only what one job hands to the next is data.
        self.assertEqual([of[0][2].count("outside = true") for of in (found["backfill"], found["drive"])], [0, 0])
        self.assertEqual([of[0][2].count("[data.") for of in (found["backfill"], found["drive"])], [1, 1])

    def test_predictions_of_a_day(self):
        mixed = module("slurm-mixed-day")
        specs = [flowjobs.Spec("a", 1, 0, 20, 0, 30), flowjobs.Spec("w_1", 1, 0, 5, 0, 9, flow="w")]

        def of(begin):
            boxes = [(spec.name, 0, 1, begin, begin + 7) for spec in specs]
            return table4.Simulation({}, boxes, {spec.name: (begin + 1, begin + 6) for spec in specs})

        bench = types.SimpleNamespace(options=types.SimpleNamespace(bound=60))
        made = {"backfill": [of(2.75)] * 5, "drive": [of(begin) for begin in (1, 1, 1, 1, 2.25)]}
        with mock.patch.object(mixed, "predicted", lambda *_: made), mock.patch.object(mixed, "simulated", lambda *_: {"data": of(0.5)}):
            found = mixed.prediction_of_day(bench, ["backfill", "drive"], specs, 1)
        self.assertEqual({way: figures["flows"] for way, figures in found.items()}, {"backfill": 8.75, "drive": 7.25, "data": 6.5})
        # Slurm's own times are whole seconds of its clock; the planner's are not. Jobs got nodes at 2.85, 3.05, 3.25, 3.45 and 3.65 s by it.
        self.assertAlmostEqual(found["backfill"]["gate"], 1 + (0.85 + 0.05 + 0.25 + 0.45 + 0.65) / 5)
        self.assertEqual(found["data"]["gate"], 1)
        near = dict(found["drive"], flows=7.9)
        runs = {"backfill": [found["backfill"]] * 2, "drive": [near, dict(near, flows=8.5)]}
        claims = {words["claim"].removeprefix("a mixed day of a real Slurm 22.05, "): (words["here"], words["verdict"]) for words in mixed.predictions(runs, [found] * 2, "22.05")}
        self.assertEqual(len(claims), 4)
        self.assertEqual(claims["Slurm alone: workflows' mean time to solution is within 10 % of the prediction"], ("1.00 times", HOLDS))
        self.assertEqual(claims["tarn, drive: workflows' mean time to solution is within 10 % of the prediction"], ("1.09 to 1.17 times", UNCLEAR))
        columns = mixed.tables(runs, [found] * 2, [0, 1])[0]["columns"]
        self.assertEqual(columns, ["", "Slurm alone", "tarn, drive", "simulated: Slurm alone", "simulated: tarn, drive", "simulated, data"])

    def test_predictions_of_table_4(self):
        weiland = module("weiland-slurm")
        specs = weiland.specs_of(0.5, weiland.FLOW)

        def of(left):
            return table4.Simulation({}, [(name, 0, 4, 1, 9) for name in weiland.FLOW_NAMES], {name: (2, left) for name in weiland.FLOW_NAMES})

        made = {mode: [of(left) for left in (8, 12, 7, 8, 11)] for mode in ("backfill", "drive")}
        with mock.patch.object(weiland, "predicted", lambda *_: made), mock.patch.object(weiland, "simulated", lambda *_, **__: {"easy": of(9), "data": of(5)}):
            found = weiland.predictions_of(None, list(made), 0.5, specs, 4) | weiland.simulations(None, 0.5, specs, 4)
        self.assertEqual(list(found)[:3], ["simulated: Slurm alone", "simulated: tarn, drive", "simulated, easy"])
        # The run with the median.
        self.assertEqual([found["simulated: tarn, drive"][key] for key in ("flow", "last")], [16, 16])
        self.assertEqual(found["simulated, data"]["starts"]["job7"], 4)
        runs = {mode: weiland.Runs(0.5) for mode in ("backfill", "drive")}
        for mode, left in (("backfill", 8.4), ("backfill", 8.6), ("drive", 9), ("drive", 9.2)):
            runs[mode].runs.append({name: {"left": left} for name in weiland.FLOW_NAMES})
        verdicts = [(words["here"], words["verdict"]) for words in weiland.predictions(runs, found, "22.05")]
        self.assertEqual(verdicts, [("1.05 to 1.07 times", HOLDS)] * 2 + [("1.12 to 1.15 times", FAILS)] * 2)


class Pages(unittest.TestCase):
    """Each experiment has its page, and each page its experiment."""

    def test_names(self):
        pages = sorted(name.removesuffix(".md") for name in os.listdir(PAGES) if name.endswith(".md") and name != "README.md")
        self.assertEqual(pages, NAMES)

    def test_sections(self):
        for name in NAMES:
            page = text(os.path.join(PAGES, f"{name}.md"))
            with self.subTest(name):
                self.assertIn(f"tarn reproduce {name}", page)
                found = [re.search(f"^{section}", page, re.MULTILINE) for section in SECTIONS]
                self.assertNotIn(None, found, SECTIONS[found.index(None)] if None in found else "")
                places = [match.start() for match in found]
                self.assertEqual(places, sorted(places))
                repeated = page[places[3] : places[4]]
                self.assertTrue("`--quick`" in repeated or "Nothing is measured" in repeated, repeated)

    def test_what_only_tarns_clocks_have_measured_says_so(self):
        for name in NAMES:
            source = text(os.path.join(FOLDER, f"{name}.py"))
            if re.search(r"bench\.figures|measured\(bench|bench\.json\(\"bench\"|tarn-run|__io \{role\}", source):
                with self.subTest(name):
                    self.assertRegex(source, r"by tarn\)|taken = time\.monotonic\(\) - began")

    def test_minutes(self):
        all_of_them = [about(name) for name in NAMES]
        for words in all_of_them:
            self.assertEqual(sorted(words.keys() - {"on_request"}), ["minutes", "needs", "source", "title"])
        usual = [words for words in all_of_them if not words.get("on_request")]
        self.assertEqual(len(all_of_them) - len(usual), 2)
        for key, most in (("quick", QUICK), ("full", FULL)):
            self.assertLessEqual(sum(words["minutes"][key] for words in usual), most, key)


class Benchmarks(unittest.TestCase):
    """The programs in bench/, which make the figures of results.md, find what they import."""

    def test_each_starts(self):
        folder = os.path.join(TOP, "bench")
        names = [name for name in sorted(os.listdir(folder)) if name.endswith(".py")]
        self.assertGreater(len(names), 5)
        for name in names:
            with self.subTest(name):
                command = [sys.executable, os.path.join(folder, name), "--help"]
                ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(ended.returncode, 0, ended.stderr)


def module(name):
    """An experiment, whose name is none of a module."""
    made = types.ModuleType(name.replace("-", "_"))
    with mock.patch.object(sys, "path", [FOLDER, *sys.path]):
        exec(compile(text(os.path.join(FOLDER, f"{name}.py")), name, "exec"), made.__dict__)
    return made


if __name__ == "__main__":
    unittest.main()
