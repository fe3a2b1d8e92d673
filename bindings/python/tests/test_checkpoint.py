"""Tests of the package: TARN_PHX_TIER and TARN_PHX_MEMORY name folders that are this test's."""

import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
import weakref

import numpy

from tarn import checkpoint

MIB = 1 << 20


def run(*arguments):
    return subprocess.run([sys.executable, "-B", __file__, *arguments], capture_output=True, text=True, timeout=60)


def simulate(name, until, rank="0", ranks="1", death="no"):
    """A program: each step follows from the one before. It commits each, and kills itself at the end if it is told to."""
    rank, ranks = int(rank), int(ranks)
    with checkpoint.Checkpoints(run=name, rank=rank, ranks=ranks, staging=checkpoint.ALL, timeout=20) as ck:
        rows = 1200 // ranks
        block = checkpoint.Block(all=(1200, 100), first=(rank * rows, 0))
        field = ck.zeros("field", (rows, 100), shape_of=block)
        step = numpy.zeros(1, "i8")
        ck.register("step", step, shape_of=checkpoint.REPLICATED)
        version = ck.restart()
        truth = numpy.arange(1200.0 * 100).reshape(1200, 100)[rank * rows:(rank + 1) * rows]
        if version is None:
            field[:] = truth
        print(f"restored {version} step {step[0]} right {numpy.array_equal(field, truth + step[0])}")
        while step[0] < int(until):
            step += 1
            field += 1
            version = ck.commit()
        if death == "kill":
            ck.wait(version, checkpoint.Level.COMMITTED)
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)


