// What nearly all tests include (gtest.bzl). Not for use by name.

#ifndef GRADSYNC_THIRD_PARTY_GTEST_HEADERS_H_
#define GRADSYNC_THIRD_PARTY_GTEST_HEADERS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#endif  // GRADSYNC_THIRD_PARTY_GTEST_HEADERS_H_
