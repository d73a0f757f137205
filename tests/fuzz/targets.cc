#include "tests/fuzz/targets.h"

namespace gradsync {

const std::vector<FuzzTarget>& FuzzTargets() {
  static const auto* const targets = [] {
    auto* const all = new std::vector<FuzzTarget>(ParserTargets());
    for (const FuzzTarget& machine : MachineTargets()) all->push_back(machine);
    return all;
  }();
  return *targets;
}

const FuzzTarget* FindFuzzTarget(const std::string& name) {
  for (const FuzzTarget& target : FuzzTargets()) {
    if (name == target.name) return &target;
  }
  return nullptr;
}

}  // namespace gradsync
