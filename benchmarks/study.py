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
    print("+", *command, flush=True)
    # One compute thread per process, whatever LibTorch's BLAS thinks.
    code = subprocess.run(command, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}).returncode
    if code != 0:
        raise Failed(f"{command[0]} ended with exit code {code}")


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path, content):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)


def out_folder(path):
    """Made, and where the user was: `bazel run` starts programs elsewhere."""
    path = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), path)
    os.makedirs(path, exist_ok=True)
    return path
