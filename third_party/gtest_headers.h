// What nearly all tests include (cc.bzl). Not for use by name.

#ifndef GRADSYNC_THIRD_PARTY_GTEST_HEADERS_H_
#define GRADSYNC_THIRD_PARTY_GTEST_HEADERS_H_

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "third_party/common_headers.h"

#endif  // GRADSYNC_THIRD_PARTY_GTEST_HEADERS_H_
