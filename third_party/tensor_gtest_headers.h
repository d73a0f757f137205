// What tests with tensors include (cc.bzl). Not for use by name.

#ifndef GRADSYNC_THIRD_PARTY_TENSOR_GTEST_HEADERS_H_
#define GRADSYNC_THIRD_PARTY_TENSOR_GTEST_HEADERS_H_

#include "third_party/gtest_headers.h"
#include "third_party/tensor_headers.h"

#endif  // GRADSYNC_THIRD_PARTY_TENSOR_GTEST_HEADERS_H_
