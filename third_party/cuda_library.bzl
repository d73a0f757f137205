"""cuda_library: a cc_library whose sources nvcc compiles."""

load("@cuda//:nvcc.bzl", "NVCC")

# The same operations on an element as a CPU does them, so that both give the same bits: no contraction to fused
# multiply-add, denormals kept, division and square root as IEEE 754 has them.
_SAME_BITS = [
    "-fmad=false",
    "-ftz=false",
    "-prec-div=true",
    "-prec-sqrt=true",
]

# Machine code for A100 and H100/H200, and PTX that a driver compiles for what comes after.
_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
]

def _compile(ctx, source, suffix, output_flags):
    """Runs nvcc on one source; returns the output, which has the source's name and `suffix`."""
    if not NVCC:
        fail("{}: only with --config=cuda".format(ctx.label))
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    headers = depset(transitive = [context.headers for context in contexts])
    output = ctx.actions.declare_file(source.basename + suffix)
    arguments = ctx.actions.args()
    arguments.add_all(output_flags + ["-x", "cu", "-std=c++17", "-O3", "--extended-lambda", "-ccbin", "/usr/bin/g++", "-I."])
    arguments.add_all(["-Xcompiler", "-fPIC,-Wall,-Wextra,-ffp-contract=off"])
    arguments.add_all(_SAME_BITS)
    arguments.add(source)
    arguments.add("-o", output)
    ctx.actions.run(
        executable = NVCC,
        arguments = [arguments],
        env = {"PATH": "/usr/bin:/bin"},
        inputs = depset([source], transitive = [headers]),
        outputs = [output],
        mnemonic = "CudaCompile",
        progress_message = "Compiling {} with nvcc".format(source.short_path),
    )
    return output

_ATTRIBUTES = {
    "deps": attr.label_list(providers = [CcInfo]),
    "srcs": attr.label_list(allow_files = [".cu"]),
}

def _cuda_object_impl(ctx):
    return [DefaultInfo(files = depset(
        [_compile(ctx, source, ".o", ["-c"] + _ARCHITECTURES) for source in ctx.files.srcs],
    ))]

_cuda_object = rule(
    implementation = _cuda_object_impl,
    attrs = _ATTRIBUTES,
)

def _cuda_ptx_impl(ctx):
    files = [_compile(ctx, source, ".ptx", ["-ptx", "-arch=compute_90"]) for source in ctx.files.srcs]
    return [DefaultInfo(files = depset(files), runfiles = ctx.runfiles(files = files))]

_cuda_ptx = rule(
    implementation = _cuda_ptx_impl,
    attrs = _ATTRIBUTES,
)

def cuda_library(name, srcs, hdrs = [], deps = [], ptx = False, **kwargs):
    """Defines cc_library `name` of CUDA sources; without --config=cuda it has no objects.

    Sources and headers see `deps` and the workspace's root as include folder, and no LibTorch: nvcc takes minutes for
    its headers. Kernels are compiled without contraction and with IEEE division and square root. `name`_headers are
    `hdrs` alone, for all who may see the package. With `ptx`, `name`_ptx is what nvcc makes of the kernels before it chooses
    instructions of a GPU, for tests: NAME.cu.ptx for each source.
    """
    native.cc_library(
        name = name + "_headers",
        hdrs = hdrs,
        deps = deps,
    )
    _cuda_object(
        name = name + "_objects",
        srcs = srcs,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = [":" + name + "_headers"],
    )
    if ptx:
        _cuda_ptx(
            name = name + "_ptx",
            testonly = True,
            srcs = srcs,
            tags = ["manual"],
            visibility = ["//visibility:private"],
            deps = [":" + name + "_headers"],
        )
    native.cc_library(
        name = name,
        srcs = select({
            "//third_party:cuda": [":" + name + "_objects"],
            "//conditions:default": [],
        }),
        linkstatic = True,
        deps = deps + [
            ":" + name + "_headers",
            "@cuda//:runtime",
        ],
        **kwargs
    )
