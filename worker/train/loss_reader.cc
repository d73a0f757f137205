#include "worker/train/loss_reader.h"

#include <exception>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "c10/core/Event.h"
#include "c10/core/GradMode.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "torch/version.h"

namespace gradsync {
namespace {

class HostScalar : public PendingScalar {
 public:
  explicit HostScalar(double value) : value_(value) {}
  bool ready() const override { return true; }
  double Wait() override { return value_; }

 private:
  const double value_;
};

class DeviceScalar : public PendingScalar {
 public:
  explicit DeviceScalar(const at::Tensor& scalar)
      : stream_(c10::impl::VirtualGuardImpl(scalar.device().type()).getStream(scalar.device())),
        host_(at::empty({}, scalar.options().device(at::kCPU).pinned_memory(true))),
        copied_(scalar.device().type()) {
    c10::NoGradGuard no_grad;
    host_.copy_(scalar, /*non_blocking=*/true);
    copied_.record(stream_);
  }

  bool ready() const override { return copied_.query(); }

  double Wait() override {
#if TORCH_VERSION_MAJOR >= 2
    copied_.synchronize();
#else  // whose events cannot wait
    c10::impl::VirtualGuardImpl(stream_.device_type()).synchronizeStream(stream_);
#endif
    return host_.item<float>();
  }

 private:
  const c10::Stream stream_;
  const at::Tensor host_;
  c10::Event copied_;
};

}  // namespace

std::unique_ptr<PendingScalar> ReadScalar(const at::Tensor& scalar) {
  if (scalar.device().is_cpu()) return std::make_unique<HostScalar>(scalar.item<float>());
  return std::make_unique<DeviceScalar>(scalar);
}

absl::Status LossReader::Take(size_t most_pending, std::deque<double>* losses) {
  try {
    while (!pending_.empty() && (pending_.size() > most_pending || pending_.front()->ready())) {
      losses->push_back(pending_.front()->Wait());
      pending_.pop_front();
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("reading a loss: LibTorch: ", e.what()));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
