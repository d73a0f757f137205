// What most units include of the standard library and of Abseil (cc.bzl). Not for use by name.

#ifndef GRADSYNC_THIRD_PARTY_COMMON_HEADERS_H_
#define GRADSYNC_THIRD_PARTY_COMMON_HEADERS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

#endif  // GRADSYNC_THIRD_PARTY_COMMON_HEADERS_H_
