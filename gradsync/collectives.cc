#include "gradsync/collectives.h"

#include <utility>

#include "absl/status/statusor.h"
#include "core/collectives/fold.h"
#include "core/collectives/group_collectives.h"
#include "gradsync/group_impl.h"

namespace gradsync {
namespace {

static_assert(static_cast<int>(DataType::kBool) == static_cast<int>(ElementKind::kBool) &&
              static_cast<int>(ReduceOp::kBxor) == static_cast<int>(FoldOp::kXor));

// Numbers that are none stay none.
ElementKind KindOf(DataType type) {
  const int number = static_cast<int>(type);
  return static_cast<ElementKind>(number < 0 || number >= kElementKinds ? kElementKinds : number);
}

FoldOp OpOf(ReduceOp op) {
  const int number = static_cast<int>(op);
  return static_cast<FoldOp>(number < 0 || number >= kFoldOps ? kFoldOps : number);
}

}  // namespace

class Collectives::Impl {
 public:
  Impl(Group::Impl* group, GroupCollectives* calls) : group_(group), calls_(calls) {}

  GroupCollectives& calls() const { return *calls_; }
  Deadline deadline() const { return group_->deadline(); }

 private:
  Group::Impl* const group_;
  GroupCollectives* const calls_;  // the group's
};

Collectives::Collectives(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Collectives::~Collectives() = default;
Collectives::Collectives(Collectives&&) noexcept = default;

Result<Collectives> Collectives::Open(Group& group) {
  const absl::StatusOr<GroupCollectives*> calls = group.impl()->CollectiveCalls();
  if (!calls.ok()) return ToStatus(calls.status());
  return Collectives(std::make_unique<Impl>(group.impl(), *calls));
}

int Collectives::rank() const { return impl_->calls().rank(); }
int Collectives::world_size() const { return impl_->calls().world_size(); }

Status Collectives::AllReduce(void* data, int64_t count, DataType type, ReduceOp op) {
  return ToStatus(impl_->calls().AllReduce(data, count, KindOf(type), OpOf(op), impl_->deadline()));
}

Status Collectives::Broadcast(void* data, int64_t bytes, int root) {
  return ToStatus(impl_->calls().Broadcast(data, bytes, root, impl_->deadline()));
}

Status Collectives::AllGather(const void* input, void* output, int64_t bytes) {
  return ToStatus(impl_->calls().AllGather(input, output, bytes, impl_->deadline()));
}

Status Collectives::ReduceScatter(const void* input, void* output, int64_t count, DataType type,
                                  ReduceOp op) {
  return ToStatus(impl_->calls().ReduceScatter(input, output, count, KindOf(type), OpOf(op),
                                               impl_->deadline()));
}

Status Collectives::AllToAll(const void* input, const std::vector<int64_t>& input_bytes,
                             void* output, const std::vector<int64_t>& output_bytes) {
  return ToStatus(
      impl_->calls().AllToAll(input, input_bytes, output, output_bytes, impl_->deadline()));
}

Status Collectives::Send(const void* data, int64_t bytes, int to) {
  return ToStatus(impl_->calls().Send(data, bytes, to, impl_->deadline()));
}

Status Collectives::Recv(void* data, int64_t bytes, int from) {
  return ToStatus(impl_->calls().Recv(data, bytes, from, impl_->deadline()));
}

Status Collectives::Barrier() { return ToStatus(impl_->calls().Barrier(impl_->deadline())); }

}  // namespace gradsync
