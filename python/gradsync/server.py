"""A parameter server: `python -m gradsync.server FLAGS` or `gradsync server FLAGS`; --help lists the flags.

This process becomes the program ps_server, so signals, output and exit codes are that one's: docs/use/running.md,
docs/operate/operations.md.
"""
import os
import pathlib
import signal
import sys
from collections.abc import Sequence

PROGRAM = pathlib.Path(__file__).with_name("_bin") / "ps_server"


def main(arguments: Sequence[str] | None = None) -> int:
    """Does not return, unless there is no such program."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and so would what it becomes
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(PROGRAM, [str(PROGRAM), *(sys.argv[1:] if arguments is None else arguments)])
    except OSError as error:
        print(f"gradsync: {PROGRAM}: expected the program of an installed wheel, found: {error.strerror}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
