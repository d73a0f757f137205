#include "benchmarks/profiles/lone_slice_link.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gradsync {
namespace {

class LoneSliceLink : public SliceLink {
 public:
  explicit LoneSliceLink(int slices) : slices_(slices) {}

  int slice() const override { return 0; }
  int slices() const override { return slices_; }

  absl::Status Connect(const std::string&, Deadline) override { return absl::OkStatus(); }

  absl::StatusOr<at::Tensor> Sum(const at::Tensor& own, Deadline) override {
    return own.detach().clone();
  }
  absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own, Deadline) override {
    return own.detach().select(0, 0).clone();
  }
  absl::StatusOr<std::vector<at::Tensor>> Gather(const at::Tensor& own, Deadline) override {
    return std::vector<at::Tensor>(slices_, own.detach());
  }

  absl::Status Finish(Deadline) override { return absl::OkStatus(); }

  int64_t bytes_sent() const override { return 0; }
  int64_t bytes_received() const override { return 0; }

 private:
  const int slices_;
};

}  // namespace

std::unique_ptr<SliceLink> NewLoneSliceLink(int slices) {
  return std::make_unique<LoneSliceLink>(slices);
}

}  // namespace gradsync
