"""Everything that gradsync builds with, for its own WORKSPACE and for those of programs that use it.

All of it comes from the system, nothing is downloaded; tools/setup installs what is needed. One file per dependency.
"""

load(":bazel_builtins.bzl", "bazel_builtin_repositories")
load(":cuda.bzl", "cuda_repository")
load(":libtorch.bzl", "libtorch_repository")
load(":pkg_config.bzl", "pkg_config_repository")

def gradsync_repositories():
    """Declares the repositories @absl, @grpc, @protobuf, @gtest, @openssl, @re2, @jpeg, @png, @yaml, @prometheus, @libtorch and
    @cuda."""
    bazel_builtin_repositories()

    pkg_config_repository(
        name = "grpc",
        modules = {"grpc++": "grpc++"},
    )

    pkg_config_repository(
        name = "protobuf",
        modules = {"protobuf": "protobuf"},
    )

    pkg_config_repository(
        name = "gtest",
        modules = {
            "gmock": "gmock",
            "gmock_main": "gmock_main",
            "gtest": "gtest",
            "gtest_main": "gtest_main",
        },
    )

    pkg_config_repository(
        name = "openssl",
        modules = {
            "crypto": "libcrypto",
            "ssl": "libssl",
        },
    )

    pkg_config_repository(
        name = "re2",
        modules = {"re2": "re2"},
    )

    pkg_config_repository(
        name = "jpeg",
        modules = {"jpeg": "libjpeg"},
    )

    pkg_config_repository(
        name = "png",
        modules = {"png": "libpng16"},
    )

    pkg_config_repository(
        name = "yaml",
        modules = {"yaml": "yaml-cpp"},
    )

    pkg_config_repository(
        name = "prometheus",
        modules = {"core": "prometheus-cpp-core"},
    )

    # @absl//:status is Abseil's absl_status, and so on.
    pkg_config_repository(
        name = "absl",
        modules = {
            name: "absl_" + name
            for name in [
                "algorithm_container",
                "any_invocable",
                "base",
                "btree",
                "bind_front",
                "cleanup",
                "core_headers",
                "cord",
                "fixed_array",
                "flags",
                "flags_commandlineflag",
                "flags_config",
                "flags_marshalling",
                "flags_parse",
                "flags_reflection",
                "flags_usage",
                "flat_hash_map",
                "flat_hash_set",
                "function_ref",
                "hash",
                "inlined_vector",
                "memory",
                "node_hash_map",
                "optional",
                "random_random",
                "span",
                "status",
                "statusor",
                "str_format",
                "strings",
                "synchronization",
                "time",
                "variant",
            ]
        },
    )

    libtorch_repository(name = "libtorch")

    cuda_repository(name = "cuda")
