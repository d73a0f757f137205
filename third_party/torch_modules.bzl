"""torch_library, torch_test, torch_binary: cc_library and so on, of units that include torch/nn/module.h.

Parsing it is two thirds of the time that GCC needs for most of them, so they share one that is parsed (precompiled_header.bzl).
They still include what they use.
"""

def _with_modules(kwargs):
    kwargs["deps"] = kwargs.get("deps", []) + ["//third_party:torch_modules"]
    kwargs["copts"] = ["-include", "torch_modules.h"] + kwargs.get("copts", [])
    return kwargs

def torch_library(**kwargs):
    native.cc_library(**_with_modules(kwargs))

def torch_test(**kwargs):
    native.cc_test(**_with_modules(kwargs))

def torch_binary(**kwargs):
    native.cc_binary(**_with_modules(kwargs))
