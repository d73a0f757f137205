#ifndef GRADSYNC_CORE_SYNC_RANK_STATE_H_
#define GRADSYNC_CORE_SYNC_RANK_STATE_H_

#include <map>
#include <string>
#include <vector>

namespace gradsync {

// What one rank keeps for itself from step to step, free of buckets and chunks, so that any backend
// of the same plan can take it.
struct RankState {
  // Under topk (core/plan/codec.h): parameter name -> what of its gradients was not told yet, in
  // units of the gradient without a loss scale, in the parameter's memory order.
  std::map<std::string, std::vector<float>> residuals;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_RANK_STATE_H_
