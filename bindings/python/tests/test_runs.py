"""Tests of tarn.runs and tarn.data against the command: it is in the PATH; argv[1] is the repository."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import tarn
from tarn._command import Output
from tarn.errors import WorkflowFailedError
from tarn.runs import finish

ROOT = sys.argv.pop(1)
WORDS = """
name = "words"
[data.text]
source = "books"
[data.counts]
[data.total]
dest = "result"
[[step]]
name = "count"
foreach = "text/*.txt"
run = "wc -w < $TARN_text/$TARN_ITEM > $TARN_counts/$TARN_ITEM"
in = ["text/{item}"]
out = ["counts"]
[[step]]
name = "sum"
run = "cat $TARN_counts/*.txt | awk '{s+=$1} END {print s}' > $TARN_total/words"
in = ["counts"]
out = ["total"]
"""
WAITS = """
name = "waits"
[data.made]
dest = "made"
[[step]]
name = "wait"
run = "sleep 600; echo done > $TARN_made/done"
out = ["made"]
"""
# A program that is interrupted while it waits for its run.
INTERRUPTED = """
import sys, tarn
seen = []
try:
    tarn.run("waits.toml", local=True, tiers=[sys.argv[1]], on_record=lambda r: seen.append(r["event"]))
except KeyboardInterrupt:
    print("interrupted", seen.count("interrupted"))
"""


def soon(what):
    """Waits until something is true."""
    until = time.monotonic() + 120
    while not what():
        if time.monotonic() > until:
            raise AssertionError("it did not come")
        time.sleep(0.05)


class Place(unittest.TestCase):
    """A folder with workflows, and a tier."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tarn-python-")
        self.addCleanup(folder.cleanup)
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(folder.name)
        self.tier = f"mem={folder.name}/tier:64MiB"
        self.here = {"local": True, "tiers": [self.tier]}
        self.write("books/one.txt", "three short words\n")
        self.write("books/two.txt", "two words\n")
        self.write("words.toml", WORDS)
        self.write("waits.toml", WAITS)

    def write(self, name, text):
        path = pathlib.Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def failed(self, kind, code, call, *arguments, **named):
        with self.assertRaises(kind) as caught:
            call(*arguments, **named)
        self.assertIs(caught.exception.code, code)
        return caught.exception

    def is_waiting(self):
        try:
            return tarn.status().running == 1
        except tarn.NotFoundError:
            return False


