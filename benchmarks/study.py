"""What studies share: programs that benchmarks are made of, run one after another, and the figures in between."""
import argparse
import json
import os
import subprocess


class Failed(Exception):
    """In one line."""


def numbers(text):
    """Of a flag: "1,2,4"."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers from 1 on, with commas, found {text!r}")
    return found


def percentile(values, share):
    values = sorted(values)
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def run(*command):
    """A program of this repository, by its path in it, with what it says."""
    start(command)


def said(*command):
    """The same, and what it says is returned."""
    return start(command, stdout=subprocess.PIPE, universal_newlines=True).stdout


def start(command, **how):
    print("+", *command, flush=True)
    # One compute thread per process, whatever LibTorch's BLAS thinks.
    ended = subprocess.run(command, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, **how)
    if ended.returncode != 0:
        raise Failed(f"{command[0]} ended with exit code {ended.returncode}")
    return ended


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path, content):
    """Whole or not at all."""
    partial = path + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
    os.replace(partial, path)


def of_same_flags(folder, flags):
    """Records are kept by name, and are what was asked for only where the flags are those of before, which the folder notes.

    Raises Failed where they are not."""
    path = os.path.join(folder, "flags.json")
    flags = json.loads(json.dumps(flags))
    if not os.path.exists(path):
        return write_json(path, flags)
    before = read_json(path)
    for name, value in flags.items():
        if before.get(name) != value:
            raise Failed(f"{folder} has records of --{name}={before.get(name)}, found --{name}={value}; give another --out")


def why_invalid(runs):
    """Lines that say of measurements whose figures must not be used, which others leave out, how many and why."""
    found = [made["invalid"] for made in runs if made["invalid"]]
    return [f"{len(found)} of {len(runs)} measurements are invalid and left out, such as: {found[0]}"] if found else []


def out_folder(path):
    """Made, and where the user was: `bazel run` starts programs elsewhere."""
    path = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), path)
    os.makedirs(path, exist_ok=True)
    return path
