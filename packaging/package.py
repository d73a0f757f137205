#!/usr/bin/env python3
"""Packs what `cmake --install` would install, from what Bazel has built.

Usage: packaging/package.py --library=libgradsync.so.1 --out=FILE.tar.gz|FILE.deb    from the root of the repository

A .tar.gz has the files below include/, lib/ and share/, to be unpacked into any prefix. A .deb has them below /usr, with the
libraries of the Debian release that it is made on as what it depends on (dpkg-shlibdeps); it is made by dpkg-deb. Both are the
same, byte for byte, when their inputs are.
"""

import argparse
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

CONFIGURED = {"gradsyncConfig.cmake": "cmake/gradsync", "gradsyncConfigVersion.cmake": "cmake/gradsync", "gradsync.pc": "pkgconfig"}
COPIED = ["gradsync_ddp.cmake", "gradsync_dependencies.cmake", "sources.cmake"]

CONTROL = """\
Package: libgradsync-dev
Version: {version}-1+{release}
Architecture: {architecture}
Section: libdevel
Priority: optional
Maintainer: The gradsync authors <gradsync@localhost>
Depends: {depends}
Suggests: cmake, libtorch-dev
Description: data-parallel training for LibTorch in C++
 Averages the gradients of the ranks of a job, by ring-allreduce or parameter
 servers. Has the library, its headers, and what touches LibTorch as source,
 which CMake compiles in projects that use it.
"""

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gradsync

Files: *
Copyright: the gradsync authors
License: Apache-2.0
 /usr/share/common-licenses/Apache-2.0 has the text of the license.
"""


def read(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def output_of(*command, **options):
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"packaging/package.py: {error}")


def source_lists():
    """Files by variable of sources.cmake."""
    found = re.findall(r"^set\((\w+)\n(.*?)\n\)", read("packaging/sources.cmake"), re.MULTILINE | re.DOTALL)
    return {name: items.split() for name, items in found}


def install(library, prefix, libdir):
    """Puts all files below the folder `prefix`, those of the library below `libdir` there. Returns the version."""
    header = read("gradsync/version.h")
    abi = re.search(r"GRADSYNC_ABI_VERSION (\d+)", header).group(1)
    values = {
        "GRADSYNC_VERSION": re.search(r'GRADSYNC_VERSION "(.*)"', header).group(1),
        "GRADSYNC_ABSEIL_VERSION": output_of("pkg-config", "--modversion", "absl_base"),
        "GRADSYNC_LIBDIR": libdir,
        "GRADSYNC_UP": re.sub("[^/]+", "..", libdir),
        "GRADSYNC_LIBRARY_TYPE": "SHARED",
        "GRADSYNC_LIBRARY_FILE": "libgradsync.so." + abi,
        "GRADSYNC_REQUIRES": "",
    }

    def put(source, place):
        place = prefix / place
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)

    lists = source_lists()
    put(library, f"{libdir}/{values['GRADSYNC_LIBRARY_FILE']}")
    os.symlink(values["GRADSYNC_LIBRARY_FILE"], prefix / libdir / "libgradsync.so")
    for file in lists["GRADSYNC_PUBLIC_HEADERS"]:
        put(file, f"include/{file}")
    for name in ("GRADSYNC_DDP_SOURCES", "GRADSYNC_DDP_HEADERS", "GRADSYNC_CUDA_SOURCES", "GRADSYNC_CUDA_HEADERS"):
        for file in lists[name]:
            put(file, f"share/gradsync/src/{file}")
    for file in COPIED:
        put(f"packaging/{file}", f"{libdir}/cmake/gradsync/{file}")
    for file, folder in CONFIGURED.items():
        text = re.sub(r"@(\w+)@", lambda match: values[match.group(1)], read(f"packaging/{file}.in"))
        place = prefix / libdir / folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    put("LICENSE", "share/doc/gradsync/LICENSE")
    return values["GRADSYNC_VERSION"]


def make_tarball(library, out):
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder)
        install(library, prefix, "lib")

        def plain(info):
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = "root"
            info.mode = 0o755 if info.isdir() else 0o644
            return info

        with open(out, "wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as packed, \
                tarfile.open(fileobj=packed, mode="w") as archive:
            for path in sorted(prefix.rglob("*")):
                archive.add(path, str(path.relative_to(prefix)), recursive=False, filter=plain)


def libraries_of(library):
    """The packages of Debian that a library needs, as dpkg-shlibdeps finds them."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/debian")
        pathlib.Path(folder, "debian/control").write_text("Source: gradsync\n\nPackage: libgradsync-dev\nArchitecture: any\n")
        found = output_of("dpkg-shlibdeps", "-O", os.path.abspath(library), cwd=folder)
    return re.search(r"^shlibs:Depends=(.*)$", found, re.MULTILINE).group(1)


def make_deb(library, out):
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', read("/etc/os-release"), re.MULTILINE))
    if system.get("ID") != "debian":
        sys.exit(f"packaging/package.py: --out={out}: expected a Debian system, found {system.get('ID', 'unknown')}")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "root")
        libdir = "lib/" + output_of("gcc", "-print-multiarch")
        version = install(library, root / "usr", libdir)
        documents = root / "usr/share/doc/libgradsync-dev"
        documents.mkdir()
        (documents / "copyright").write_text(COPYRIGHT)
        # Programs are compiled with Abseil's headers, and fit no other release's libraries.
        abseil = output_of("pkg-config", "--modversion", "absl_base")
        depends = f"{libraries_of(library)}, libabsl-dev (>= {abseil}), libabsl-dev (<< {abseil}.99)"
        control = root / "DEBIAN"
        control.mkdir()
        (control / "control").write_text(CONTROL.format(
            version=version, release="deb" + system["VERSION_ID"], depends=depends,
            architecture=output_of("dpkg", "--print-architecture")))
        (control / "triggers").write_text("activate-noawait ldconfig\n")
        for path in [root, *root.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)
        output_of("dpkg-deb", "--build", "--root-owner-group", str(root), os.path.abspath(out),
                  env=dict(os.environ, SOURCE_DATE_EPOCH="0"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip(), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    make = make_deb if options.out.endswith(".deb") else make_tarball
    make(options.library, options.out)


if __name__ == "__main__":
    main()
