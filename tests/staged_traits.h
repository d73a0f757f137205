// Every backend of the host under buckets on a GPU (core/sync/staged_sync.h), for the conformance
// suite.

#ifndef GRADSYNC_TESTS_STAGED_TRAITS_H_
#define GRADSYNC_TESTS_STAGED_TRAITS_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "core/gpu/gpu_api.h"
#include "tests/conformance_suite.h"

namespace gradsync {

// The GPUs of one group's ranks. Destroyed after all ranks are.
class GpuSource {
 public:
  virtual ~GpuSource() = default;

  // One rank's. Thread-safe.
  virtual absl::StatusOr<std::shared_ptr<GpuApi>> Open() = 0;
};

using GpuSourceFactory = std::function<std::unique_ptr<GpuSource>()>;

// One to three ranks; local: one.
BackendTraits StagedLocal(const GpuSourceFactory& gpus);
BackendTraits StagedRingOverGrpc(const GpuSourceFactory& gpus);
BackendTraits StagedRingOverShm(const GpuSourceFactory& gpus);

// Two servers; `windows`: over shared memory.
BackendTraits StagedPs(const GpuSourceFactory& gpus, bool windows);

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_STAGED_TRAITS_H_
