"""Protocol Buffers and gRPC with the system's protoc."""

def cc_proto_libraries(messages, services, **kwargs):
    """cc_library targets `messages` and `services` from a package's .proto files.

    Args:
      messages: .proto files. They import others by their path from the root of the repository.
      services: .proto files that gRPC generates services from as well, and that import those of `messages`.
      **kwargs: visibility and the like.
    """

    # Where the sources are, and what is made from them: elsewhere in a program's own repository that uses this one.
    repository = native.repository_name()[1:]
    root = "external/" + repository if repository else "."
    out = "$(GENDIR)/" + root
    folder = "{}/{}/".format(root, native.package_name())
    message_bases = [src[:-len(".proto")] + ".pb" for src in messages]
    service_bases = [src[:-len(".proto")] + suffix for src in services for suffix in [".pb", ".grpc.pb"]]
    native.genrule(
        name = "generate",
        srcs = messages + services,
        outs = [base + extension for base in message_bases + service_bases for extension in [".h", ".cc"]],
        cmd = ("protoc -I{root} --cpp_out={out} {all} && " +
               "protoc -I{root} --grpc_out={out} --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) {services}").format(
            root = root,
            out = out,
            all = " ".join([folder + src for src in messages + services]),
            services = " ".join([folder + src for src in services]),
        ),
    )
    native.cc_library(
        name = "messages",
        srcs = [base + ".cc" for base in message_bases],
        hdrs = [base + ".h" for base in message_bases],
        deps = ["@protobuf"],
        **kwargs
    )
    native.cc_library(
        name = "services",
        srcs = [base + ".cc" for base in service_bases],
        hdrs = [base + ".h" for base in service_bases],
        deps = [
            ":messages",
            "@protobuf",
            "@grpc//:grpc++",
        ],
        alwayslink = True,  # servers that describe themselves look for it by name
        **kwargs
    )
