// Backends that need a GPU, for the conformance suite.

#ifndef GRADSYNC_TESTS_GPU_TRAITS_H_
#define GRADSYNC_TESTS_GPU_TRAITS_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "allreduce/ipc_gradient_sync.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_api.h"
#include "tests/conformance_suite.h"

namespace gradsync {

// Every backend of the host under buckets on a GPU (core/sync/staged_sync.h), for the conformance
// suite.

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

// Backends over GPU memory that ranks of one host share, for the conformance suite.
class IpcFixture : public BackendFixture {
 public:
  IpcFixture(IpcOptions options, std::unique_ptr<GpuSource> gpus)
      : gpus_(std::move(gpus)), options_(std::move(options)) {}

  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    IpcOptions options = options_;
    options.group = group;
    GS_ASSIGN_OR_RETURN(options.gpu, gpus_->Open());
    return CreateIpcGradientSync(options);
  }

 private:
  const std::unique_ptr<GpuSource> gpus_;
  const IpcOptions options_;
};

// As options.servers and options.owners say. One to four ranks.
inline BackendTraits IpcTraits(const GpuSourceFactory& gpus, const IpcOptions& like) {
  BackendTraits traits;
  traits.make_fixture = [gpus, like](int, UpdateSite site) {
    IpcOptions options = like;
    options.update_site = site;
    return std::make_unique<IpcFixture>(std::move(options), gpus());
  };
  traits.world_sizes = {1, 2, 3, 4};
  return traits;
}

inline IpcOptions IpcRing() { return IpcOptions(); }

// `owners` as in IpcOptions.
inline IpcOptions IpcServers(int owners) {
  IpcOptions options;
  options.servers = true;
  options.owners = owners;
  return options;
}

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_GPU_TRAITS_H_
