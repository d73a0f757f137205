#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/add.h"
#include "ATen/ops/cat.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "core/plan/job_spec.h"
#include "worker/pipeline/slice_link.h"
#include "worker/pipeline/stage_link.h"
#include "worker/pipeline/tensor_frames.h"

namespace gradsync {
namespace {

using Neighbour = StageLink::Neighbour;

using Tensors = std::vector<at::Tensor>;

// The messages of one exchange.
enum Part { kContribution, kResult };

// Slices `first` and `second` of `group` as a group of their own.
WorkerGroup Pair(const WorkerGroup& group, int first, int second) {
  WorkerGroup pair = group;
  pair.rank = group.rank == first ? 0 : 1;
  pair.world_size = 2;
  pair.ranks_of_job = {group.RankOfJob(first), group.RankOfJob(second)};
  pair.part = absl::StrCat(group.part, "/", first, "-", second);
  return pair;
}

// In the order of slices.
at::Tensor Add(const Tensors& tensors) {
  at::Tensor sum = at::add(tensors[0], tensors[1]);
  for (size_t i = 2; i < tensors.size(); ++i) sum.add_(tensors[i]);
  return sum;
}

std::string Describe(const at::Tensor& tensor) {
  return absl::StrCat(c10::toString(tensor.scalar_type()), " [", absl::StrJoin(tensor.sizes(), ","),
                      "]");
}

class StreamSliceLink : public SliceLink {
 public:
  // Two slices are a pipeline of two stages, whose messages are of another kind.
  StreamSliceLink(const WorkerGroup& group, const std::shared_ptr<StreamLink>& link)
      : group_(group) {
    for (int other = 0; other < group.world_size; ++other) {
      links_.push_back(nullptr);
      if (other == group.rank) continue;
      links_.back() = std::make_unique<StageLink>(
          Pair(group, std::min(group.rank, other), std::max(group.rank, other)), link, Link::kGrpc);
    }
  }

  int slice() const override { return group_.rank; }
  int slices() const override { return group_.world_size; }

  // Each rank goes through its pairs in the order of the others, so of all pairs that wait the
  // first in the order of both numbers can always go on.
  absl::Status Connect(const std::string& fingerprint, Deadline deadline) override {
    for (const auto& link : links_) {
      if (link != nullptr) GS_RETURN_IF_ERROR(link->Connect(fingerprint, deadline));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<at::Tensor> Sum(const at::Tensor& own, Deadline deadline) override {
    ++exchange_;
    if (slices() == 1) return own.detach().clone();
    if (slices() == 2) {
      GS_ASSIGN_OR_RETURN(const Tensors both, SwapContributions(ToAll(own.detach()), deadline));
      return Add(both);
    }
    const Tensors parts = Cut(own.detach().contiguous().flatten());
    GS_ASSIGN_OR_RETURN(const Tensors contributions, SwapContributions(parts, deadline));
    GS_ASSIGN_OR_RETURN(const Tensors sums,
                        Swap(kResult, ToAll(Add(contributions)), parts, deadline));
    return at::cat(sums).view(own.sizes());
  }

  absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own, Deadline deadline) override {
    ++exchange_;
    const Tensors parts = own.detach().contiguous().unbind();
    if (slices() == 1) return parts[0].clone();
    GS_ASSIGN_OR_RETURN(const Tensors contributions, SwapContributions(parts, deadline));
    return Add(contributions);
  }

  absl::StatusOr<Tensors> Gather(const at::Tensor& own, Deadline deadline) override {
    ++exchange_;
    return SwapContributions(ToAll(own.detach()), deadline);
  }

  absl::Status Finish(Deadline deadline) override {
    for (const auto& link : links_) {
      if (link != nullptr) GS_RETURN_IF_ERROR(link->Finish(deadline));
    }
    return absl::OkStatus();
  }

  int64_t bytes_sent() const override {
    int64_t bytes = 0;
    for (const auto& link : links_) bytes += link == nullptr ? 0 : link->bytes_sent();
    return bytes;
  }

  int64_t bytes_received() const override {
    int64_t bytes = 0;
    for (const auto& link : links_) bytes += link == nullptr ? 0 : link->bytes_received();
    return bytes;
  }

 private:
  Tensors ToAll(const at::Tensor& tensor) const { return Tensors(slices(), tensor); }

  // A part for each slice, one element longer than another where n does not divide them.
  Tensors Cut(const at::Tensor& flat) const {
    Tensors parts;
    for (int s = 0; s < slices(); ++s) {
      parts.push_back(
          flat.slice(0, flat.numel() * s / slices(), flat.numel() * (s + 1) / slices()));
    }
    return parts;
  }

  // What others have for this slice, by slice.
  absl::StatusOr<Tensors> SwapContributions(const Tensors& to_send, Deadline deadline) {
    return Swap(kContribution, to_send, ToAll(to_send[slice()]), deadline);
  }

  // Sends each slice its tensor, then takes one from each, of the sizes and type of `expected`.
  // Nothing waits for a send, so it does not matter who comes first. Each has the whole time: of a
  // pause of the process only the wait that it fell into knows.
  absl::StatusOr<Tensors> Swap(Part part, const Tensors& to_send, const Tensors& expected,
                               Deadline deadline) {
    const absl::Duration timeout = deadline.remaining();
    const TensorKey key = {TensorKey::kOfSlice, exchange_, part};
    for (int s = 0; s < slices(); ++s) {
      if (s != slice()) links_[s]->Send(Towards(s), key, to_send[s]);
    }
    Tensors all = to_send;
    for (int s = 0; s < slices(); ++s) {
      if (s == slice()) continue;
      GS_ASSIGN_OR_RETURN(all[s], links_[s]->Receive(Towards(s), key, Deadline::In(timeout)));
      if (all[s].sizes() == expected[s].sizes() && all[s].dtype() == expected[s].dtype()) continue;
      const absl::Status differs = absl::InvalidArgumentError(
          absl::StrCat("rank ", group_.RankOfJob(s), ", ", DescribeKey(key), ": expected ",
                       Describe(expected[s]), ", found ", Describe(all[s])));
      links_[s]->Abort(differs);
      return differs;
    }
    return all;
  }

  Neighbour Towards(int other) const {
    return other < slice() ? Neighbour::kBefore : Neighbour::kBehind;
  }

  const WorkerGroup group_;
  std::vector<std::unique_ptr<StageLink>> links_;  // by slice; null for this one
  int64_t exchange_ = 0;                           // the number of the newest
};

}  // namespace

std::unique_ptr<SliceLink> NewStreamSliceLink(const WorkerGroup& group,
                                              std::shared_ptr<StreamLink> link) {
  return std::make_unique<StreamSliceLink>(group, link);
}

}  // namespace gradsync
