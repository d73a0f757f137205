"""python_wheel: a folder with one wheel, whose name says for which systems it is, which only what is compiled in it knows."""

def _python_wheel_impl(ctx):
    folder = ctx.actions.declare_directory(ctx.label.name)
    arguments = ctx.actions.args()
    arguments.add(folder.path)
    arguments.add(ctx.file.library, format = "--library=%s")
    arguments.add(ctx.executable.server, format = "--program=%s")
    arguments.add(ctx.file.readme, format = "--readme=%s")
    arguments.add(ctx.file.license, format = "--license=%s")
    arguments.add_all(ctx.files.srcs)
    ctx.actions.run(
        executable = ctx.file._make,
        arguments = [arguments],
        inputs = ctx.files.srcs + [ctx.file.library, ctx.executable.server, ctx.file.readme, ctx.file.license],
        outputs = [folder],
        mnemonic = "PythonWheel",
        progress_message = "Making the wheel " + str(ctx.label),
        use_default_shell_env = True,
    )
    return [DefaultInfo(
        files = depset([folder]),
        runfiles = ctx.runfiles(files = [folder]),
    )]

python_wheel = rule(
    implementation = _python_wheel_impl,
    attrs = {
        "library": attr.label(allow_single_file = [".so"], mandatory = True),
        "license": attr.label(allow_single_file = True, mandatory = True),
        "readme": attr.label(allow_single_file = True, mandatory = True),
        "server": attr.label(
            cfg = "target",
            executable = True,
            mandatory = True,
        ),
        "srcs": attr.label_list(allow_files = True),
        "_make": attr.label(
            allow_single_file = True,
            default = "//python:make_wheel.py",
        ),
    },
)