class Runs(Place):
    def test_a_workflow_runs_and_is_told_of(self):
        plan = tarn.plan("words.toml", nodes=2, **self.here)
        self.assertEqual(sorted(s.step for s in plan.steps[:2]), ["count[one.txt]", "count[two.txt]"])
        self.assertEqual([s.step for s in plan.steps[2:]], ["sum"])
        self.assertEqual({len(s.nodes) for s in plan.steps}, {1})
        self.assertFalse(os.path.exists("result"))
        seen = []
        done = tarn.run(
            pathlib.Path("words.toml"), nodes=2, report="page.html", on_record=lambda r: seen.append(r["event"]), **self.here
        )
        self.assertEqual((done.outcome, done.run_instances, done.failed_instances), ("done", 3, 0))
        self.assertEqual((done.run, done.workflow, done.policy, done.resumed), ("words-1", "words", "data", 0))
        self.assertEqual([(s.name, s.run) for s in done.steps], [("count", 2), ("sum", 1)])
        self.assertGreater(done.makespan, 0)
        self.assertEqual(done.bytes.external_in, len("three short words\ntwo words\n"))
        self.assertEqual(done.started.utcoffset().total_seconds(), 0)
        self.assertEqual((seen[0], seen.count("ended")), ("started", 3))
        self.assertTrue(os.path.exists("page.html"))
        self.assertEqual(pathlib.Path("result/words").read_text(), "5\n")
        again = tarn.run("words.toml", nodes=2, **self.here)
        self.assertEqual((again.run_instances, again.reused_instances), (0, 3))
        status = tarn.status("words-1")
        self.assertEqual((status.outcome, status.alive, status.committed), ("done", False, 3))
        self.assertEqual([s.outcome for s in tarn.watch("words-1")], ["done"])
        self.assertIn("place sum on", tarn.why("sum", run="words-1")[0].what)
        self.assertEqual(tarn.status(state=".tarn").run, "words-2")

    def test_a_step_that_fails_is_named_and_the_run_resumes(self):
        self.write("words.toml", WORDS.replace("cat $TARN_counts", "test -e $TARN_WORKFLOW_DIR/ready || exit 3; cat $TARN_counts"))
        error = self.failed(tarn.WorkflowFailedError, tarn.ExitCode.WORKFLOW_FAILED, tarn.run, "words.toml", **self.here)
        self.assertIn("words-1 failed", error.message)
        self.assertRegex(error.message, r"sum: .*3")
        self.assertIn("tarn.resume()", error.hint)
        self.assertEqual((error.summary.outcome, error.summary.run_instances), ("failed", 2))
        self.assertEqual([f.what for f in tarn.status().failures], ["sum"])
        self.failed(tarn.WorkflowFailedError, tarn.ExitCode.WORKFLOW_FAILED, tarn.resume)
        self.write("ready", "")
        self.assertEqual(tarn.resume("words-1").outcome, "done")

    def test_scripts_of_another_folder_that_fail_are_named(self):
        script = '#!/bin/bash\n#TARN name = "ww"\nexit {}\n'
        self.write("a/other.sh", script.format(55))
        self.write("a/one.sh", script.format(44))
        self.write("b/one.sh", script.format(44))
        fails = tarn.WorkflowFailedError, tarn.ExitCode.WORKFLOW_FAILED, tarn.run
        # Another run of this name has its state beside a script, and what follows has it here.
        os.chdir("a")
        self.failed(*fails, "other.sh", **self.here)
        os.chdir("..")
        for path in ("a/one.sh", "b/one.sh"):
            error = self.failed(*fails, path, **self.here)
            self.assertRegex(error.message, r"\bone: .*44")
            self.assertNotIn("55", error.message)
            self.assertEqual(error.summary.raw["state"], os.path.abspath(".tarn"))
        self.assertFalse(os.path.exists("b/.tarn"))

    def test_a_run_whose_state_cannot_be_read_afterwards_has_failed(self):
        error = WorkflowFailedError(tarn.ExitCode.WORKFLOW_FAILED, "words-1 failed", None)
        done = tarn.run("words.toml", **self.here)
        for state in ({"state": os.path.abspath("nowhere")}, {}):
            raw = {name: value for name, value in done.raw.items() if name != "state"} | state
            output = Output([raw], "", error)
            with self.assertRaises(WorkflowFailedError) as caught:
                finish(output)
            self.assertEqual(caught.exception.message, "words-1 failed")
            self.assertEqual(caught.exception.summary.run, done.run)

    def test_no_files_are_no_workflow(self):
        for call in (tarn.run, tarn.plan):
            error = self.failed(tarn.InvalidError, tarn.ExitCode.USAGE, call, [])
            self.assertIn("empty", error.message)

    def test_wrong_words_are_told(self):
        self.write("bad.toml", WORDS.replace('name = "count"', 'name = "count"\nrestart = "fti"'))
        error = self.failed(tarn.InvalidError, tarn.ExitCode.INVALID_WORKFLOW, tarn.run, "bad.toml", **self.here)
        self.assertIsInstance(error, ValueError)
        self.assertIn("`fti` is no way to restart step `count`", error.message)
        self.assertIn('write "phx"', error.hint)
        self.failed(tarn.InvalidError, tarn.ExitCode.USAGE, tarn.run, "words.toml", options=["--no-such-option"])
        self.failed(tarn.InvalidError, tarn.ExitCode.USAGE, tarn.plan, "words.toml", nodes=0)
        self.failed(tarn.NotFoundError, tarn.ExitCode.NOT_FOUND, tarn.run, "none.toml")
        self.failed(tarn.NotFoundError, tarn.ExitCode.NOT_FOUND, tarn.status)
        tarn.run("words.toml", **self.here)
        for name in ("paint", "--help"):
            self.failed(tarn.NotFoundError, tarn.ExitCode.NOT_FOUND, tarn.why, name)
        self.failed(tarn.NotFoundError, tarn.ExitCode.NOT_FOUND, tarn.cancel)
        self.write("none.toml", WORDS.replace('name = "words"', 'name = "none"').replace("*.txt", "*.dat").replace("result", "other"))
        self.failed(tarn.NoSpaceError, tarn.ExitCode.NO_SPACE, tarn.run, "none.toml", **self.here)

    def test_a_run_is_cancelled_from_elsewhere(self):
        ended = []

        def run():
            try:
                tarn.run("waits.toml", **self.here)
            except tarn.CancelledError as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        soon(self.is_waiting)
        self.assertTrue(tarn.status().alive)
        self.failed(tarn.BusyError, tarn.ExitCode.BUSY, tarn.run, "waits.toml", **self.here)
        first = next(tarn.watch())
        self.assertEqual((first.outcome, first.alive), ("unfinished", True))
        tarn.cancel()
        thread.join()
        self.assertEqual([error.code for error in ended], [tarn.ExitCode.TERMINATED])
        self.assertIn("resume", ended[0].hint)
        self.assertEqual(tarn.status().outcome, "interrupted")

    def test_control_c_stops_the_run_in_good_order(self):
        # A terminal signals both processes; os.kill and Jupyter signal Python's alone.
        for send in (os.killpg, os.kill):
            with self.subTest(send.__name__):
                command = [sys.executable, "-B", "-c", INTERRUPTED, self.tier]
                program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
                soon(self.is_waiting)
                send(program.pid, signal.SIGINT)
                self.assertEqual(program.communicate(timeout=120)[0], "interrupted 1\n")
                self.assertEqual(tarn.status().outcome, "interrupted")

    def test_control_c_loses_no_record(self):
        # The signal comes while half of a record has been read.
        script = pathlib.Path("half-a-record")
        script.write_text(
            "#!/bin/sh\n"
            "printf '{\"event\":\"opened\"}\\n{\"event\":'; sleep 0.2; kill -INT $PPID; sleep 0.2\n"
            "printf '\"interrupted\"}\\n'; exit 130\n"
        )
        script.chmod(0o755)
        environment = {**os.environ, "TARN_PROGRAM": str(script.absolute())}
        command = [sys.executable, "-B", "-c", INTERRUPTED, self.tier]
        program = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
        self.assertEqual(program.stdout, "interrupted 1\n")

    def test_a_handler_of_the_programs_own_stops_the_run_in_good_order_too(self):
        script = pathlib.Path("signals-first")
        script.write_text(
            "#!/bin/sh\n"
            "trap 'echo {\\\"event\\\":\\\"interrupted\\\"}; exit 130' INT\n"
            "echo '{\"event\":\"opened\"}'; sleep 0.2; kill -INT $PPID; for i in $(seq 100); do sleep 0.1; done\n"
        )
        script.chmod(0o755)
        own = "import signal\ndef own(*_):\n    raise KeyboardInterrupt\nsignal.signal(signal.SIGINT, own)\n"
        environment = {**os.environ, "TARN_PROGRAM": str(script.absolute())}
        command = [sys.executable, "-B", "-c", own + INTERRUPTED, self.tier]
        program = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
        self.assertEqual(program.stdout, "interrupted 1\n")

    def test_a_program_that_is_not_there_is_named(self):
        before = dict(os.environ)
        self.addCleanup(os.environ.update, before)
        self.addCleanup(os.environ.pop, "TARN_PROGRAM", None)
        os.environ["TARN_PROGRAM"] = "/nowhere/tarn"
        error = self.failed(tarn.NotFoundError, tarn.ExitCode.NOT_FOUND, tarn.status)
        self.assertIn("/nowhere/tarn", error.message)
        self.assertIn("TARN_PROGRAM", error.hint)


