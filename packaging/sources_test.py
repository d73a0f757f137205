#!/usr/bin/env python3
"""packaging/sources.cmake names what Bazel compiles, and what of it is compiled in users' projects needs nothing but LibTorch and Abseil.

  bazel run //packaging:sources_test -- --write    writes it anew, after a file was added, moved or removed
"""
import collections
import difflib
import os
import pathlib
import re
import sys
import unittest

# Of //packaging:source_list: a part, a file, and the compiler's options of its target, in each line.
LIST = os.path.join("packaging", "source_list.txt")
CMAKE = "packaging/sources.cmake"

HEAD = """\
# The files of the library, for CMake and for packages: what Bazel compiles, as //packaging:sources_test makes sure.
# `bazel run //packaging:sources_test -- --write` writes it anew.
"""

# Headers of gradsync/ that are no user's.
NOT_PUBLIC = {"gradsync/group_impl.h"}

# In place of allreduce/open_nccl.cc and core/gpu/open_gpu.cc where there is CUDA, which most builds of Bazel do not see.
CUDA = ["allreduce/open_nccl_cuda.cc", "core/gpu/fold_kernel.cu", "core/gpu/gpu_kernels.cu", "core/gpu/open_gpu_cuda.cc"]

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
INCLUDE_OF_ANY = re.compile(r'^\s*#\s*include\s+[<"]([^">]+/[^">]+)[">]', re.MULTILINE)

# Whose headers a user's project has: LibTorch's, with Gloo's beside them, Abseil's and the system's.
THEIRS = re.compile(r"(ATen|absl|arpa|c10|gloo|net|netinet|sys|torch)/")


def text(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def listed():
    """Files by part, each with its options but for warnings."""
    parts = collections.defaultdict(dict)
    for line in text(LIST).splitlines():
        part, file, *options = line.split()
        parts[part][file] = [option for option in options if not option.startswith("-W")]
    return parts


def headers_of(sources):
    """The tree's headers that these files reach."""
    found = set()
    queue = list(sources)
    while queue:
        for name in INCLUDE.findall(text(queue.pop())):
            if name not in found and os.path.exists(name):
                found.add(name)
                queue.append(name)
    return found


def lists():
    """The variables of sources.cmake, in order."""
    parts = listed()
    library, ddp, server = parts["library"], parts["ddp"], parts["server"]
    services = {re.sub(r"\.grpc\.pb\.cc$", ".proto", file) for file in library if file.endswith(".grpc.pb.cc")}
    messages = {re.sub(r"\.pb\.cc$", ".proto", file) for file in library if file.endswith(".pb.cc")} - services
    messages = {file for file in messages if not file.endswith(".grpc.proto")}
    own = {file: options for file, options in library.items() if not file.endswith(".pb.cc")}
    kernels = {file: options for file, options in own.items() if options}
    ours = [file for file in ddp if file not in library]
    public = {str(path) for path in pathlib.Path("gradsync").glob("*.h")} - NOT_PUBLIC
    private = headers_of(ours) - public
    yield "GRADSYNC_PUBLIC_HEADERS", public
    yield "GRADSYNC_MESSAGES", messages
    yield "GRADSYNC_SERVICES", services
    yield "GRADSYNC_SOURCES", set(own) - set(kernels)
    yield "GRADSYNC_KERNELS", kernels
    for file, options in sorted(kernels.items()):
        yield "GRADSYNC_OPTIONS_" + file, options
    yield "GRADSYNC_SERVER_SOURCES", [file for file in server if file not in library]
    yield "GRADSYNC_DDP_SOURCES", ours
    yield "GRADSYNC_DDP_HEADERS", private
    yield "GRADSYNC_CUDA_SOURCES", CUDA
    yield "GRADSYNC_CUDA_HEADERS", headers_of(CUDA) - private - public


def expected():
    pieces = [HEAD]
    for name, items in lists():
        if name.startswith("GRADSYNC_OPTIONS_"):
            pieces.append(f"set({name} {' '.join(items)})\n")
        else:
            pieces.append(f"\nset({name}\n" + "".join(f"  {item}\n" for item in sorted(items)) + ")\n")
    return "".join(pieces)


class SourcesTest(unittest.TestCase):
    def test_cmake_compiles_what_bazel_compiles(self):
        difference = "".join(difflib.unified_diff(text(CMAKE).splitlines(True), expected().splitlines(True), CMAKE, "expected"))
        self.assertEqual(difference, "", f"{difference}\nbazel run //packaging:sources_test -- --write")

    def test_what_users_compile_includes_nothing_but_libtorch_and_abseil(self):
        parts = dict(lists())
        for path in [*parts["GRADSYNC_DDP_SOURCES"], *parts["GRADSYNC_DDP_HEADERS"]]:
            for name in INCLUDE_OF_ANY.findall(text(path)):
                self.assertTrue(os.path.exists(name) or THEIRS.match(name), f"{path} includes {name}")

    def test_public_headers_are_few_and_include_nothing_but_libtorch(self):
        public = dict(lists())["GRADSYNC_PUBLIC_HEADERS"]
        self.assertLessEqual(len(public), 15)
        for path in public:
            for name in INCLUDE_OF_ANY.findall(text(path)):
                self.assertTrue(name in public or re.match(r"(ATen|c10|torch)/", name), f"{path} includes {name}")


if __name__ == "__main__":
    if "--write" in sys.argv:
        folder = os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")
        pathlib.Path(folder, CMAKE).write_text(expected(), encoding="utf-8")
    else:
        unittest.main()
