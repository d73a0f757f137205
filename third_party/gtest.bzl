"""cc_test for units that include GoogleTest.

A third of the time that GCC needs for most of them is spent on parsing it and what comes with it, so they share what is parsed
(precompiled_header.bzl). They still include what they use.
"""

def cc_test(deps = [], copts = [], **kwargs):
    if "@gtest" in str(deps):  # a list, or a select()
        deps = deps + ["//third_party:gtest_headers"]
        copts = ["-include", "gtest_headers.h"] + copts
    native.cc_test(deps = deps, copts = copts, **kwargs)
