"""source_files: what Bazel compiles for some targets, for builds other than Bazel's."""

_Sources = provider(fields = {
    "compiled": "depset of structs: a source file, and the compiler's options of its target",
    "headers": "depset of files that these include",
})

def _is_own(file):
    return file.owner.workspace_root == "" and file.extension not in ["a", "o", "so"]

def _sources_aspect_impl(_target, ctx):
    # third_party/cc.bzl has units begin with a header, which changes nothing in them.
    options = [option for option in getattr(ctx.rule.attr, "copts", []) if option.startswith("-") and option != "-include"]
    compiled = []
    headers = []
    linkstamp = getattr(ctx.rule.attr, "linkstamp", None)
    for target in getattr(ctx.rule.attr, "srcs", []) + ([linkstamp] if linkstamp else []):
        for file in target.files.to_list():
            if _is_own(file) and file.extension == "h":
                headers.append(file)
            elif _is_own(file):
                compiled.append(struct(file = file, options = tuple(options)))
    for target in getattr(ctx.rule.attr, "hdrs", []) + getattr(ctx.rule.attr, "textual_hdrs", []):
        headers += [file for file in target.files.to_list() if _is_own(file)]
    below = [dep[_Sources] for dep in getattr(ctx.rule.attr, "deps", []) if _Sources in dep]
    return [_Sources(
        compiled = depset(compiled, transitive = [sources.compiled for sources in below]),
        headers = depset(headers, transitive = [sources.headers for sources in below]),
    )]

_sources_aspect = aspect(
    implementation = _sources_aspect_impl,
    attr_aspects = ["deps"],
)

def _source_files_impl(ctx):
    lines = []
    files = []
    for part in ["library", "ddp", "server"]:
        for target in getattr(ctx.attr, part):
            for source in target[_Sources].compiled.to_list():
                lines.append(" ".join([part, source.file.short_path] + list(source.options)))
                files.append(source.file)
            files += target[_Sources].headers.to_list()
    listed = ctx.actions.declare_file(ctx.label.name + ".txt")
    ctx.actions.write(listed, "".join([line + "\n" for line in sorted(lines)]))
    return [DefaultInfo(files = depset([listed] + [file for file in files if file.is_source]))]

source_files = rule(
    implementation = _source_files_impl,
    doc = """NAME.txt, and the sources and headers themselves.

NAME.txt has a line for each file that is compiled: "library", "ddp" or "server", the attribute by which it is reached; its path;
and the compiler's options that its target adds. A file has a line for each attribute. Generated files have lines, too.""",
    attrs = {
        "ddp": attr.label_list(aspects = [_sources_aspect]),
        "library": attr.label_list(aspects = [_sources_aspect]),
        "server": attr.label_list(aspects = [_sources_aspect]),
    },
)
