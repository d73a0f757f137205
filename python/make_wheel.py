#!/usr/bin/env python3
"""Writes the wheel of the Python package: for //python:wheel.

Usage: make_wheel.py FOLDER --library=FILE --program=FILE --readme=FILE --license=FILE FILE...

FOLDER gets gradsync-VERSION-py3-none-PLATFORM.whl, with the FILEs of the package gradsync, among which __init__.py has the version; the
library, stripped; the program likewise, in a folder _bin/; and in a folder libs/ beside these, where both look for them, those shared
libraries of this system that they need and not every Linux has: gRPC, Protocol Buffers, Abseil, RE2, c-ares, OpenSSL, zlib and, for the
program alone, Prometheus. (Debian's archives of them cannot become part of a shared library: they are compiled for programs.) Nobody else
in a process must meet them, whatever that has loaded. So their files have other names here, by which the loader tells them from the
system's, and symbols that it would make one in all of the process are ordinary ones; _library.py loads them so that they see each other
first. The same inputs make the same bytes.

PLATFORM is manylinux_2_N_x86_64, where 2.N is the oldest glibc whose systems have what all of this asks of glibc and of libstdc++
(PEP 600); linux_x86_64, which means this system alone, where a sanitizer is built in or libstdc++ is newer than this script.
"""
import argparse
import base64
import hashlib
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "gradsync"

EVERYWHERE = re.compile(r"(ld-linux-x86-64|lib(c|dl|gcc_s|m|pthread|rt|stdc\+\+))\.so\.\d+$")
SANITIZER = re.compile(r"lib(asan|tsan|ubsan)\.so")

# The last number of GLIBCXX_3.4.N, and of the oldest glibc 2.N beside which distributions have that libstdc++.
LIBSTDCXX = [(24, 28), (28, 31), (29, 34), (30, 35), (32, 38), (33, 39)]

# Where Debian keeps the licences of its packages.
LICENCES = pathlib.Path("/usr/share/doc")

METADATA = """Metadata-Version: 2.1
Name: gradsync
Version: {version}
Summary: Data-parallel training over ring-allreduce or parameter servers: a backend of torch.distributed, and collectives for numpy
License: Apache-2.0
Requires-Python: >=3.10
Description-Content-Type: text/markdown

{readme}"""

WHEEL = """Wheel-Version: 1.0
Generator: gradsync
Root-Is-Purelib: false
Tag: {tag}
"""

# PyTorch finds the backend by the last one from 2.14 on, and by the one before, made for devices, from 2.5 on.
ENTRY_POINTS = """[console_scripts]
gradsync = gradsync.__main__:main

[torch.backends]
gradsync = gradsync.torch:register

[torch.distributed.backends]
gradsync = gradsync.torch:register
"""


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def libraries_of(path):
    """Those that it needs and not every system has: their names, and where they are."""
    found = {}
    for line in run("ldd", path).splitlines():
        match = re.match(r"\s*(\S+) => (\S+)", line)
        if match and not EVERYWHERE.match(match[1]) and not SANITIZER.match(match[1]):
            found[match[1]] = pathlib.Path(match[2])
    return found


def platform_for(paths):
    needs = "".join(run("readelf", "--dynamic", "--version-info", "--wide", path) for path in paths)
    if SANITIZER.search(needs):
        return "linux_x86_64"
    oldest = max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", needs))
    newest = max(map(int, re.findall(r"Name: GLIBCXX_3\.4\.(\d+)", needs)), default=0)
    glibc = next((glibc for libstdcxx, glibc in LIBSTDCXX if newest <= libstdcxx), None)
    return "linux_x86_64" if glibc is None else f"manylinux_2_{max(oldest, glibc)}_x86_64"


