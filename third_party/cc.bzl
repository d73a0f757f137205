"""cc_library, cc_test and cc_binary whose units begin with headers that are parsed already (precompiled_header.bzl).

Parsing other people's headers is most of what GCC does for most units, and it is the same headers for nearly all:

    cc_library, cc_test, cc_binary              the standard library's and Abseil's common ones; a test those of GoogleTest too
    tensor_library, tensor_test, tensor_binary  ATen/core/Tensor.h and gRPC's as well, for units that include the former
    torch_library, torch_test, torch_binary     torch/nn/module.h, for units that include that
    bare_library, bare_binary                   nothing: for units of other instructions than the rest of the program, which may have no
                                                inline functions of others in them, and for programs in C

Units still include all that they use. What a unit includes by another header counts.
"""

load("//third_party:precompiled_header.bzl", "begin_with")

def cc_library(**kwargs):
    native.cc_library(**begin_with("common_headers", kwargs))

def cc_test(**kwargs):
    native.cc_test(**begin_with("gtest_headers", kwargs))

def cc_binary(**kwargs):
    native.cc_binary(**begin_with("common_headers", kwargs))

def tensor_library(**kwargs):
    native.cc_library(**begin_with("tensor_headers", kwargs))

def tensor_test(**kwargs):
    native.cc_test(**begin_with("tensor_gtest_headers", kwargs))

def tensor_binary(**kwargs):
    native.cc_binary(**begin_with("tensor_headers", kwargs))

def bare_library(**kwargs):
    native.cc_library(**kwargs)

def bare_binary(**kwargs):
    native.cc_binary(**kwargs)

def torch_library(**kwargs):
    native.cc_library(**begin_with("torch_headers", kwargs))

def torch_test(**kwargs):
    native.cc_test(**begin_with("torch_headers", kwargs))

def torch_binary(**kwargs):
    native.cc_binary(**begin_with("torch_headers", kwargs))