class Data(Place):
    def test_a_dataset_is_put_read_and_removed(self):
        data = tarn.data
        self.assertEqual(data.put("books", "text", **self.here).outcome, "done")
        self.assertIsNone(data.put("books", "text", **self.here))
        listed = data.list()
        self.assertEqual([(d.workflow, d.dataset, d.kept, d.kept_until) for d in listed], [("put-text", "text", True, None)])
        (there,) = data.where("text")
        self.assertEqual((there.place, there.bytes), ("node0/mem", 28))
        self.assertEqual([r.state for r in data.verify("text")], ["whole"])
        data.get("text", "copy")
        self.assertEqual(sorted(os.listdir("copy")), ["one.txt", "two.txt"])
        data.pin("text")
        file = pathlib.Path(there.path, "one.txt")
        file.chmod(0o644)
        file.write_text("other short words\n")
        error = self.failed(tarn.WorkflowFailedError, tarn.ExitCode.WORKFLOW_FAILED, data.verify, "text")
        self.assertIn("not what was published", error.message)
        data.rm("text")
        self.assertEqual(data.list(), [])
        for call in (data.where, data.verify, data.pin, data.release, data.rm):
            self.failed(tarn.NotFoundError, tarn.ExitCode.NOT_FOUND, call, "text")
        self.failed(tarn.NotFoundError, tarn.ExitCode.NOT_FOUND, data.put, "no-folder", "text", **self.here)

    def test_a_dataset_is_released_and_drained(self):
        tarn.data.put("books", "text", keep="1d", **self.here)
        self.assertIsNotNone(tarn.data.list()[0].kept_until)
        tarn.data.drain("text", "out")
        self.assertEqual(sorted(os.listdir("out")), ["one.txt", "two.txt"])
        tarn.data.put("books", "text", **self.here)
        tarn.data.release("text")
        self.assertFalse([d for d in tarn.data.list() if d.place == "node0/mem"])


class Codes(unittest.TestCase):
    def rows(self, page):
        with open(os.path.join(ROOT, "docs/reference", page)) as file:
            return re.findall(r"^\| (\d+) \| `?(\w+)`? \|", file.read(), re.MULTILINE)

    def test_they_are_those_of_the_reference(self):
        own = {(str(code.value), code.name.replace("_", "").lower()) for code in tarn.ExitCode}
        self.assertEqual(own, {(number, name.lower()) for number, name in self.rows("exit-codes.md")})
        own = {(str(code.value), code.name) for code in tarn.Code if code}
        self.assertEqual(own, set(self.rows("task-codes.md")))


if __name__ == "__main__":
    unittest.main()
