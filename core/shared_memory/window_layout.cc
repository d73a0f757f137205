#include "core/shared_memory/window_layout.h"

#include <cstring>

#include "core/plan/sharding.h"

namespace gradsync {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPage = 4096;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

WindowLayout::WindowLayout(int64_t buckets, int64_t chunks, int64_t control_bytes)
    : progress_offset_(RoundUp(control_bytes, kLine)),
      squares_(chunks),
      squares_offset_(progress_offset_ + buckets * kProgressBytes),
      bytes_(RoundUp(squares_offset_ + chunks * static_cast<int64_t>(sizeof(double)), kPage)) {}

WindowLayout WindowLayout::OfServer(const Plan& plan, int64_t chunks, int64_t control_bytes,
                                    int64_t shard_elements) {
  WindowLayout layout(static_cast<int64_t>(plan.buckets().size()), chunks, control_bytes);
  layout.PlaceShard(shard_elements);
  return layout;
}

void WindowLayout::PlaceShard(int64_t elements) {
  shard_offset_ = bytes_;
  bytes_ += RoundUp(elements * static_cast<int64_t>(sizeof(float)), kPage);
}

WindowLayout::WindowLayout(const Plan& plan, int64_t control_bytes, int64_t shard_elements,
                           const std::vector<int64_t>& post_bytes) {
  int64_t chunks = 0;
  for (const BucketPlan& bucket : plan.buckets()) chunks += bucket.layout.stripes();
  *this = WindowLayout(static_cast<int64_t>(plan.buckets().size()), chunks, control_bytes);
  for (int64_t bytes : post_bytes) {
    posts_.push_back(bytes_);
    bytes_ += RoundUp(bytes, kLine);
  }
  bytes_ = RoundUp(bytes_, kPage);
  const std::vector<int64_t> grad_slots = SlotElements(plan, plan.slots().gradients);
  const std::vector<int64_t> param_slots = SlotElements(plan, plan.slots().parameters);
  const auto place = [this](const std::vector<int64_t>& slots, int slot, std::vector<int64_t>* to) {
    if (slot < static_cast<int>(to->size())) return to->push_back((*to)[slot]);
    to->push_back(bytes_);
    bytes_ += RoundUp(slots[slot] * static_cast<int64_t>(sizeof(float)), kPage);
  };
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    place(grad_slots, SlotOf(bucket, plan.slots().gradients), &grads_);
    place(param_slots, SlotOf(bucket, plan.slots().parameters), &params_);
  }
  PlaceShard(shard_elements);
}

int64_t WindowLayout::progress_offset(int bucket) const {
  return progress_offset_ + bucket * kProgressBytes;
}

namespace {

uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

double FromBits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

std::array<uint64_t, 4> NoteOf(const StepOptions& step) {
  return {static_cast<uint64_t>(step.step), BitsOf(step.lr), BitsOf(step.max_norm),
          BitsOf(step.inverse_loss_scale)};
}

StepOptions StepOf(const std::array<uint64_t, 4>& note) {
  StepOptions step;
  step.step = static_cast<int64_t>(note[0]);
  step.lr = FromBits(note[1]);
  step.max_norm = FromBits(note[2]);
  step.inverse_loss_scale = FromBits(note[3]);
  return step;
}

}  // namespace gradsync
