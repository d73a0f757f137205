// The life that all backends share, above an engine (core/sync/sync_engine.h) that is each one's
// own.
//
//   caller                  GroupSync sees to                            SyncEngine does
//   Bind                    once; the plan's world size                  Agree, CheckPlan, Connect
//                           all ranks are connected
//   Launch                  usable; the order of launches                Launch
//   BroadcastParameters     usable                                       Broadcast
//   Settle                  usable                                       Settle
//   ExportOptimizerState    usable; who has the state; steps done        Export
//   ImportOptimizerState    the state fits the plan; usable; who has it  ForgetResiduals, Import
//   ExportRankState         usable                                       ExportResiduals
//   ImportRankState         the state fits the plan; usable              ImportResiduals
//   Shutdown                once; all ranks have come                    Settle, Drain, Leave
//   Abort, a failure here   the group's first failure, and its cause     Halt, Stop, Fail
//   or of another rank      on every rank; sticky
//   destructor              the others learn why before streams end      Close
//
// "Usable" is between Bind() and Shutdown() while nothing has failed. All words that a caller reads
// of these are here and in sync_life.h, once.

#ifndef GRADSYNC_CORE_SYNC_GROUP_SYNC_H_
#define GRADSYNC_CORE_SYNC_GROUP_SYNC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/group/sync_handle.h"
#include "core/group/worker_group.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "core/sync/sync_engine.h"

namespace gradsync {

// Makes the engine, which may keep `host`. Must not block.
using EngineFactory = std::function<std::unique_ptr<SyncEngine>(EngineHost& host)>;

// The backend of `group`, which one worker may leave without a store. `name` begins messages and is
// the side channel's. Errors: INVALID_ARGUMENT for a rank outside its world, or without a store
// among several.
absl::StatusOr<std::unique_ptr<GradientSync>> NewGroupSync(const WorkerGroup& group,
                                                           absl::string_view name,
                                                           const EngineFactory& make_engine);

// The same for a single worker that has nobody to tell: without threads, and a failure is settled
// when Abort() returns. The engine must not report one.
std::unique_ptr<GradientSync> NewSoloSync(absl::string_view name, const EngineFactory& make_engine);

// Holds the callers of GradientSync::Launch to the order that all ranks share: buckets 0, 1, ...,
// each once per step, steps in increasing order, the options of a step the same for all its
// buckets, and no step before all handles of the one before are resolved. Every backend has one, so
// that a caller who breaks the order is told so by all of them. Not thread-safe.
class LaunchOrder {
 public:
  explicit LaunchOrder(int buckets) : buckets_(buckets) { handles_.reserve(buckets); }

  // Call once per launch, before anything else. Errors: FAILED_PRECONDITION, saying what was
  // expected and what came.
  absl::Status Check(const StepOptions& step, int bucket);

  // Call with the handle of each launch that Check() admitted; returns it.
  SyncHandle Launched(SyncHandle handle);

 private:
  absl::Status CheckResolved(const StepOptions& next) const;

  int buckets_;
  int next_bucket_ = 0;  // of step_; buckets_ when the step is complete
  StepOptions step_;
  bool started_ = false;
  std::vector<SyncHandle> handles_;  // of step_, by bucket
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_GROUP_SYNC_H_
