// All orders in which the actions of a small system can happen, by depth-first search.

#ifndef GRADSYNC_TESTS_EXPLORE_H_
#define GRADSYNC_TESTS_EXPLORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradsync {

// A system whose objects cannot be copied, so that a state is reached by doing again what led to
// it. Deterministic: the same actions lead to the same state.
class SmallSystem {
 public:
  virtual ~SmallSystem() = default;

  // What may happen next, in an order that depends on the state alone; each is named. Nothing when
  // the system is at its end.
  virtual std::vector<std::string> Actions() const = 0;
  virtual void Act(const std::string& action) = 0;

  // Equal where everything that can still happen is equal.
  virtual std::string State() const = 0;

  // What is wrong, or nothing; asked after each action, and at the end with `ended`.
  virtual std::string Wrong(bool ended) const = 0;
};

struct Exploration {
  int64_t states = 0;
  int64_t ends = 0;   // states without actions
  std::string wrong;  // the first thing that was, with the actions that led to it
};

// Visits every state that can be reached, each once; or gives up, which is wrong, after
// `most_states`.
inline Exploration Explore(const std::function<std::unique_ptr<SmallSystem>()>& make,
                           int64_t most_states = 2000000) {
  Exploration found;
  std::unordered_set<std::string> seen;
  std::vector<std::vector<std::string>> to_visit = {{}};
  while (!to_visit.empty() && found.wrong.empty()) {
    const std::vector<std::string> path = std::move(to_visit.back());
    to_visit.pop_back();
    const std::unique_ptr<SmallSystem> system = make();
    for (const std::string& action : path) system->Act(action);
    if (!seen.insert(system->State()).second) continue;
    if (++found.states > most_states) found.wrong = "too many states";
    const std::vector<std::string> actions = system->Actions();
    if (actions.empty()) ++found.ends;
    const std::string wrong = system->Wrong(actions.empty());
    if (!wrong.empty()) found.wrong = absl::StrCat(wrong, " after ", absl::StrJoin(path, ", "));
    for (const std::string& action : actions) {
      std::vector<std::string> next = path;
      next.push_back(action);
      to_visit.push_back(std::move(next));
    }
  }
  return found;
}

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_EXPLORE_H_