def licences_of(paths):
    """Of the packages that these files are of: name to content."""
    found = {}
    for path in paths:
        search = subprocess.run(["dpkg-query", "--search", f"*/{path.resolve().name}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                text=True, check=False)
        package = search.stdout.split(":")[0]
        licence = LICENCES / package / "copyright"
        if package and licence.exists():
            found[package] = licence.read_bytes()
    return dict(sorted(found.items()))


class Elf:
    """A shared library or program of 64-bit x86 as bytes to be changed in place; the names are those of elf.h."""

    SHT_DYNAMIC, SHT_DYNSYM, SHT_GNU_VERNEED = 6, 11, 0x6FFFFFFE
    DT_NEEDED, DT_SONAME = 1, 14
    STB_WEAK, STB_GNU_UNIQUE = 2, 10

    def __init__(self, content):
        self.content = bytearray(content)
        at, = struct.unpack_from("<Q", content, 0x28)
        size, count = struct.unpack_from("<HH", content, 0x3A)
        # (type, offset, size, number of the section that has its strings)
        self.sections = [(kind, offset, length, link) for kind, offset, length, link in (
            (*struct.unpack_from("<4xI16x", content, at + size * number), *struct.unpack_from("<24xQQI", content, at + size * number))
            for number in range(count))]

    def of_kind(self, kind):
        """Offset, end, and offset of the strings of each section of a kind."""
        return [(offset, offset + length, self.sections[link][1]) for found, offset, length, link in self.sections if found == kind]

    def replace(self, at, names):
        """A string that is one of `names`, by that, which is as long."""
        old = bytes(self.content[at:self.content.index(0, at)])
        new = names.get(old.decode(), "").encode()
        if new:
            assert len(new) == len(old)
            self.content[at:at + len(old)] = new

    def rename(self, names):
        """In what it is called, and in what it needs."""
        for at, end, strings in self.of_kind(self.SHT_DYNAMIC):
            for entry in range(at, end, 16):
                tag, value = struct.unpack_from("<qQ", self.content, entry)
                if tag in (self.DT_NEEDED, self.DT_SONAME):
                    self.replace(strings + value, names)
        for at, end, strings in self.of_kind(self.SHT_GNU_VERNEED):
            while at < end:
                file, following = struct.unpack_from("<4xI4xI", self.content, at)
                self.replace(strings + file, names)
                if following == 0:
                    break
                at += following

    def make_unique_symbols_weak(self):
        """The loader makes a unique symbol one for the process, in whichever library it finds it first."""
        for at, end, _ in self.of_kind(self.SHT_DYNSYM):
            for entry in range(at, end, 24):
                if self.content[entry + 4] >> 4 == self.STB_GNU_UNIQUE:
                    self.content[entry + 4] = self.STB_WEAK << 4 | self.content[entry + 4] & 15


def own_copy(path, names):
    elf = Elf(path.read_bytes())
    elf.rename(names)
    elf.make_unique_symbols_weak()
    return bytes(elf.content)


def stripped_copy(path, names):
    with tempfile.TemporaryDirectory() as folder:
        stripped = pathlib.Path(folder) / "stripped"
        run("strip", "--strip-unneeded", "-o", stripped, path)
        return own_copy(stripped, names)


def digest(content):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def write(path, members):
    """A zip file of members, in their order: name to (content, is it executable)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (content, executable) in members.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("sources", nargs="+", type=pathlib.Path)
    for name in ("library", "program", "readme", "license"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    members = {f"{PACKAGE}/{source.name}": (source.read_bytes(), False) for source in sorted(arguments.sources)}
    found = re.search(rb'^__version__ = "([^"]+)"$', members[f"{PACKAGE}/__init__.py"][0], re.MULTILINE)
    if found is None:
        sys.exit("make_wheel: __init__.py: expected __version__, found none")
    version = found.group(1).decode()
    libraries = {**libraries_of(arguments.library), **libraries_of(arguments.program)}
    names = {name: "gs_" + name[len("lib"):] for name in libraries}
    members[f"{PACKAGE}/libgradsync.so"] = (stripped_copy(arguments.library, names), True)
    members[f"{PACKAGE}/_bin/{arguments.program.name}"] = (stripped_copy(arguments.program, names), True)
    for name, path in sorted(libraries.items()):
        members[f"{PACKAGE}/libs/{names[name]}"] = (own_copy(path, names), True)
    tag = f"py3-none-{platform_for([arguments.library, arguments.program, *libraries.values()])}"
    about = f"{PACKAGE}-{version}.dist-info/"
    members[about + "LICENSE"] = (arguments.license.read_bytes(), False)
    for package, licence in licences_of(libraries.values()).items():
        members[f"{about}licenses/{package}"] = (licence, False)
    members[about + "METADATA"] = (METADATA.format(version=version, readme=arguments.readme.read_text("utf-8")).encode(), False)
    members[about + "WHEEL"] = (WHEEL.format(tag=tag).encode(), False)
    members[about + "entry_points.txt"] = (ENTRY_POINTS.encode(), False)
    record = "".join(f"{name},{digest(content)},{len(content)}\n" for name, (content, _) in members.items())
    members[about + "RECORD"] = (f"{record}{about}RECORD,,\n".encode(), False)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write(arguments.folder / f"{PACKAGE}-{version}-{tag}.whl", members)


if __name__ == "__main__":
    main()
