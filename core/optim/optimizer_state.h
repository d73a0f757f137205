#ifndef GRADSYNC_CORE_OPTIM_OPTIMIZER_STATE_H_
#define GRADSYNC_CORE_OPTIM_OPTIMIZER_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gradsync {

// The whole optimizer's state, free of buckets, chunks and owners, so that any backend can import
// what another exported.
struct OptimizerState {
  // Optimizer steps done so far; the next step is step + 1.
  int64_t step = 0;
  // Parameter name -> slot name as PyTorch has it ("momentum_buffer"; "exp_avg", "exp_avg_sq") ->
  // the slot's elements in the parameter's memory order, numel() of them. A parameter without state
  // yet is absent.
  std::map<std::string, std::map<std::string, std::vector<float>>> slots;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_OPTIM_OPTIMIZER_STATE_H_
