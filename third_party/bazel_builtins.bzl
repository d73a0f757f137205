"""Local stand-ins for the three repositories that Bazel 4 itself would download."""

_CC = """
cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
"""

_JAVA = """
java_binary = native.java_binary
java_import = native.java_import
java_library = native.java_library
java_runtime = native.java_runtime
java_test = native.java_test
java_toolchain = native.java_toolchain
"""

_COVERAGE = """
filegroup(
    name = "coverage_report_generator",
    visibility = ["//visibility:public"],
)
"""

def _files_repository_impl(ctx):
    ctx.file("WORKSPACE", "")
    for path, content in ctx.attr.files.items():
        ctx.file(path, content)

_files_repository = repository_rule(
    implementation = _files_repository_impl,
    attrs = {"files": attr.string_dict()},
)

def bazel_builtin_repositories():
    """Declares rules_cc, rules_java and remote_coverage_tools over Bazel's native rules."""
    _files_repository(name = "rules_cc", files = {"cc/BUILD": "", "cc/defs.bzl": _CC, "BUILD": ""})
    _files_repository(name = "rules_java", files = {"java/BUILD": "", "java/defs.bzl": _JAVA, "BUILD": ""})
    _files_repository(name = "remote_coverage_tools", files = {"BUILD": _COVERAGE})
