"""cc_test for units that include GoogleTest.

A third of the time that GCC needs for most of them is spent on parsing it and what comes with it, so they share what is parsed
(precompiled_header.bzl). They still include what they use.
"""

load("//third_party:precompiled_header.bzl", "begin_with")

def cc_test(**kwargs):
    native.cc_test(**begin_with("gtest_headers", kwargs))
