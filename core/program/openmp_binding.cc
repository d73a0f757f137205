#include "core/program/openmp_binding.h"

#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace gradsync {
namespace {

constexpr int kMostDropped = 8;
const char* dropped[kMostDropped];
int dropped_count = 0;

// Called before any library's initialisers, the C library's and a sanitizer's included: it uses none
// of their functions, and no instrumentation.
__attribute__((no_sanitize("address", "thread", "undefined"))) bool IsBinding(const char* entry) {
  static const char* const kVariables[] = {
      "OMP_PROC_BIND=", "OMP_PLACES=", "GOMP_CPU_AFFINITY=", "KMP_AFFINITY="};
  for (const char* variable : kVariables) {
    const char* at = entry;
    while (*variable != '\0' && *variable == *at) ++variable, ++at;
    if (*variable == '\0') return true;
  }
  return false;
}

__attribute__((no_sanitize("address", "thread", "undefined"))) void DropBinding(
    int /*argc*/, char** /*argv*/, char** environment) {
  char** kept = environment;
  for (char** entry = environment; *entry != nullptr; ++entry) {
    if (dropped_count < kMostDropped && IsBinding(*entry)) {
      dropped[dropped_count++] = *entry;
    } else {
      *kept++ = *entry;
    }
  }
  *kept = nullptr;
}

// The loader calls the functions of this section first of all.
__attribute__((section(".preinit_array"), used)) void (*const drop_binding)(int, char**,
                                                                            char**) = DropBinding;

}  // namespace

std::string DroppedOpenMpBinding() {
  return absl::StrJoin(absl::MakeConstSpan(dropped, dropped_count), ", ");
}

}  // namespace gradsync