class Runs(unittest.TestCase):
    """Whole programs."""

    def test_a_tier_that_is_not_there_is_not_made_on_the_root_disk(self):
        lost = f"/tarn-no-such-{os.getpid()}"
        for tier, why in (f"{lost}/me", "root disk"), ("no-such-tier/me", "not an absolute path"):
            with self.assertRaisesRegex(checkpoint.InvalidError, why):
                checkpoint.Checkpoints(run="lost", tier=tier)
        self.assertFalse(os.path.exists(lost) or os.path.exists("no-such-tier"))

    def test_a_restart_that_would_leave_out_an_array_is_refused(self):
        with checkpoint.Checkpoints(run="fewer") as ck:
            ck.zeros("a", 3)
            ck.zeros("b", 3)
            ck.commit()
        with checkpoint.Checkpoints(run="fewer") as ck:
            ck.zeros("a", 3)
            with self.assertRaisesRegex(checkpoint.InvalidError, "the version has object \"b\" of 24 bytes"):
                ck.restart()

    def test_a_killed_program_goes_on_where_it_was(self):
        self.assertEqual(run("killed", "5", "0", "1", "kill").returncode, -signal.SIGKILL)
        second = run("killed", "7", "0", "1", "kill")
        self.assertEqual((second.stdout, second.returncode), ("restored 1.5 step 5 right True\n", -signal.SIGKILL), second.stderr)
        third = run("killed", "8")
        self.assertEqual((third.stdout, third.returncode), ("restored 2.2 step 7 right True\n", 0), third.stderr)

    def test_two_ranks_are_three_ranks_later(self):
        for ranks, until, wanted in [(2, "4", "restored None step 0 right True\n"), (3, "5", "restored 1.4 step 4 right True\n")]:
            command = [sys.executable, "-B", __file__, "ranks", until]
            all_ranks = [subprocess.Popen([*command, str(r), str(ranks)], stdout=subprocess.PIPE, text=True) for r in range(ranks)]
            for rank in all_ranks:
                self.assertEqual(rank.communicate(timeout=60)[0], wanted)
                self.assertEqual(rank.returncode, 0)

    def test_what_is_flushed_outlives_the_tier(self):
        with tempfile.TemporaryDirectory() as store:
            for first, tier in [(0, "one"), (3, "two")]:
                options = {"run": "flushed", "tier": os.path.join(store, tier), "external": store, "flush_every": 2, "flush_rate": 10**9}
                with checkpoint.Checkpoints(**options) as ck:
                    step = ck.zeros("step", 1, "i8")
                    ck.restart()
                    self.assertEqual(step[0], first)
                    for _ in range(3):
                        step += 1
                        version = ck.commit()
                    ck.wait(version, checkpoint.Level.FLUSHED)
                    self.assertGreater(ck.stats().flushed, 0)

    def test_what_is_tracked_by_mprotect_is_copied_ahead_and_comes_back(self):
        with checkpoint.Checkpoints(run="tracked", mprotect=True) as ck:
            a = ck.zeros("a", MIB, "i8", precopy=True)
            for n in range(1, 2000):
                a[: MIB // 16] = n
                time.sleep(0.01)
                ck.commit()
                if ck.stats().ahead_bytes > 0:
                    break
            self.assertGreater(ck.stats().ahead_bytes, 0)
            wanted = a.copy()
        with checkpoint.Checkpoints(run="tracked") as ck:
            a = ck.zeros("a", MIB, "i8")
            ck.restart()
            self.assertTrue((a == wanted).all())

    def test_what_is_encrypted_comes_back_with_its_key_alone(self):
        with tempfile.TemporaryDirectory() as config:
            before = os.environ.get("XDG_CONFIG_HOME")
            os.environ["XDG_CONFIG_HOME"] = config
            try:
                with self.assertRaisesRegex(checkpoint.Error, "tarn key new"):
                    checkpoint.Checkpoints(run="encrypted", encrypt=True)
                file = os.path.join(config, "tarn", "key")
                os.mkdir(os.path.dirname(file))
                with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as key:
                    key.write(f"tarn-key 1 {'12' * 16} {'34' * 32}\n")
                with checkpoint.Checkpoints(run="encrypted", encrypt=True) as ck:
                    ck.zeros("a", 1000)[:] = 7
                    ck.wait(ck.commit(), checkpoint.Level.DURABLE)
                with checkpoint.Checkpoints(run="encrypted", encrypt=True) as ck:
                    a = ck.zeros("a", 1000)
                    ck.restart()
                    self.assertTrue((a == 7).all())
                with checkpoint.Checkpoints(run="encrypted") as ck:
                    ck.zeros("a", 1000)
                    with self.assertRaisesRegex(checkpoint.Error, "encrypted"):
                        ck.restart()
            finally:
                os.environ.pop("XDG_CONFIG_HOME")
                if before is not None:
                    os.environ["XDG_CONFIG_HOME"] = before

    def test_a_program_that_fails_keeps_what_it_committed(self):
        with self.assertRaises(ZeroDivisionError):
            with checkpoint.Checkpoints(run="fails", staging=checkpoint.ALL) as ck:
                ck.zeros("a", 1000)[:] = 7
                ck.commit()
                ck.commit()
                raise ZeroDivisionError
        with checkpoint.Checkpoints(run="fails") as ck:
            a = ck.zeros("a", 1000)
            self.assertEqual(str(ck.restart()), "1.2")
            self.assertTrue((a == 7).all())
            self.assertEqual([v.version for v in ck.versions()][-1], (1, 2))


class Readers(unittest.TestCase):
    """Versions that are mapped while their program goes on."""

    def test_what_is_seen_stays_while_the_program_goes_on(self):
        with checkpoint.Checkpoints(run="seen") as ck:
            a = ck.zeros("a", (40, 50), "i4", shape_of=checkpoint.Block(all=(40, 50), first=(0, 0)))
            ck.register("b", bytearray(b"text"))
            with self.assertRaisesRegex(checkpoint.NotFoundError, "no version"):
                checkpoint.open_version("seen")
            for n in range(1, 4):
                a[:] = n
                version = ck.commit()
            ck.wait(version)
            with checkpoint.open_version("seen") as seen:
                self.assertEqual((seen.version, str(seen.version), seen.of, seen.ranks), ((1, 3), "1.3", 1, [0]))
                self.assertEqual(seen.level, checkpoint.Level.DURABLE)
                self.assertEqual(seen.objects(), [("a", 8000, 4, (40, 50)), ("b", 4, 1, None)])
                mapped, view = seen.array("a", dtype="i4"), seen.map("b")
                self.assertEqual((mapped.shape, seen.array("a", dtype="i8", shape=(10, 100)).shape), ((40, 50), (10, 100)))
                self.assertEqual(seen.array("b", dtype="S4").tolist(), [b"text"])
                for wrong in [object, "i8,i4", "V0", "V3"]:
                    with self.assertRaises(checkpoint.InvalidError):
                        seen.array("a", dtype=wrong)
                for wrong in [{"dtype": "i8"}, {"dtype": "i4", "shape": (7, -1)}, {"dtype": "u1", "shape": 2000}]:
                    with self.assertRaisesRegex(checkpoint.InvalidError, "'a' has 8000 bytes, .* elements of .*: give the dtype"):
                        seen.array("a", **wrong)
                with self.assertRaisesRegex(checkpoint.NotFoundError, "these ranks have: 0"):
                    seen.map("a", 1)
                with self.assertRaises(LookupError):
                    seen.map("c")
            with self.assertRaises(checkpoint.ClosedError):
                seen.map("a")
            with self.assertRaises((ValueError, TypeError)):
                mapped[0, 0] = 9
            self.assertTrue(view.readonly)
            for n in range(4, 20):
                a[:] = n
                version = ck.commit()
            ck.wait(version)
            self.assertTrue((mapped == 3).all())
            self.assertEqual(bytes(view), b"text")
            passed = ck.stats().pinned
            self.assertGreater(passed, 0)
            del seen, mapped, view
            gc.collect()
            for n in range(8):
                ck.commit()
            self.assertEqual(ck.stats().pinned, passed)
            with self.assertRaises(checkpoint.NotFoundError):
                checkpoint.open_version("seen", version=(1, 3))
        with checkpoint.open_version("seen", verify=False) as seen:
            self.assertTrue((seen.array("a", dtype="i4") == 19).all())


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.ck = checkpoint.Checkpoints(run=self.id().split(".")[-1])
        self.addCleanup(self.ck.close)

    def refused(self, kind, text, call, *arguments, **named):
        with self.assertRaisesRegex(kind, text) as caught:
            call(*arguments, **named)
        return caught.exception

    def test_memory_of_many_kinds_is_an_object(self):
        ck, bits = self.ck, bytearray(b"abc")
        kinds = numpy.zeros(3, [("O", "i4"), ("b", "f8", 2)])
        own = {
            "fortran": numpy.zeros((3, 4), order="F").T,
            "structures": kinds,
            "point": numpy.array(1.5),
            "none": numpy.zeros((0, 3)),
            "half": numpy.zeros(4, "f2"),
            "ctypes": (ctypes.c_int * 5)(),
            "bits": bits,
        }
        for key, memory in own.items():
            ck.register(key, memory)
        bits[1] = ord("x")
        made = ck.create("made", 24, 8)
        made[:4] = b"text"
        empty = ck.zeros("empty", (3, 0))
        self.assertEqual((made.nbytes, empty.shape, ck.zeros("point made", ()).shape), (24, (3, 0), ()))
        self.assertEqual(ck.commit(), checkpoint.Version(1, 1))
        self.assertEqual(ck.stats().bytes, sum(memoryview(m).nbytes for m in own.values()) + 24 + 8)

    def test_the_versions_that_are_there_can_be_chosen(self):
        for start in range(2):
            with checkpoint.Checkpoints(run="chosen") as ck:
                a = ck.zeros("a", 100, "i4", versions=3)
                if start == 0:
                    for n in range(1, 6):
                        a[:] = n
                        ck.wait(ck.commit(), timeout=20)
                else:
                    self.assertEqual([str(v.version) for v in ck.versions()][-3:], ["1.3", "1.4", "1.5"])
                    self.refused(checkpoint.NotFoundError, "", ck.restart, (7, 7))
                    self.assertEqual(ck.restart((1, 4)), (1, 4))
                    self.assertTrue((a == 4).all())

    def test_ways_between_nodes_are_told(self):
        with self.assertRaisesRegex(checkpoint.InvalidError, "libfabric:PROVIDER"):
            checkpoint.Checkpoints(run="far", transport="pigeon")
        # On one node nothing goes anywhere.
        with checkpoint.Checkpoints(run="far", transport="libfabric:pigeon") as ck:
            ck.zeros("a", 8)
            ck.commit()
            stats = ck.stats()
            self.assertEqual((stats.rma_put_bytes, stats.tcp_put_bytes, stats.rma_fetched_bytes, stats.tcp_fetched_bytes), (0, 0, 0, 0))

    def test_a_version_has_reached_what_an_object_asks_for(self):
        with tempfile.TemporaryDirectory() as store:
            # So slow a tier that the helper cannot have copied all before this thread comes to it.
            options = {"staging": checkpoint.ALL, "profile": "device=20MB/s", "external": store, "flush_every": 1}
            with checkpoint.Checkpoints(run="persistent", **options) as ck:
                ck.zeros("a", 3 * MIB // 8)
                ck.commit()
                self.assertGreater(ck.stats().last_staged_bytes, 0)
                ck.register("b", bytearray(8), persistence=checkpoint.Level.DURABLE)
                ck.commit()
                self.assertEqual(ck.stats().last_staged_bytes, 0)
                ck.destroy("b")
                ck.create("c", 8, persistence=checkpoint.Level.FLUSHED, replicas=0)
                ck.wait(ck.commit(), checkpoint.Level.FLUSHED, timeout=0.0)
                ck.destroy("c")
                ck.commit()
                self.assertGreater(ck.stats().last_staged_bytes, 0)

    def test_wrong_memory_is_refused(self):
        ck, of = self.ck, self.ck.register
        writable = numpy.zeros((4, 4))
        constant = numpy.zeros(4)
        constant.flags.writeable = False
        self.refused(checkpoint.InvalidError, "not contiguous", of, "a", writable[:, 1])
        self.refused(checkpoint.InvalidError, "not contiguous", of, "a", writable.T)
        self.refused(checkpoint.InvalidError, "cannot be written", of, "a", constant)
        self.refused(checkpoint.InvalidError, "cannot be written", of, "a", b"bytes")
        self.refused(checkpoint.InvalidError, "no buffer", of, "a", [1, 2])
        self.refused(checkpoint.InvalidError, "no buffer", of, "a", numpy.zeros(2, "M8[s]"))
        self.refused(checkpoint.InvalidError, "Python objects", of, "a", numpy.zeros(2, object))
        self.refused(checkpoint.InvalidError, "Python objects", of, "a", numpy.zeros(2, [("x", "i4"), ("y", object)]))
        self.refused(checkpoint.InvalidError, "Python objects", ck.zeros, "a", 3, object)
        of("a", writable)
        self.refused(checkpoint.InvalidError, "some of the memory", of, "b", writable[1:2])
        of("b", writable.copy())
        ck.destroy("a")
        of("c", writable[1:2])

    def test_wrong_words_are_refused(self):
        ck = self.ck
        ck.zeros("a", 10)
        error = self.refused(checkpoint.ExistsError, "already", ck.zeros, "a", 10)
        self.assertEqual(error.code, checkpoint.Code.EXISTS)
        self.assertEqual((pickle.loads(pickle.dumps(error)).code, error.code.value), (error.code, 5))
        self.refused(LookupError, 'no object "b"', ck.destroy, "b")
        self.refused(checkpoint.InvalidError, "key has", ck.zeros, "", 10)
        self.refused(checkpoint.InvalidError, "multiple", ck.create, "b", 9, 8)
        self.refused(checkpoint.InvalidError, "not a part", ck.zeros, "b", 10, shape_of=checkpoint.Block((20,), (11,)))
        self.refused(ValueError, "each dimension", ck.zeros, "b", 10, shape_of=checkpoint.Block((20, 1), (10, 0)))
        self.refused(checkpoint.InvalidError, "rows of 7", ck.zeros, "b", 10, shape_of=checkpoint.Irregular(7))
        self.refused(checkpoint.InvalidError, "99 versions", ck.zeros, "b", 10, versions=99)
        self.refused(checkpoint.InvalidError, "9 is no level", ck.zeros, "b", 10, persistence=9)
        self.refused(checkpoint.InvalidError, "copies or parity", ck.create, "b", 10, persistence=checkpoint.Level.REPLICATED)
        self.refused(checkpoint.InvalidError, "4 replicas", ck.register, "b", bytearray(8), replicas=4)
        self.refused(checkpoint.Error, "start ranks on more nodes", ck.zeros, "b", 10, replicas=1)
        self.refused(TypeError, "lasting", ck.zeros, "b", 10, lasting=True)
        self.refused(MemoryError, "no memory", ck.zeros, "b", 1 << 50, "u1")
        self.refused(OverflowError, "", ck.zeros, "b", -1)
        self.refused(checkpoint.InvalidError, "timeout", ck.wait, (1, 1), timeout=-1.0)
        self.refused(checkpoint.InvalidError, "timeout", ck.due, -1.0)
        self.assertEqual([ck.due(0.0), ck.due(1e6)], [True, False])
        self.refused(checkpoint.NotFoundError, "no version", ck.wait, (1, 1))
        self.refused(checkpoint.InvalidError, "no level", ck.wait, (1, 1), 9)
        self.refused(checkpoint.InvalidError, "rank 2 of 2", checkpoint.Checkpoints, rank=2, ranks=2)
        self.refused(checkpoint.InvalidError, "run's name", checkpoint.Checkpoints, run="../x")
        self.refused(checkpoint.InvalidError, "profile", checkpoint.Checkpoints, run="x", profile="floppy")
        self.refused(checkpoint.InvalidError, "4 replicas", checkpoint.Checkpoints, replicas=4)
        self.refused(checkpoint.InvalidError, "one of the two", checkpoint.Checkpoints, copies=1, parity=4)
        self.refused(checkpoint.TimedOutError, "", checkpoint.Checkpoints, run="x", ranks=2, timeout=0.2)
        self.assertEqual(ck.commit().number, 1)

    def test_arrays_outlive_their_objects_and_their_checkpoints(self):
        with checkpoint.Checkpoints(run="outlived") as ck:
            # Copied ahead of commits, by another thread.
            destroyed, closed = ck.zeros("destroyed", MIB, precopy=True), ck.zeros("closed", (MIB, 2), precopy=True)
            part, view = closed[5:7, 1], ck.create("view", MIB)[10:20]
            for _ in range(4):
                destroyed[:], closed[:], view[:] = 1, 2, b"3" * 10
                ck.commit()
            ck.destroy("destroyed")
            again = ck.zeros("destroyed", MIB)
            ck.commit()
        del ck, closed
        gc.collect()
        # New memory would take the place of what was unmapped.
        others = [numpy.ones(MIB) for _ in range(8)]
        self.assertEqual((destroyed.sum(), again.sum(), part.sum(), view.tobytes()), (MIB, 0, 4, b"3" * 10))
        destroyed += 1
        self.assertEqual((destroyed.sum(), len(others)), (2 * MIB, 8))

    def test_what_is_registered_is_held_and_let_go(self):
        class Array(numpy.ndarray):
            pass

        def held():
            array = numpy.zeros(1000).view(Array)
            ck.register("a", array)
            return weakref.ref(array)

        ck, bits = self.ck, bytearray(100)
        array = held()
        gc.collect()
        self.assertIsNotNone(array())
        ck.commit()
        ck.destroy("a")
        self.assertIsNone(array())
        ck.register("bits", bits)
        with self.assertRaises(BufferError):
            bits.append(1)
        array = held()
        ck.close()
        self.assertIsNone(array())
        bits.append(1)

    def test_a_thousand_commits_leave_nothing(self):
        def mapped():
            with open("/proc/self/maps") as maps:
                return sum(1 for _ in maps)

        def cycle(times):
            for _ in range(times):
                array[:] += 1
                ck.register("in and out", bits)
                ck.zeros("new", 5000, "u1")[:] = 1
                ck.wait(ck.commit(), checkpoint.Level.COMMITTED)
                ck.stats()
                ck.destroy("new")
                ck.destroy("in and out")

        ck, bits = self.ck, bytearray(1000)
        array = ck.zeros("array", 1000)
        cycle(20)
        before = (sys.getrefcount(bits), sys.getrefcount(array), sys.getrefcount(checkpoint.Version), len(gc.get_objects()), mapped())
        cycle(1000)
        gc.collect()
        after = (sys.getrefcount(bits), sys.getrefcount(array), sys.getrefcount(checkpoint.Version), len(gc.get_objects()), mapped())
        self.assertEqual(before[:3], after[:3])
        # Counts that grew with each of them would be 1000 more.
        self.assertLess(after[3] - before[3], 100)
        self.assertLess(after[4] - before[4], 100)

    def test_one_thread_at_a_time_and_others_run_meanwhile(self):
        ck = self.ck
        a = ck.zeros("a", 4 * MIB, "u1")
        outcomes = {"done": 0, "busy": 0}

        def commits():
            # Until the two have met.
            while outcomes["busy"] == 0 and outcomes["done"] < 5000:
                try:
                    ck.commit()
                    outcomes["done"] += 1
                except checkpoint.BusyError:
                    outcomes["busy"] += 1

        threads = [threading.Thread(target=commits) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((ck.stats().commits, a.sum()), (outcomes["done"], 0))
        self.assertGreater(outcomes["busy"], 0)

    def test_another_program_with_the_name_is_told(self):
        self.refused(checkpoint.BusyError, "", checkpoint.Checkpoints, run=self.id().split(".")[-1], timeout=0.3)

    def test_nothing_is_done_after_the_end(self):
        ck = self.ck
        ck.close()
        ck.close()
        for call in [ck.commit, ck.restart, ck.stats, ck.versions]:
            self.refused(checkpoint.ClosedError, "closed", call)
        self.refused(checkpoint.ClosedError, "closed", ck.zeros, "a", 1)
        self.refused(checkpoint.ClosedError, "closed", ck.register, "a", bytearray(1))

    def test_a_forked_child_is_told_and_leaves_its_parent_alone(self):
        a = self.ck.zeros("a", 1000)
        self.ck.commit()
        child = os.fork()
        if child == 0:
            refused = 0
            for call in [self.ck.commit, self.ck.close]:
                try:
                    call()
                except checkpoint.Error as e:
                    refused += e.code == checkpoint.Code.UNSUPPORTED
            # As it would be dropped in a program.
            self.ck = None
            a += 1
            os._exit(refused)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 2)
        self.assertEqual((self.ck.commit().number, a.sum()), (2, 0))

    def test_a_version_without_its_buddy_is_warned_of(self):
        with checkpoint.Checkpoints(run="alone", replicas=1, staging=checkpoint.ALL) as ck:
            ck.zeros("a", 1000)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                version = ck.commit()
            self.assertEqual((version.number, [w.category for w in caught]), (1, [checkpoint.DegradedWarning]))
            self.assertEqual(caught[0].filename, __file__)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("killed", "ranks"):
        simulate(*sys.argv[1:])
    else:
        unittest.main()
