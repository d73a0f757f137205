"""torch_library, torch_test, torch_binary: cc_library and so on, of units that include torch/nn/module.h.

Parsing it is two thirds of the time that GCC needs for most of them, so they share one that is parsed (precompiled_header.bzl).
They still include what they use.
"""

load("//third_party:precompiled_header.bzl", "begin_with")

def torch_library(**kwargs):
    native.cc_library(**begin_with("torch_modules", kwargs))

def torch_test(**kwargs):
    native.cc_test(**begin_with("torch_modules", kwargs))

def torch_binary(**kwargs):
    native.cc_binary(**begin_with("torch_modules", kwargs))
