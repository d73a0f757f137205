"""shared_library: all objects of some targets, and of what these depend on, in one shared library."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _shared_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    inputs = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).linking_context.linker_inputs.to_list()
    archives = []
    flags = []
    for given in inputs:
        for library in given.libraries:
            archive = library.pic_static_library or library.static_library
            if archive and archive not in archives:
                archives.append(archive)
        flags += list(given.user_link_flags)
    output = ctx.actions.declare_file(ctx.label.name)
    arguments = ctx.actions.args()
    arguments.add_all(["-shared", "-o", output, "-Wl,-soname," + ctx.label.name])
    arguments.add(ctx.file.version_script, format = "-Wl,--version-script=%s")
    arguments.add("-Wl,--whole-archive")
    arguments.add_all(archives)
    arguments.add("-Wl,--no-whole-archive")
    arguments.add("-Wl,--as-needed")
    arguments.add_all(flags)
    arguments.add_all(ctx.fragments.cpp.linkopts)
    arguments.add_all(["-lstdc++", "-lm"])
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_link_dynamic_library,
        ),
        arguments = [arguments],
        env = {"PATH": "/usr/bin:/bin"},
        inputs = depset(archives + [ctx.file.version_script], transitive = [toolchain.all_files]),
        outputs = [output],
        mnemonic = "CppLinkWhole",
        progress_message = "Linking %s" % ctx.label.name,
    )
    return [DefaultInfo(files = depset([output]), runfiles = ctx.runfiles(files = [output]))]

shared_library = rule(
    implementation = _shared_library_impl,
    doc = """The shared library whose file name and SONAME the target's name is.

cc_binary(linkshared) would leave out what its own sources do not use. System libraries are linked dynamically, those alone that
are used.""",
    attrs = {
        "deps": attr.label_list(mandatory = True, providers = [CcInfo]),
        "version_script": attr.label(allow_single_file = True, mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
