"""Tests of the package as a whole: its former names, its types, its native library."""

import ast
import os
import pickle
import subprocess
import sys
import unittest

import tarn


class Package(unittest.TestCase):
    def test_phx_is_its_former_name(self):
        import phx
        import phx.objects

        for name in tarn.checkpoint.__all__:
            self.assertIs(getattr(phx, name), getattr(tarn.checkpoint, name))
        self.assertEqual(set(phx.__all__), {*tarn.checkpoint.__all__, "Objects", "objects"})
        self.assertIs(phx.objects.Objects, tarn.objects.Objects)
        with phx.Checkpoints(run="former") as ck:
            ck.zeros("a", 3)[:] = 1
            self.assertEqual(ck.commit(), (1, 1))
        with self.assertRaises(phx.Error) as caught:
            phx.open_version("unheard-of")
        self.assertIsInstance(caught.exception, tarn.NotFoundError)

    def test_it_is_imported_without_its_native_library(self):
        program = "import sys, tarn; print('tarn._native' in sys.modules, 'numpy' in sys.modules); tarn.checkpoint; print('tarn._native' in sys.modules)"
        ran = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=True)
        self.assertEqual(ran.stdout, "False False\nTrue\n")

    def test_a_native_library_that_is_missing_is_named(self):
        program = "import sys; sys.modules['tarn._native'] = None\nimport tarn\ntarn.checkpoint"
        ran = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True)
        self.assertIn("pip install bindings/python", ran.stderr)

    def test_all_that_is_named_is_there(self):
        for module in (tarn, tarn.checkpoint, tarn.objects):
            for name in module.__all__:
                self.assertTrue(hasattr(module, name), name)
        self.assertTrue({"checkpoint", "objects"} <= set(dir(tarn)))
        with self.assertRaises(AttributeError):
            tarn.nothing

    def test_it_is_typed(self):
        folder = os.path.dirname(tarn.__file__)
        self.assertTrue(os.path.exists(os.path.join(folder, "py.typed")))
        with open(os.path.join(folder, "_native.pyi")) as file:
            stub = ast.parse(file.read())
        from tarn import _native

        def members(of):
            return {name for name, value in vars(of).items() if not name.startswith("_") and (callable(value) or hasattr(value, "__get__"))}

        classes = [node for node in stub.body if isinstance(node, ast.ClassDef)]
        self.assertEqual({c.name for c in classes}, {name for name in vars(_native) if name[0].isupper()})
        for c in classes:
            functions = {n.name for n in c.body if isinstance(n, ast.FunctionDef)}
            attributes = {n.target.id for n in c.body if isinstance(n, ast.AnnAssign)}
            wanted = {name for name in functions | attributes if not name.startswith("_")}
            self.assertEqual(wanted, members(getattr(_native, c.name)), c.name)

    def test_errors_are_pickled_whole(self):
        error = tarn.WorkflowFailedError(tarn.ExitCode.WORKFLOW_FAILED, "it failed", "mend it")
        error.summary = (1, 2)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), again.code, str(again), again.summary), (type(error), error.code, "it failed\nhint: mend it", (1, 2)))


if __name__ == "__main__":
    unittest.main()
