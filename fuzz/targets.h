// What is fed with any bytes: every parser of what comes from a file, a peer or a command line, and
// the state machines that peers drive.

#ifndef GRADSYNC_FUZZ_TARGETS_H_
#define GRADSYNC_FUZZ_TARGETS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

// Parts of the list: fuzz/parsers.cc, fuzz/machines.cc.
std::vector<FuzzTarget> ParserTargets();
std::vector<FuzzTarget> MachineTargets();

}  // namespace gradsync

#endif  // GRADSYNC_FUZZ_TARGETS_H_
