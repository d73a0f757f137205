#!/usr/bin/env python3
"""Every flag of every program has a help text and is in the page that //docs:flags writes.

Called with the programs, as //docs:flags is.
"""
import importlib.machinery
import importlib.util
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True


def load(path):
    loader = importlib.machinery.SourceFileLoader("flag_reference", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # where dataclasses look
    loader.exec_module(module)
    return module


flag_reference = load("tools/flag_reference")  # from the root of the runfiles, where tests start

HELP = """tool [flags] FILE: does it.
More: of it.

What runs:
  --workers, --ranks, -n  (int)
      how many
      ranks | workers
      default: 2
  --verbose
      prints more
      default: false

Other:
  --out  (text)
      file for it
      default: empty
"""


class ParseTest(unittest.TestCase):
    def test_names_aliases_types_helps_and_defaults(self):
        program = flag_reference.parse("tool", HELP)
        self.assertEqual(program.usage, "tool [flags] FILE: does it.\nMore: of it.")
        self.assertEqual([title for title, _ in program.topics], ["What runs", "Other"])
        workers, verbose, out = program.flags()
        self.assertEqual((workers.name, workers.aliases, workers.type, workers.help, workers.default),
                         ("workers", ["--ranks", "-n"], "int", "how many ranks | workers", "2"))
        self.assertEqual((verbose.type, verbose.default), ("", "false"))
        self.assertEqual(out.default, "empty")

    def test_a_page_has_all_of_it(self):
        page = flag_reference.render([flag_reference.parse("tool", HELP)])
        self.assertIn("| `--workers`, `--ranks`, `-n` | int | 2 | how many ranks \\| workers |", page)
        self.assertIn("* [tool](#tool): 3 flags", page)

    def test_another_layout_is_an_error(self):
        for text in ("no flags here\n", "  --a\n      help\n      default: 1\n",
                     HELP.replace("      default: 2\n", ""), HELP + "odd\n"):
            with self.subTest(text), self.assertRaises(flag_reference.BadHelp):
                flag_reference.parse("tool", text)


class ProgramsTest(unittest.TestCase):
    paths = []

    def test_every_flag_has_a_help_text_and_is_in_the_page(self):
        self.assertTrue(self.paths, "no programs were named")
        programs = [flag_reference.read(path) for path in self.paths]
        page = flag_reference.render(programs)
        for path, program in zip(self.paths, programs):
            text = subprocess.run([path, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
            listed = re.findall(r"^  --(\w+)", text, re.MULTILINE)
            self.assertEqual(sorted(listed), sorted(flag.name for flag in program.flags()), program.name)
            self.assertEqual(len(listed), len(set(listed)), program.name)
            section = page.split(f"\n## {program.name}\n")[1].split("\n## ")[0]
            for flag in program.flags():
                with self.subTest(program=program.name, flag=flag.name):
                    self.assertRegex(flag.help, r"\w\w", "has no help text")
                    self.assertIn(f"| `--{flag.name}`", section)


if __name__ == "__main__":
    ProgramsTest.paths = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    unittest.main(argv=sys.argv[:1] + [argument for argument in sys.argv[1:] if argument.startswith("-")])
