// GradientSync over parameter servers: each chunk of each bucket belongs to one of k servers;
// workers push gradients to it and pull the mean (update at the worker) or the updated parameters
// (update at the owner) from it.
//
// Source of the idea: Li et al., "Scaling Distributed Machine Learning with the Parameter Server",
// OSDI 2014; of the order in which chunks are pushed and folded: plan/stripes.h.

#ifndef GRADSYNC_PS_CLIENT_PS_GRADIENT_SYNC_H_
#define GRADSYNC_PS_CLIENT_PS_GRADIENT_SYNC_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "links/frame_stream.h"
#include "sync/gradient_sync.h"
#include "sync/update_site.h"
#include "sync/worker_group.h"

namespace gradsync {

struct PsOptions {
  WorkerGroup group;
  std::shared_ptr<StreamLink> link;
  std::vector<std::string> servers;  // "host:port"; the same list, in the same order, on every rank
  std::vector<double> weights;       // each server's share of the bytes, in any unit; empty: equal
  UpdateSite update_site = UpdateSite::kWorker;
  // Workers and servers are on one host and share their memory: gradients and parameters stay in
  // the workers' windows (links/window_owner.h), and what goes over `link` is only the hello, the
  // optimizer's state and the goodbye.
  bool windows = false;
  int connections = 2;  // streams per server
  int credit = 8;       // chunks on their way to one server
};

// Connects in Bind(). All options but the group's rank must be equal on all ranks; servers refuse
// what differs. Errors: INVALID_ARGUMENT naming the option, what was expected and what came.
absl::StatusOr<std::unique_ptr<GradientSync>> CreatePsGradientSync(const PsOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_PS_CLIENT_PS_GRADIENT_SYNC_H_
