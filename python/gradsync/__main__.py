"""The command `gradsync`, also as `python -m gradsync`."""
import importlib
import sys

# Each is a module here, which is imported when it is asked for, whose main() takes the arguments after it and gives the exit code.
COMMANDS = {
    "compare": "gradsync compare [flags] -- SCRIPT [arguments]",
    "server": "gradsync server [flags]",
}


def main() -> int:
    usage = "".join(f"{'       ' if line else 'usage: '}{text}\n       gradsync {name} --help\n"
                    for line, (name, text) in enumerate(COMMANDS.items()))
    command = sys.argv[1:]
    if command and command[0] in COMMANDS:
        return importlib.import_module("." + command[0], __package__).main(command[1:])
    if command in (["--help"], ["-h"]):
        sys.stdout.write(usage)
        return 0
    if command == ["--version"]:
        from . import __version__

        print(f"gradsync {__version__}")
        return 0
    sys.stderr.write(f"gradsync: expected {' or '.join(COMMANDS)}, found {command[0] if command else 'nothing'}\n{usage}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
