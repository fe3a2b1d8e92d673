"""Tests of the Python binding against a real tarnd: TARN_SOCKET and TARN_LIBRARY name it, TARN_PEER another
node, argv[1] a folder outside."""

import os
import subprocess
import sys
import threading
import time
import unittest

import tarn

OUTSIDE = sys.argv.pop(1)
PEER = os.environ["TARN_PEER"]


def outside(name, content=None):
    path = os.path.join(OUTSIDE, name)
    if content is not None:
        with open(path, "wb") as file:
            file.write(content)
    return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Tasks(unittest.TestCase):
    def setUp(self):
        self.node = tarn.connect()
        self.addCleanup(self.node.close)

    def test_files(self):
        source = outside("a", b"some content")
        done = self.node.wait(self.node.copy(source, tarn.Space("fast", "py/a"), verify="readback"), timeout=30)
        self.assertEqual((done.code, done.bytes, done.late, len(done.checksum)), (tarn.Code.OK, 12, False, 16))
        back = outside("b")
        move = self.node.move(tarn.Space("fast", "py/a"), "file://" + back)
        self.node.wait(self.node.remove(tarn.Space("fast", "py"), after=[move]))
        self.assertEqual(read(back), b"some content")

    def test_failures(self):
        with self.assertRaises(tarn.Error) as caught:
            self.node.wait(self.node.copy(outside("missing"), tarn.Space("fast", "x")))
        self.assertEqual(caught.exception.code, tarn.Code.NOTFOUND)
        self.assertIn("missing", str(caught.exception))
        with self.assertRaises(tarn.Error) as caught:
            self.node.copy("relative", tarn.Space("fast", "x"))
        self.assertEqual(caught.exception.code, tarn.Code.INVALID)
        with self.assertRaises(tarn.Error) as caught:
            self.node.copy(tarn.Node("n9", "fast", "x"), tarn.Space("fast", "x"))
        self.assertEqual(caught.exception.code, tarn.Code.UNSUPPORTED)
        with self.assertRaises(tarn.Error):
            tarn.connect(outside("no-socket"))
        closed = tarn.connect()
        closed.close()
        with self.assertRaises(tarn.Error):
            closed.stats()

    def test_library_that_is_not_there(self):
        program = "import tarn; tarn.connect()"
        package = os.path.dirname(os.path.dirname(tarn.__file__))
        env = {**os.environ, "TARN_LIBRARY": "/nowhere/libtarn.so", "PYTHONPATH": package}
        ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("cannot load libtarn", ran.stderr)
        self.assertIn("set TARN_LIBRARY", ran.stderr)

    def test_batches(self):
        wrong = tarn.task("remove", "relative")
        ids = self.node.submit([tarn.task("nothing"), wrong, tarn.task("nothing", priority=1)])
        self.assertIsInstance(ids[1], tarn.Error)
        self.assertEqual(len(self.node.outcomes([ids[0], ids[2]])), 2)
        many = self.node.submit(tarn.task("nothing") for _ in range(3000))
        self.assertEqual(len(self.node.outcomes(many)), 3000)
        self.assertEqual(self.node.wait(many[0]).code, tarn.Code.OK)
        with self.assertRaises(tarn.Error) as caught:
            self.node.wait(7)
        self.assertEqual(caught.exception.code, tarn.Code.NOTFOUND)

    def test_what_c_would_cut_is_refused(self):
        source = outside("nul", b"x")
        for place in (tarn.Space("fast", b"q1\0evil"), tarn.Space("fa\0st", "q2"), tarn.Node(PEER + "\0", "fast", "q3"),
                      tarn.Node(PEER, "fast\0", "q3"), tarn.Node(PEER, "fast", "q3\0"), OUTSIDE + "/q4\0evil"):
            with self.assertRaises(ValueError):
                self.node.copy(source, place)
        for wrong in ({"rate": -1}, {"rate": 2**64 + 1}, {"deadline": -1}, {"deadline": 1e12}, {"priority": -1},
                      {"priority": 2**32}):
            with self.assertRaises(ValueError):
                self.node.copy(source, tarn.Space("fast", "q5"), **wrong)
        for name, folder, sizes in (("a\0b", OUTSIDE, (1,)), ("ab", OUTSIDE + "\0", (1,)), ("ab", OUTSIDE, (-1,)),
                                    ("ab", OUTSIDE, (1, -1))):
            with self.assertRaises(ValueError):
                self.node.make_space(name, folder, *sizes)
        with self.assertRaises(ValueError):
            self.node.remove_space("fast\0x")
        with self.assertRaises(ValueError):
            tarn.connect(os.environ["TARN_SOCKET"] + "\0x")
        self.assertFalse([name for name in os.listdir(OUTSIDE) if name.startswith("q")])
        self.node.wait(self.node.copy("file://localhost" + source, tarn.Space("fast", "local"), deadline=0))

    def test_memory(self):
        memory = self.node.memory(1 << 20)
        memory.data[:5] = b"hello"
        saved = outside("dump")
        self.node.wait(self.node.copy(memory, saved))
        self.assertEqual(read(saved), b"hello" + bytes((1 << 20) - 5))
        small = outside("small", b"new content")
        self.node.wait(self.node.copy(small, memory.part(4096, 100)))
        self.assertEqual(memory.data[4096:4107], b"new content")
        memory.close()

    def test_progress_and_cancel(self):
        big = outside("big", os.urandom(3_000_000))
        slow = self.node.copy(big, tarn.Space("fast", "big"), rate=1_000_000)
        time.sleep(0.6)
        status = self.node.status([slow])[0]
        self.assertEqual((status.state, status.all), (tarn.State.RUNNING, 3_000_000))
        self.assertTrue(status.left is None or 0 < status.left < 60, status)
        self.assertEqual(self.node.outcomes([slow], timeout=0), [])
        self.assertGreaterEqual(self.node.stats().running, 1)
        self.assertEqual(self.node.cancel([slow, 7]), [tarn.Code.OK, tarn.Code.NOTFOUND])
        with self.assertRaises(tarn.Error) as caught:
            self.node.wait(slow, timeout=30)
        self.assertEqual(caught.exception.code, tarn.Code.CANCELLED)

    def test_other_node(self):
        memory = self.node.memory(4096)
        memory.data[:11] = b"from Python"
        there = tarn.Node(PEER, "fast", "from-python")
        saved = self.node.wait(self.node.copy(memory.part(0, 11), there))
        loaded = self.node.wait(self.node.copy(there, memory.part(100)))
        self.assertEqual((saved.checksum, loaded.bytes), (loaded.checksum, 11))
        self.assertEqual(memory.data[100:111], b"from Python")
        self.node.wait(self.node.copy(there, tarn.Space("fast", "py2/a")))
        moved = self.node.move(tarn.Space("fast", "py2/a"), tarn.Node(PEER, "fast", "moved"))
        self.node.wait(self.node.remove(tarn.Node(PEER, "fast", "moved"), after=[moved]))
        with self.assertRaises(tarn.Error) as caught:
            self.node.wait(self.node.copy(tarn.Node(PEER, "fast", "moved"), memory))
        self.assertEqual(caught.exception.code, tarn.Code.NOTFOUND)
        memory.close()

    def test_pause(self):
        big = outside("paused", os.urandom(40_000_000))
        task = self.node.copy(big, tarn.Space("fast", "paused"), rate=20_000_000)
        while self.node.status([task])[0].done < 5_000_000:
            time.sleep(0.01)
        self.assertEqual(self.node.pause([task, 7]), [tarn.Code.OK, tarn.Code.NOTFOUND])
        while self.node.status([task])[0].state != tarn.State.PAUSED:
            time.sleep(0.01)
        self.assertEqual(self.node.outcomes([task], timeout=0.1), [])
        self.assertEqual(self.node.resume([task]), [tarn.Code.OK])
        self.assertEqual(self.node.wait(task, timeout=30).bytes, 40_000_000)
        self.assertEqual(self.node.resume([task]), [tarn.Code.EXISTS])
        with self.assertRaises(tarn.Error) as caught:
            self.node.pause_job(99)
        self.assertEqual(caught.exception.code, tarn.Code.NOTFOUND)
        self.node.wait(self.node.remove(tarn.Space("fast", "paused")))

    def test_threads_share_a_connection(self):
        failures = []

        def work():
            for _ in range(50):
                if self.node.wait(self.node.submit([tarn.task("nothing")])[0]).code:
                    failures.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_spaces(self):
        folder = outside("space")
        os.mkdir(folder)
        self.node.make_space("py", folder, 1 << 20, quota=1 << 19)
        infos = {info.name: info for info in self.node.spaces()}
        self.assertEqual((infos["py"].capacity, infos["py"].quota), (1 << 20, 1 << 19))
        self.assertTrue(infos["py"].manageable)
        with self.assertRaises(tarn.Error) as caught:
            self.node.wait(self.node.copy(outside("large", bytes(600_000)), tarn.Space("py", "x")))
        self.assertEqual(caught.exception.code, tarn.Code.QUOTA)
        self.node.remove_space("py")


unittest.main()
