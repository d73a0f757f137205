// What is fed with any bytes: every parser of what comes from a file, a peer or a command line, and
// the state machines that peers drive; and how they read these bytes.

#ifndef GRADSYNC_TESTS_FUZZ_TARGETS_H_
#define GRADSYNC_TESTS_FUZZ_TARGETS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradsync {

struct FuzzTarget {
  const char* name;
  // Takes any bytes. Whatever it makes of them, it must not crash, hang, or touch memory that is
  // not its own; it aborts where what it promises does not hold.
  void (*run)(const uint8_t* bytes, size_t size);
  // Inputs to begin with: what is valid, mostly.
  std::vector<std::string> (*seeds)();
};

const std::vector<FuzzTarget>& FuzzTargets();

// Null for a name that none has.
const FuzzTarget* FindFuzzTarget(const std::string& name);

// Parts of the list: tests/fuzz/parsers.cc, tests/fuzz/machines.cc.
std::vector<FuzzTarget> ParserTargets();
std::vector<FuzzTarget> MachineTargets();

// Reads choices from a fuzzer's bytes, from the front; zeros when there are none left. Unlike
// FuzzedDataProvider it is there with every compiler, and what it reads can be written by hand.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* bytes, size_t size)
      : rest_(reinterpret_cast<const char*>(bytes), size) {}

  bool empty() const { return rest_.empty(); }

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return byte;
  }

  // Below `n`, which is from 1 to 256.
  int Below(int n) { return Byte() % n; }

  // Little-endian, of `bytes` bytes.
  uint64_t Integer(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= uint64_t{Byte()} << (8 * i);
    return value;
  }

  // Its length is one byte.
  std::string Text() {
    const size_t asked = Byte();
    const size_t size = std::min(asked, rest_.size());
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }

  std::string Rest() {
    std::string text(rest_);
    rest_ = {};
    return text;
  }

 private:
  absl::string_view rest_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_FUZZ_TARGETS_H_
