"""Protocol Buffers and gRPC with the system's protoc."""

def cc_proto_library(name, srcs, deps = [], grpc = False, **kwargs):
    """A cc_library from .proto files.

    Args:
      name: of the library.
      srcs: the .proto files. They import others by their path from the root of the repository.
      deps: cc_proto_library targets that they import.
      grpc: whether to generate services as well.
      **kwargs: visibility and the like.
    """

    # Where the sources are, and what is made from them: elsewhere in a program's own repository that uses this one.
    repository = native.repository_name()[1:]
    root = "external/" + repository if repository else "."
    out = "$(GENDIR)/" + root
    suffixes = [".pb"] + ([".grpc.pb"] if grpc else [])
    bases = [src[:-len(".proto")] + suffix for src in srcs for suffix in suffixes]
    flags = "--cpp_out=" + out
    if grpc:
        flags += " --grpc_out=" + out + " --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin)"
    native.filegroup(
        name = name + "_sources",
        srcs = srcs + [dep + "_sources" for dep in deps],
        visibility = kwargs.get("visibility"),
    )
    native.genrule(
        name = name + "_generate",
        srcs = [name + "_sources"],
        outs = [base + extension for base in bases for extension in [".h", ".cc"]],
        cmd = "protoc -I{root} {flags} {srcs}".format(
            root = root,
            flags = flags,
            srcs = " ".join(["{}/{}/{}".format(root, native.package_name(), src) for src in srcs]),
        ),
    )
    native.cc_library(
        name = name,
        srcs = [base + ".cc" for base in bases],
        hdrs = [base + ".h" for base in bases],
        deps = deps + ["@protobuf"] + (["@grpc//:grpc++"] if grpc else []),
        **kwargs
    )
