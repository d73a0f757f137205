// Which ranks have run out of inputs, where ranks have different numbers of batches.

#ifndef GRADSYNC_GRADSYNC_DDP_JOINED_RANKS_H_
#define GRADSYNC_GRADSYNC_DDP_JOINED_RANKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/group/worker_group.h"

namespace gradsync {

// A rank that runs out of inputs has joined, as PyTorch's Join calls it: from then on it does steps of
// zeros beside the others' steps, until no rank has inputs. Ranks that have inputs say nothing, and wait
// for nobody but in their steps.
//
// A rank publishes its last step with inputs in the store before it launches its first step of zeros.
// When a step is done on one rank, all ranks have launched it; so a rank that has published nothing, or
// a later step, did that step with inputs. The first step that no rank did with inputs follows the last
// one of the rank that had the most, and every rank finds out when it has done that step: all ranks stop
// after the same one.
//
// A joined rank looks into the store once per step, and once more per rank in all.
//
// Not thread-safe. Errors: those of KeyValueStore; DATA_LOSS for something else in the store.
class JoinedRanks {
 public:
  // `name`: of this use, no other of the group's. All ranks have the same.
  JoinedRanks(const WorkerGroup& group, absl::string_view name) : group_(group), name_(name) {}

  // Once, first. `last_step`: number of the last step that this rank did with inputs. `follows`: its
  // optimizer goes on doing the steps of the others.
  absl::Status Publish(int64_t last_step, bool follows, Deadline deadline);

  // After step `step`, one of zeros, is done here: whether no rank did it with inputs. False is said of
  // each step but the last one.
  absl::StatusOr<bool> NobodyDid(int64_t step, Deadline deadline);

  // When NobodyDid() has been true: the first of the ranks that had the most inputs, and whether all
  // others follow.
  int RankWithMost() const;
  bool AllFollow() const;

 private:
  struct Joined {
    int64_t last_step = 0;
    bool follows = false;
  };

  std::string Key(int rank) const;

  const WorkerGroup group_;
  const std::string name_;
  std::vector<Joined> joined_;  // of the first ranks, as far as they are known
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_JOINED_RANKS_H_
