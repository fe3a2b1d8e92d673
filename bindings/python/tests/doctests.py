"""doctests.py MODULE...: runs the examples in the docstrings of these modules, in an empty folder."""

import doctest
import importlib
import os
import sys
import tempfile


def main(names):
    failed = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in names:
            module = importlib.import_module(name)
            result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
            if result.attempted == 0:
                sys.exit(f"{name} has no example")
            failed, tried = failed + result.failed, tried + result.attempted
        os.chdir("/")
    print(f"{tried} examples")
    sys.exit(1 if failed else print("\nOK"))


if __name__ == "__main__":
    main(sys.argv[1:])
