"""Tests of objects of the node's store."""

import gc
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy

import tarn
from tarn.objects import Objects


class Store(unittest.TestCase):
    def setUp(self):
        os.environ.pop("TARN_OBJECTS", None)
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.store = Objects(self.folder)

    def test_what_one_program_has_put_another_maps(self):
        field = numpy.arange(120000.0).reshape(300, 400)
        self.assertEqual(self.store.put("fields/rho", field), 1)
        self.assertEqual(self.store.put("fields/rho", field.astype("f4")), 2)
        program = (
            "import tarn; s = tarn.objects.Objects(); a = s.array('fields/rho', 1, verify=True); "
            "print(a.shape, a.dtype, a.sum(), a.flags.writeable, s.array('fields/rho').dtype)"
        )
        ran = subprocess.run(
            [sys.executable, "-B", "-c", program], capture_output=True, text=True, env={**os.environ, "TARN_OBJECTS": self.folder}
        )
        self.assertEqual(ran.stdout, f"(300, 400) float64 {field.sum()} False float32\n", ran.stderr)
        self.assertEqual(self.store.get("fields/rho", 1), field.tobytes())
        self.assertEqual([(i.key, i.number, i.bytes, i.damaged) for i in self.store.list()], [("fields/rho", 2, 480000, False)])
        self.assertEqual([i.about for i in self.store.versions("fields/rho")], ["<f8 300,400", "<f4 300,400"])

    def test_a_draft_is_filled_in_place_and_never_changes_afterwards(self):
        with self.store.create("field", (1000, 10), "i4") as draft:
            draft.array[:] = 7
            self.assertEqual(self.store.list(), [])
        mapped = self.store.array("field", draft.number)
        draft.array[:] = 8
        self.assertEqual((draft.number, mapped.sum(), draft.array.sum()), (1, 70000, 80000))
        with self.assertRaises(tarn.InvalidError):
            draft.publish()
        array = draft.array
        del draft
        gc.collect()
        self.assertEqual(array.sum(), 80000)
        with self.assertRaises(KeyError), self.store.create("field", 100) as draft:
            draft.memory[0] = 1
            raise KeyError
        with self.store.create("field", 100) as draft:
            draft.abandon()
        self.assertEqual(draft.number, None)
        with self.store.create("other", 100) as draft, self.assertRaises(tarn.InvalidError):
            draft.publish("x" * 256)
        self.assertEqual(draft.number, 1)
        self.assertEqual(sorted(os.listdir(f"{self.folder}/field")), ["1.obj", "newest.obj"])

    def test_what_is_encrypted_is_mapped_as_anything_else(self):
        with tempfile.TemporaryDirectory() as config:
            before = os.environ.get("XDG_CONFIG_HOME")
            os.environ["XDG_CONFIG_HOME"] = config
            try:
                store = Objects(self.folder, encrypt=True)
                with self.assertRaisesRegex(tarn.Error, "tarn key new"):
                    store.create("field", 10)
                os.mkdir(os.path.join(config, "tarn"))
                with open(os.open(os.path.join(config, "tarn", "key"), os.O_WRONLY | os.O_CREAT, 0o600), "w") as key:
                    key.write(f"tarn-key 1 {'12' * 16} {'34' * 32}\n")
                with store.create("field", (1000, 100), "i8") as draft:
                    draft.array[:] = 0x746E6F7470797264
                draft.array[:] = 1
                self.assertEqual(store.put("empty", b""), 1)
                with open(os.path.join(self.folder, "field", "1.obj"), "rb") as file:
                    self.assertNotIn(b"dryptont", file.read())
                field = Objects(self.folder).array("field", verify=True)
                self.assertTrue((field == 0x746E6F7470797264).all())
                self.assertEqual(Objects(self.folder).get("empty"), b"")
                self.assertEqual(Objects(self.folder).get("field"), field.tobytes())
            finally:
                os.environ.pop("XDG_CONFIG_HOME")
                if before is not None:
                    os.environ["XDG_CONFIG_HOME"] = before

    def test_views_outlive_the_object(self):
        self.store.put("a", b"some bytes")
        view = self.store.map("a")
        self.store.delete("a")
        gc.collect()
        self.assertEqual((bytes(view), view.readonly), (b"some bytes", True))
        with self.assertRaises(TypeError):
            view[0] = 1
        with self.assertRaises(tarn.NotFoundError):
            self.store.map("a")
        self.assertEqual(self.store.put("a", bytearray(3)), 2)
        self.assertEqual(self.store.array("a").tolist(), [0, 0, 0])

    def test_empty_and_odd_arrays(self):
        for array in [numpy.zeros((0, 3)), numpy.array(5.0), numpy.zeros(3, "U4"), numpy.arange(6).reshape(2, 3)]:
            self.store.put("x", array)
            again = self.store.array("x")
            self.assertEqual((again.dtype, again.shape, again.tolist()), (array.dtype, array.shape, array.tolist()))
        for about in ["a text", "O 1", "O ", "i4,O 1", "(1,i4 1", "(,)u1 1", "u1 -2", "u1 " + "9" * 30, "u1 41"]:
            self.store.put("y", bytes(range(40)), about)
            with self.assertRaisesRegex(ValueError, "map it", msg=about):
                self.store.array("y")
        self.assertEqual(bytes(self.store.map("y")), bytes(range(40)))

    def test_misuse_is_reported(self):
        for call, kind in [
            (lambda: Objects("/no/such/store"), tarn.NotFoundError),
            (lambda: Objects(), tarn.InvalidError),
            (lambda: self.store.put("../a", b""), tarn.InvalidError),
            (lambda: self.store.put("a", b"", "x" * 256), tarn.InvalidError),
            (lambda: self.store.put("a", numpy.zeros((4, 4))[:, 1]), tarn.InvalidError),
            (lambda: self.store.put("a", numpy.array([object()])), tarn.InvalidError),
            (lambda: self.store.put("a", 5), TypeError),
            (lambda: self.store.create("a", 2**50), tarn.InvalidError),
            (lambda: self.store.create("a", 2**45), tarn.NoMemoryError),
            (lambda: self.store.create("a", (2, 2), "O"), ValueError),
            (lambda: self.store.get("a"), tarn.NotFoundError),
            (lambda: self.store.delete("a", 7), tarn.NotFoundError),
            (lambda: self.store.fetch("a", "n2"), tarn.NotFoundError),
        ]:
            with self.assertRaises(kind):
                call()
        self.store.put("a", b"0" * 10000)
        path = f"{self.folder}/a/1.obj"
        os.chmod(path, 0o644)
        with open(path, "r+b") as file:
            file.write(b"1")
        self.assertEqual(self.store.map("a")[0], ord("1"))
        for call in [lambda: self.store.get("a"), lambda: self.store.map("a", verify=True)]:
            with self.assertRaises(tarn.CorruptError):
                call()

    def test_threads_and_children_put_at_once(self):
        def put():
            for _ in range(20):
                self.store.put("k", os.urandom(5000))

        draft = self.store.create("k", 10)
        child = os.fork()
        if child == 0:
            put()
            del draft
            os._exit(0)
        threads = [threading.Thread(target=put) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        # The child has not given up what is its parent's.
        self.assertEqual(draft.publish(), 81)
        self.assertEqual([i.number for i in self.store.versions("k")], list(range(1, 82)))


if __name__ == "__main__":
    os.environ.pop("TARN_OBJECTS", None)
    os.environ.pop("TARN_SOCKET", None)
    unittest.main()
