"""System libraries, found by pkg-config, as cc_library targets."""

_LIBRARY = """
cc_library(
    name = {name},
    copts = {copts},
    defines = {defines},
    linkopts = {linkopts},
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
