"""Protocol Buffers and gRPC with the system's protoc."""

def cc_proto_library(name, src, deps = [], grpc = False, **kwargs):
    """A cc_library from one .proto file.

    Args:
      name: of the library, usually the file's name with _proto.
      src: the .proto file. It imports others by their path from the root of the repository.
      deps: cc_proto_library targets that it imports.
      grpc: whether to generate services as well.
      **kwargs: visibility and the like.
    """
    base = src[:-len(".proto")]

    # Where the sources are, and what is made from them: elsewhere in a program's own repository that uses this one.
    repository = native.repository_name()[1:]
    root = "external/" + repository if repository else "."
    out = "$(GENDIR)/" + root
    outs = [base + ".pb.h", base + ".pb.cc"]
    flags = "--cpp_out=" + out
    if grpc:
        outs += [base + ".grpc.pb.h", base + ".grpc.pb.cc"]
        flags += " --grpc_out=" + out + " --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin)"
    native.filegroup(
        name = name + "_sources",
        srcs = [src] + [dep + "_sources" for dep in deps],
        visibility = kwargs.get("visibility"),
    )
    native.genrule(
        name = name + "_generate",
        srcs = [name + "_sources"],
        outs = outs,
        cmd = "protoc -I{root} {flags} {root}/{package}/{src}".format(
            root = root,
            flags = flags,
            package = native.package_name(),
            src = src,
        ),
    )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        deps = deps + ["@protobuf"] + (["@grpc//:grpc++"] if grpc else []),
        **kwargs
    )
