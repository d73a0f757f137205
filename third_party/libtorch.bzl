"""LibTorch: Debian's by default, or the folder that LIBTORCH names (pip's torch/ or the downloaded zip).

With --config=cuda: the folder that LIBTORCH names, or the one that tools/setup --cuda made; it must be for CUDA.
"""

_BUILD = """
cc_library(
    name = "torch",
    srcs = {unused},
    hdrs = {hdrs},
    defines = {defines},
    includes = {includes},
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)

# For constants such as the version, without linking LibTorch.
cc_library(
    name = "headers",
    hdrs = {hdrs},
    includes = {includes},
    visibility = ["//visibility:public"],
)

# What LibTorch's own Gloo is linked with, for those who call Gloo itself; nothing where it has no headers of Gloo.
cc_library(
    name = "gloo",
    linkopts = {gloo_linkopts},
    visibility = ["//visibility:public"],
    deps = [":torch"],
)

# What LibTorch runs on GPUs; nothing without --config=cuda.
cc_library(
    name = "torch_cuda",
    linkopts = {cuda_linkopts},
    visibility = ["//visibility:public"],
    deps = [":torch"],
)
"""

def wants_cuda(ctx):
    """Whether this is a build with --config=cuda, which sets the variable."""
    return ctx.os.environ.get("GRADSYNC_CUDA", "") == "1"

def cuda_setup_folder(ctx):
    """The folder, as a string, into which tools/setup --cuda installs."""
    cache = ctx.os.environ.get("XDG_CACHE_HOME", "") or ctx.os.environ.get("HOME", "") + "/.cache"
    return cache + "/gradsync/cuda"

def libtorch_folder(ctx):
    """LibTorch's folder as a string; empty for Debian's, which is spread over the system's folders."""
    folder = ctx.os.environ.get("LIBTORCH", "")
    return cuda_setup_folder(ctx) + "/torch" if not folder and wants_cuda(ctx) else folder

# Debian's libtorch_cpu is linked with these for operators of Caffe2 that it does not have: it names no symbol of theirs. With what
# they link in turn, GDAL and Qt among it, they are most of the 287 libraries of a program that links LibTorch.
_MAKE_UNUSED = """
mkdir unused
for name in $(objdump -p "$(gcc -print-file-name=libtorch_cpu.so)" | awk '$1 == "NEEDED" { print $2 }' |
    grep -E '^lib(avcodec|avformat|avutil|leveldb|lmdb|opencv_.*|snappy|swresample|swscale|zmq)[.]so'); do
  gcc -shared -nostdlib -x c /dev/null -o "unused/$name" -Wl,-soname,"$name" || exit
done
"""

def _unused_libraries(ctx):
    """Paths of empty libraries by those names. A program that links them does not load the real ones, and starts in two thirds of
    the time (benchmarks/results/worker_start_2core_xeon.txt). Where it does not find them, because it was carried elsewhere, it
    loads the real ones."""
    made = ctx.execute(["bash", "-o", "pipefail", "-c", _MAKE_UNUSED])
    if made.return_code:
        fail("cannot make libraries in place of those that libtorch_cpu does not use: " + made.stderr)
    return sorted(["unused/" + path.basename for path in ctx.path("unused").readdir()])

# Every variable that the functions above read.
LIBTORCH_ENVIRON = ["GRADSYNC_CUDA", "HOME", "LIBTORCH", "XDG_CACHE_HOME"]

def _libtorch_repository_impl(ctx):
    folder = libtorch_folder(ctx)
    ctx.file("WORKSPACE", "")
    cuda_linkopts = []
    gloo_linkopts = []
    unused = []
    if folder:
        root = ctx.path(folder)
        lib = folder + "/lib"
        if wants_cuda(ctx):
            if not ctx.path(lib + "/libtorch_cuda.so").exists:
                fail("--config=cuda: no LibTorch for CUDA in {}; run tools/setup --cuda".format(folder))

            # Nobody names its symbols: being loaded is what adds the GPU to LibTorch.
            cuda_linkopts = ["-Wl,--push-state,--no-as-needed,-ltorch_cuda,--pop-state", "-lc10_cuda"]
        if not root.exists:
            fail("LIBTORCH={}: no such folder".format(folder))
        headers = root.get_child("include")

        # google/ would shadow the system's protobuf.
        for child in headers.readdir():
            if child.basename != "google":
                ctx.symlink(child, "include/" + child.basename)
        linkopts = ["-L" + lib, "-Wl,-rpath," + lib]
        defines = []
    else:
        headers = ctx.path("/usr/include/torch")
        if not headers.exists:
            fail("LibTorch is not installed; run tools/setup, or set LIBTORCH to its folder")
        for child in ["torch", "ATen", "c10", "caffe2"]:
            ctx.symlink("/usr/include/" + child, "include/" + child)
        linkopts = []
        defines = ["USE_C10D_GLOO"]
        gloo_linkopts = ["-lgloo"]
        unused = _unused_libraries(ctx)

    # The folder itself is the one header label: a glob of its 9,400 files would be linked into every sandbox.
    ctx.file("BUILD", _BUILD.format(
        hdrs = repr(["include"]),
        cuda_linkopts = repr(cuda_linkopts),
        defines = repr(defines),
        gloo_linkopts = repr(gloo_linkopts),
        includes = repr(["include", "include/torch/csrc/api/include"]),
        linkopts = repr(linkopts + ["-ltorch_cpu", "-lc10"]),
        unused = repr(unused),
    ))

libtorch_repository = repository_rule(
    implementation = _libtorch_repository_impl,
    environ = LIBTORCH_ENVIRON,
    configure = True,
    local = True,
)
