// The targets for libFuzzer, which brings main(): tools/fuzz.

#include <cstdio>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/fuzz/targets.h"

namespace {

const gradsync::FuzzTarget* target = nullptr;

}  // namespace

// libFuzzer leaves flags with two dashes alone.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    absl::string_view flag = (*argv)[i];
    if (absl::ConsumePrefix(&flag, "--target=")) {
      target = gradsync::FindFuzzTarget(std::string(flag));
    }
  }
  if (target != nullptr) return 0;
  std::fprintf(stderr, "expected --target=NAME, one of:");
  for (const auto& each : gradsync::FuzzTargets()) std::fprintf(stderr, " %s", each.name);
  std::fprintf(stderr, "\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  target->run(bytes, size);
  return 0;
}
