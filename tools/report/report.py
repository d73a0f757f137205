#!/usr/bin/python3
"""Makes report.html from what //benchmarks:compare measured.

Usage: report COMPARE.JSON [--out=REPORT.HTML] [--figure=PICTURE.SVG|PNG]
       report RANK0.JSON... --figure=PICTURE.SVG|PNG --figure_of=epochs

Reads compare.json and writes one page that needs no network: who won and by how much, plots of what was measured and
predicted, all runs, and where they come from. Needs Debian's python3-matplotlib and python3-jinja2, which tools/setup
installs. The second form draws loss and accuracy over the epochs of any jobs, from what rank 0 of each has written to
--metrics_json; the files' names are the lines'.

Exit codes: 0 written; 1 the output cannot be written; 2 wrong command line or input, or a module is missing.
"""
import argparse
import os
import sys
import tempfile

sys.dont_write_bytecode = True  # Not into the checkout.
FOLDER = os.path.dirname(os.path.abspath(__file__))
if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)

import records  # noqa: E402


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise records.BadInput(f"{message}; see --help")


def user_path(path):
    """`bazel run` starts programs elsewhere, but paths are relative to where the user was."""
    return os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", ""), path)


def check_modules():
    missing = []
    for module, package in (("matplotlib", "python3-matplotlib"), ("jinja2", "python3-jinja2")):
        try:
            __import__(module)
        except ImportError:
            missing.append(package)
    if missing:
        raise records.BadInput(f"needs {' and '.join(missing)}, which {sys.executable} does not find; run tools/setup")


def write(path, text):
    """All or nothing."""
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".report-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def name_of(path):
    return os.path.splitext(os.path.basename(path))[0]


def epochs_picture(args):
    """Path and content of what is to be written."""
    if not args.figure:
        raise records.BadInput("--figure_of=epochs: expected --figure=FILE too, found none")
    workers = [(name_of(path), records.load_worker(user_path(path))) for path in args.json]
    check_modules()
    import figures
    return args.figure, figures.epochs_picture(workers, args.figure)


def page_or_picture(args):
    """Likewise."""
    if len(args.json) > 1:
        raise records.BadInput(f"expected one COMPARE.JSON without --figure_of=epochs, found {len(args.json)}")
    path = args.json[0]
    found = records.load(user_path(path))
    check_modules()
    if not args.figure:
        import page
        return args.out or os.path.join(os.path.dirname(path), "report.html"), page.render(found).encode()
    import figures
    draw = {"throughput": figures.picture, "bandwidth": figures.bandwidth_picture, "time": figures.time_picture,
            "learning": figures.learning_picture, "split": figures.split_picture}[args.figure_of]
    return args.figure, draw(found, args.figure)


def make(argv):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("json", metavar="COMPARE.JSON", nargs="+")
    parser.add_argument("--out", metavar="FILE", help="default: report.html beside COMPARE.JSON")
    parser.add_argument("--figure", metavar="FILE", help="instead, one picture for a document, as SVG or PNG")
    parser.add_argument("--figure_of", choices=("throughput", "bandwidth", "time", "learning", "split", "epochs"),
                        default="throughput",
                        help="samples/s against workers (default) or against bandwidth, the time of a step against workers "
                        "(strong scaling) or against the samples of a micro-batch (stages), loss and accuracy against time, or over the epochs of jobs")
    args = parser.parse_args(argv)
    outputs = [epochs_picture(args) if args.figure_of == "epochs" else page_or_picture(args)]
    for path, data in outputs:
        try:
            write(user_path(path), data)
        except OSError as error:
            print(f"report: {path}: cannot be written: {error.strerror}", file=sys.stderr)
            return 1
        print(f"wrote {path}")
    return 0


def main(argv):
    try:
        return make(argv)
    except records.BadInput as error:
        print(f"report: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
