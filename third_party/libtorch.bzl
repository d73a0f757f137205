"""LibTorch: Debian's by default, or the folder that LIBTORCH names (pip's torch/ or the downloaded zip)."""

_BUILD = """
cc_library(
    name = "torch",
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
"""

def _libtorch_repository_impl(ctx):
    folder = ctx.os.environ.get("LIBTORCH", "")
    ctx.file("WORKSPACE", "")
    if folder:
        root = ctx.path(folder)
        if not root.exists:
            fail("LIBTORCH={}: no such folder".format(folder))
        headers = root.get_child("include")

        # google/ would shadow the system's protobuf.
        for child in headers.readdir():
            if child.basename != "google":
                ctx.symlink(child, "include/" + child.basename)
        lib = str(root.get_child("lib"))
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

    # The folder itself is the one header label: a glob of its 9,400 files would be linked into every sandbox.
    ctx.file("BUILD", _BUILD.format(
        hdrs = repr(["include"]),
        defines = repr(defines),
        includes = repr(["include", "include/torch/csrc/api/include"]),
        linkopts = repr(linkopts + ["-ltorch_cpu", "-lc10"]),
    ))

libtorch_repository = repository_rule(
    implementation = _libtorch_repository_impl,
    environ = ["LIBTORCH", "CUDA_HOME"],
    configure = True,
    local = True,
)
