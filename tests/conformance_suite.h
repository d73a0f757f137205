// One suite for every GradientSync. A backend joins with a fixture that creates it and one line:
//
//   INSTANTIATE_TEST_SUITE_P(Ring, ConformanceTest,
//   testing::ValuesIn(ConformanceCases(MyTraits())), CaseName);
//
// Ranks are threads, or, where a backend needs that, processes which all run the suite at the same
// time. Expected values come from tests/reference.h.

#ifndef GRADSYNC_TESTS_CONFORMANCE_SUITE_H_
#define GRADSYNC_TESTS_CONFORMANCE_SUITE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"
#include "core/sync/gradient_sync.h"
#include "gtest/gtest.h"

namespace gradsync {

// What the ranks of one group share: for parameter servers, the servers. Destroyed after all ranks
// are.
class BackendFixture {
 public:
  virtual ~BackendFixture() = default;

  // Creates the backend of `group.rank`. Called on the rank's thread; must be thread-safe.
  virtual absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) = 0;
};

// The rank that this process is, where ranks are processes. All of them run the same tests in the
// same order.
struct RankProcess {
  int rank = 0;
  std::shared_ptr<KeyValueStore> store;  // where they meet, of nothing else
};

struct BackendTraits {
  std::string name;  // in the names of its cases, where one suite has cases of several backends
  // A fresh fixture for a group of `world_size` ranks.
  std::function<std::unique_ptr<BackendFixture>(int world_size, UpdateSite site)> make_fixture;
  bool update_at_owner = true;  // offers UpdateSite::kOwner
  bool plan_order_beyond_two =
      true;  // folds in the plan's order, so that bits are known for n > 2 as well
  std::vector<int> world_sizes = {1, 2, 3, 4, 5, 8};
  // Asked before each test where set: NOT_FOUND (no GPU, say) or FAILED_PRECONDITION (not in this
  // build) skips it with that message; any other error fails it.
  std::function<absl::Status()> available;
  std::shared_ptr<const RankProcess> process;  // null: ranks are threads
};

struct ConformanceCase {
  BackendTraits traits;
  int world_size;
  UpdateSite site;
};

// Every world size and update site that the backend offers.
std::vector<ConformanceCase> ConformanceCases(const BackendTraits& traits);

// E.g. "FourWorkersUpdateAtOwner" as "4UpdateAtOwner".
std::string CaseName(const testing::TestParamInfo<ConformanceCase>& info);

class ConformanceTest : public testing::TestWithParam<ConformanceCase> {
 protected:
  void SetUp() override;
};

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_CONFORMANCE_SUITE_H_
