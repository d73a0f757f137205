"""The command `gradsync`, also as `python -m gradsync`."""
import sys

USAGE = """usage: gradsync compare [flags] -- SCRIPT [arguments]
       gradsync compare --help
"""


def main() -> int:
    command = sys.argv[1:]
    if command[:1] == ["compare"]:
        from .compare import main as compare

        return compare(command[1:])
    if command in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    if command == ["--version"]:
        from . import __version__

        print(f"gradsync {__version__}")
        return 0
    sys.stderr.write(f"gradsync: expected compare, found {command[0] if command else 'nothing'}\n{USAGE}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
