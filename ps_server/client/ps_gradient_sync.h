// GradientSync over parameter servers: each chunk of each bucket belongs to one of k servers;
// workers push gradients to it and pull the mean (update at the worker) or the updated parameters
// (update at the owner) from it.
//
// Source of the idea: Li et al., "Scaling Distributed Machine Learning with the Parameter Server",
// OSDI 2014; of the order in which chunks are pushed and folded: core/plan/stripes.h.

#ifndef GRADSYNC_PS_SERVER_CLIENT_PS_GRADIENT_SYNC_H_
#define GRADSYNC_PS_SERVER_CLIENT_PS_GRADIENT_SYNC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/sync/gradient_sync.h"
#include "ps_server/client/ps_options.h"

namespace gradsync {

// Connects in Bind(). All options but the group's rank must be equal on all ranks; servers refuse
// what differs; Bind() returns FAILED_PRECONDITION for plans and consistencies that differ.
// Errors: INVALID_ARGUMENT naming the option, what was expected and what came.
absl::StatusOr<std::unique_ptr<GradientSync>> CreatePsGradientSync(const PsOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CLIENT_PS_GRADIENT_SYNC_H_
