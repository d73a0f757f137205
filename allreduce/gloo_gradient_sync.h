#ifndef GRADSYNC_ALLREDUCE_GLOO_GRADIENT_SYNC_H_
#define GRADSYNC_ALLREDUCE_GLOO_GRADIENT_SYNC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/group/worker_group.h"
#include "core/plan/kinds.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

struct GlooOptions {
  // Gloo listens on `group.address`, on ports of its own choice, and connects every rank with every
  // other. Its connections know no credentials: it is for trusted networks.
  WorkerGroup group;
  // kWorker. The process group has no reduce-scatter.
  UpdateSite update_site = UpdateSite::kWorker;
};

// A GradientSync over the allreduce of LibTorch's ProcessGroupGloo: an independent second opinion
// on our own rings. Buckets are summed in index order, one at a time, then multiplied by 1/n and by
// the inverse loss scale.
//
// Gloo adds in an order of its own: the mean has the plan's bits with one or two ranks, and is
// within rounding beyond. It does not tell what it sends, so wire_stats() is all zero.
//
// Failures: Gloo notices at once that a neighbour has hung up, but neither which one nor why, so the
// group is first asked whether it knows better (core/base/errors.h); and a silent one after
// `group.timeout`. When the group has failed, this rank's waits inside of Gloo end at once, while it
// connects, too, and so do its connections.
//
// Errors: INVALID_ARGUMENT for options out of range, for kOwner, and in a build whose LibTorch
// brings no headers of Gloo (pip's).
absl::StatusOr<std::unique_ptr<GradientSync>> CreateGlooGradientSync(const GlooOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_GLOO_GRADIENT_SYNC_H_
