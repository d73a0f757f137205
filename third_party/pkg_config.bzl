"""System libraries, found by pkg-config, as cc_library targets."""

_LIBRARY = """
cc_library(
    name = {name},
    copts = {copts},
    defines = {defines},
    linkopts = select({{
        "@gradsync//third_party:static_grpc": {static_linkopts},
        "//conditions:default": {linkopts},
    }}),
    visibility = ["//visibility:public"],
)
"""

def _pkg_config(ctx, arguments, module):
    result = ctx.execute(["pkg-config"] + arguments + [module])
    if result.return_code != 0:
        fail("@{}: pkg-config does not know {}; run tools/setup. It said: {}".format(
            ctx.name,
            module,
            result.stderr.strip(),
        ))
    return [word for word in result.stdout.replace("\n", " ").split(" ") if word]

# Parts of glibc, whose archives are not for programs that load shared libraries.
_LIBC = ["-ldl", "-lm", "-lpthread", "-lrt"]

def _static_linkopts(ctx, module):
    """Archives instead of shared libraries, wherever the system has them.

    Their symbols stay inside the program: LibTorch has a Protocol Buffers of its own, which must not find ours.
    """
    folder = "/usr/lib/" + ctx.execute(["g++", "-print-multiarch"]).stdout.strip()
    archives = []
    others = []
    for word in _pkg_config(ctx, ["--libs", "--static"], module):
        archive = "lib" + word[2:] + ".a"
        if word.startswith("-l") and word not in _LIBC and ctx.path(folder + "/" + archive).exists:
            if archive not in archives:
                archives.append(archive)
        elif word.startswith("-l") or word == "-pthread":
            if word not in others:
                others.append(word)
    if not archives:
        return others
    return ["-Wl,--start-group"] + ["-l:" + archive for archive in archives] + [
        "-Wl,--end-group",
        "-Wl,--exclude-libs," + ":".join(archives),
        "-Wl,--push-state,--as-needed",
    ] + others + ["-Wl,--pop-state"]

def _pkg_config_repository_impl(ctx):
    targets = []
    for name, module in ctx.attr.modules.items():
        defines = []
        for word in _pkg_config(ctx, ["--cflags"], module):
            # -I of system folders is implied; NOMINMAX is for Windows.
            if word.startswith("-D") and word != "-DNOMINMAX":
                defines.append(word[2:])
        linkopts = _pkg_config(ctx, ["--libs"], module)
        targets.append(_LIBRARY.format(
            name = repr(name),
            copts = repr([]),
            defines = repr(defines),
            linkopts = repr(linkopts),
            static_linkopts = repr(_static_linkopts(ctx, module)),
        ))
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", "\n".join(targets))

pkg_config_repository = repository_rule(
    implementation = _pkg_config_repository_impl,
    attrs = {
        "modules": attr.string_dict(doc = "Target name to pkg-config module."),
    },
    configure = True,
    local = True,
    doc = "One target per module; headers are the system's, so they need no label.",
)
