// What the ranks agree on before any of them binds its module: the order of gradients, how big chunks
// are, and so the plan; and what each of them finds wrong by itself before that.

#ifndef GRADSYNC_GRADSYNC_DDP_PLAN_AGREEMENT_H_
#define GRADSYNC_GRADSYNC_DDP_PLAN_AGREEMENT_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/ddp_options.h"

namespace torch {
namespace nn {
class Module;
}  // namespace nn
}  // namespace torch

namespace gradsync {

// DdpEngine::Create() calls these three in this order, with its own arguments. No
// function throws, but for what LibTorch throws where there is no memory.

// Whether the options fit each other and `sync`, which may be null. Errors: INVALID_ARGUMENT naming the
// option.
absl::Status CheckOptions(const DdpEngineOptions& options, const GradientSync* sync);

// What this rank finds wrong on its own, before any peer is asked; it waits for none. The result is
// the order in which gradients become ready: on rank 0 as DdpEngineOptions::forward_backward shows it, which
// may be slow, on all others, whom nobody asks, the reverse of registration. An error is for
// AgreeOnPlan(), so that others hear of it. Errors: INVALID_ARGUMENT naming a parameter, a buffer or an
// option; those of ObserveReadyOrder().
absl::StatusOr<std::vector<int>> ObserveOrder(const torch::nn::Module& module,
                                              const DdpEngineOptions& options,
                                              const GradientSync& sync,
                                              const SideChannel* side_channel);

// Collective: the plan, the same on all ranks, of the whole module or of DdpEngineOptions::part, whose other
// parameters lose their values; with slots for units, if there are any. `own_order`: what
// ObserveOrder() returned here.
//
// Fills in options->plan.chunk_bytes where that is 0: as DdpEngineOptions::earlier_chunk_bytes has it; else it
// stays 0, which is by the size of buckets, where all ranks are on one host
// (core/base/host_identity.h), and is kNetworkChunks where they are on several, or where one cannot
// say on which.
//
// Errors: where any rank has one, all return: that rank its own, the others ABORTED naming it;
// FAILED_PRECONDITION when buffers or frozen parameters differ between ranks; INVALID_ARGUMENT for a
// part or units that are not the module's; those of SideChannel.
absl::StatusOr<Plan> AgreeOnPlan(const absl::StatusOr<std::vector<int>>& own_order,
                                 const torch::nn::Module& module, const GradientSync& sync,
                                 SideChannel* side_channel, Deadline deadline,
                                 DdpEngineOptions* options);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_PLAN_AGREEMENT_H_
