"""precompiled_header: a header that GCC has parsed before, for those who include it first."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    compiler = cc_common.get_tool_for_action(feature_configuration = features, action_name = ACTION_NAMES.cpp_compile)
    headers = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context

    # Side by side, in a folder of their own: GCC looks for the one where it finds the other.
    header = ctx.actions.declare_file("%s/%s" % (ctx.label.name, ctx.file.hdr.basename))
    ctx.actions.symlink(output = header, target_file = ctx.file.hdr)
    outputs = [header]

    # clang would take another file, and reads the header instead.
    if "clang" not in compiler.split("/")[-1]:
        parsed = ctx.actions.declare_file(header.basename + ".gch", sibling = header)
        outputs.append(parsed)
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            source_file = header.path,
            output_file = parsed.path,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ["-x", "c++-header"],
            include_directories = headers.includes,
            quote_include_directories = headers.quote_includes,
            system_include_directories = headers.system_includes,
            preprocessor_defines = headers.defines,
            use_pic = True,  # as with --force_pic; else GCC would not take it
        )
        ctx.actions.run(
            executable = compiler,
            arguments = cc_common.get_memory_inefficient_command_line(
                feature_configuration = features,
                action_name = ACTION_NAMES.cpp_compile,
                variables = variables,
            ),
            env = cc_common.get_environment_variables(
                feature_configuration = features,
                action_name = ACTION_NAMES.cpp_compile,
                variables = variables,
            ),
            inputs = depset([header], transitive = [headers.headers, toolchain.all_files]),
            outputs = [parsed],
            mnemonic = "CppPrecompile",
            progress_message = "Precompiling %s" % ctx.file.hdr.short_path,
        )
    own = cc_common.create_compilation_context(
        headers = depset(outputs + [ctx.file.hdr]),
        system_includes = depset([header.dirname]),
        quote_includes = depset([ctx.label.workspace_root or "."]),
    )
    return [
        DefaultInfo(files = depset(outputs)),
        cc_common.merge_cc_infos(cc_infos = [CcInfo(compilation_context = own), CcInfo(compilation_context = headers)]),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    doc = """`hdr`, and with GCC what GCC makes of it, with the flags of the command line, those of `deps` and no target's.

A unit that includes it before anything else, by copts = ["-include", "its_name.h"], need not parse it again. GCC takes the
header instead where its flags are others. Nothing is linked for it. Another of these headers may include it by its path.""",
    attrs = {
        "hdr": attr.label(allow_single_file = [".h"], mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def begin_with(name, kwargs):
    """Attributes `kwargs` of a C++ rule whose units include the header of //third_party:NAME, which is NAME.h, before anything else."""
    return dict(
        kwargs,
        copts = ["-include", name + ".h"] + kwargs.get("copts", []),
        deps = kwargs.get("deps", []) + ["//third_party:" + name],
    )
