#!/usr/bin/env python3
"""Runs the tests of Python files as one test of Bazel, in as many shards as that has.

Usage: python_tests.py FILE_test.py... [-k PATTERN]... [options of unittest]

A shard takes every so many-th test; those of a class with a setUpClass, which may be dear, stay together. All files run in the
Python that the first of them names in its first line.
"""
import os
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True


def flat(tests):
    """The test cases of a suite of suites, in order."""
    return [each for test in tests for each in (flat(test) if isinstance(test, unittest.TestSuite) else [test])]


def together(tests):
    """Lists of test cases that must run in one process."""
    lists, of_class = [], {}
    for test in tests:
        if "setUpClass" not in vars(type(test)):
            lists.append([test])
        elif type(test) in of_class:
            of_class[type(test)].append(test)
        else:
            lists.append(of_class.setdefault(type(test), [test]))
    return lists


class ShardLoader(unittest.TestLoader):
    """Loads the tests of this shard alone."""

    def loadTestsFromNames(self, names, module=None):
        index, shards = int(os.environ.get("TEST_SHARD_INDEX", 0)), int(os.environ.get("TEST_TOTAL_SHARDS", 1))
        if "TEST_SHARD_STATUS_FILE" in os.environ:
            pathlib.Path(os.environ["TEST_SHARD_STATUS_FILE"]).touch()
        lists = together(flat(super().loadTestsFromNames(names, module)))
        return self.suiteClass([test for tests in lists[index::shards] for test in tests])


def main():
    files = [pathlib.Path(argument) for argument in sys.argv[1:] if argument.endswith("_test.py")]
    others = [argument for argument in sys.argv[1:] if not argument.endswith("_test.py")]
    if not files:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    with open(files[0], encoding="utf-8") as file:
        interpreter = file.readline()[len("#!"):].split()
    if interpreter[0] not in ("/usr/bin/env", sys.executable):
        os.execv(interpreter[0], [*interpreter, *sys.argv])
    sys.path[:0] = sorted({str(file.parent.absolute()) for file in files})
    ran = unittest.main(module=None, argv=["python_tests.py", *(file.stem for file in files), *others], exit=False,
                        testLoader=ShardLoader(), verbosity=2)
    return 0 if ran.result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
