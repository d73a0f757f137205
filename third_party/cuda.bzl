"""The CUDA toolkit and NCCL, for --config=cuda; in every other build a repository of empty targets.

The toolkit is the folder that CUDA_HOME names, or the one that tools/setup --cuda made. NCCL is the one that LibTorch
loads (pip puts it beside torch/), or else the toolkit's.
"""

load(":libtorch.bzl", "LIBTORCH_ENVIRON", "cuda_setup_folder", "libtorch_folder", "wants_cuda")

_BUILD = """
package(default_visibility = ["//visibility:public"])

# The CUDA runtime.
cc_library(
    name = "runtime",
    hdrs = {runtime_hdrs},
    includes = {runtime_hdrs},
    linkopts = {runtime_linkopts},
)

cc_library(
    name = "nccl",
    hdrs = {nccl_hdrs},
    includes = {nccl_hdrs},
    linkopts = {nccl_linkopts},
    deps = [":runtime"],
)
"""

def _first_with(ctx, folders, file):
    """The first of `folders` that has `file`; None if none has."""
    for folder in folders:
        if ctx.path(folder + "/" + file).exists:
            return folder
    return None

def _library(ctx, folder, file):
    lib = _first_with(ctx, [folder + "/lib", folder + "/lib64"], file)
    if not lib:
        fail("--config=cuda: no {} in {}/lib or lib64; run tools/setup --cuda".format(file, folder))
    return ["-L" + lib, "-Wl,-rpath," + lib, "-l:" + file]

def _cuda_repository_impl(ctx):
    ctx.file("WORKSPACE", "")
    nvcc = ""
    runtime_hdrs = []
    runtime_linkopts = []
    nccl_hdrs = []
    nccl_linkopts = []
    if wants_cuda(ctx):
        home = ctx.os.environ.get("CUDA_HOME", "") or cuda_setup_folder(ctx) + "/nvidia/cu13"
        nvcc = home + "/bin/nvcc"
        if not ctx.path(nvcc).exists:
            fail("--config=cuda: no nvcc in {}/bin; run tools/setup --cuda, or set CUDA_HOME".format(home))
        nccl = _first_with(ctx, [libtorch_folder(ctx) + "/../nvidia/nccl", home], "include/nccl.h")
        if not nccl:
            fail("--config=cuda: no nccl.h in {}/include or beside LibTorch; run tools/setup --cuda".format(home))

        # The folder itself is the header label, as in libtorch.bzl.
        ctx.symlink(home + "/include", "cuda_include")
        ctx.symlink(ctx.path(nccl + "/include/nccl.h"), "nccl_include/nccl.h")
        runtime_hdrs = ["cuda_include"]
        runtime_linkopts = _library(ctx, home, "libcudart.so.13")
        nccl_hdrs = ["nccl_include"]
        nccl_linkopts = _library(ctx, str(ctx.path(nccl)), "libnccl.so.2")
    ctx.file("nvcc.bzl", "NVCC = {}\n".format(repr(nvcc)))
    ctx.file("BUILD", _BUILD.format(
        nccl_hdrs = repr(nccl_hdrs),
        nccl_linkopts = repr(nccl_linkopts),
        runtime_hdrs = repr(runtime_hdrs),
        runtime_linkopts = repr(runtime_linkopts),
    ))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = LIBTORCH_ENVIRON + ["CUDA_HOME"],
    configure = True,
    local = True,
    doc = "@cuda//:runtime, @cuda//:nccl, and nvcc.bzl with the path of the compiler.",
)
