#include "core/sync/buckets.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/plan/sharding.h"

namespace gradsync {
namespace {

constexpr size_t kAlignment = 64;
// A GPU's driver pins pages, and each once only: they must not be shared with anybody else.
constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t BytesOf(int64_t elements) {
  return RoundUp(static_cast<size_t>(elements) * sizeof(float), kAlignment);
}

// Where flat buffers begin, and how many bytes they are together.
struct Places {
  std::vector<size_t> grads;   // by slot
  std::vector<size_t> params;  // by slot
  size_t bytes = 0;
};

Places PlacesOf(const Plan& plan) {
  Places places;
  const auto place = [&places](int64_t elements) {
    const size_t offset = places.bytes;
    places.bytes += BytesOf(elements);
    return offset;
  };
  for (int64_t elements : SlotElements(plan, plan.slots().gradients)) {
    places.grads.push_back(place(elements));
  }
  for (int64_t elements : SlotElements(plan, plan.slots().parameters)) {
    places.params.push_back(place(elements));
  }
  return places;
}

absl::Status NoMemory(size_t bytes, absl::string_view found) {
  return absl::ResourceExhaustedError(
      absl::StrCat("buckets: expected ", bytes, " bytes of memory, found ", found));
}

std::vector<GradBucket> BucketsIn(const std::shared_ptr<char>& memory, const Plan& plan,
                                  const Places& places) {
  const auto flat = [&](size_t offset, int64_t numel) {
    return FlatBuffer{memory.get() + offset, numel, ElementType::kFloat32, FlatBuffer::kHost,
                      memory};
  };
  std::vector<GradBucket> buckets;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    const int bucket = static_cast<int>(b);
    const size_t grad = places.grads[SlotOf(bucket, plan.slots().gradients)];
    const size_t param = places.params[SlotOf(bucket, plan.slots().parameters)];
    const int64_t numel = plan.buckets()[b].numel;
    buckets.push_back({flat(grad, numel), flat(param, numel)});
  }
  return buckets;
}

}  // namespace

absl::StatusOr<std::vector<GradBucket>> AllocateBuckets(const Plan& plan) {
  const Places places = PlacesOf(plan);
  const size_t bytes = RoundUp(places.bytes + kAlignment, kPage);
  GS_RETURN_IF_ERROR(CheckMemory("buckets", bytes));
  GS_RETURN_IF_ERROR(CheckAddresses("buckets", bytes));
  try {
    const std::shared_ptr<char> memory(static_cast<char*>(std::aligned_alloc(kPage, bytes)),
                                       [](char* m) { std::free(m); });
    if (memory == nullptr) return NoMemory(bytes, "less, or a limit of this process");
    GS_RETURN_IF_ERROR(TakeMemory("buckets", memory.get(), bytes));
    return BucketsIn(memory, plan, places);
  } catch (const std::exception& error) {
    return NoMemory(bytes, error.what());
  }
}

namespace {

using Slots = std::vector<std::shared_ptr<GpuMemory>>;

absl::StatusOr<Slots> AllocateSlots(const Plan& plan, int slots,
                                    const std::shared_ptr<GpuApi>& gpu) {
  Slots memory;
  for (int64_t elements : SlotElements(plan, slots)) {
    GS_ASSIGN_OR_RETURN(memory.emplace_back(),
                        GpuMemory::OnDevice(gpu, static_cast<size_t>(elements) * sizeof(float)));
  }
  return memory;
}

}  // namespace

FlatBuffer DeviceBuffer(const GpuApi& gpu, std::shared_ptr<const void> memory, void* data,
                        int64_t numel) {
  return {data, numel, ElementType::kFloat32, gpu.is_cuda() ? gpu.device() : FlatBuffer::kHost,
          std::move(memory)};
}

absl::StatusOr<std::vector<GradBucket>> AllocateDeviceBuckets(const Plan& plan,
                                                              const std::shared_ptr<GpuApi>& gpu) {
  const BucketSlots& slots = plan.slots();
  GS_ASSIGN_OR_RETURN(const Slots grads, AllocateSlots(plan, slots.gradients, gpu));
  GS_ASSIGN_OR_RETURN(const Slots params, AllocateSlots(plan, slots.parameters, gpu));
  std::vector<GradBucket> buckets;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    const int bucket = static_cast<int>(b);
    const int64_t numel = plan.buckets()[b].numel;
    const std::shared_ptr<GpuMemory>& grad = grads[SlotOf(bucket, slots.gradients)];
    const std::shared_ptr<GpuMemory>& param = params[SlotOf(bucket, slots.parameters)];
    buckets.push_back({DeviceBuffer(*gpu, grad, grad->data(), numel),
                       DeviceBuffer(*gpu, param, param->data(), numel)});
  }
  return buckets;
}

std::vector<GradBucket> WindowBuckets(const WindowGroup& group, int rank,
                                      const std::shared_ptr<Window>& window) {
  const WindowLayout layout = group.Layout(rank);
  const auto flat = [&](int64_t offset, int64_t numel) {
    return FlatBuffer{window->data() + offset, numel, ElementType::kFloat32, FlatBuffer::kHost,
                      window};
  };
  std::vector<GradBucket> buckets;
  for (int bucket = 0; bucket < static_cast<int>(group.plan().buckets().size()); ++bucket) {
    const int64_t numel = group.plan().buckets()[bucket].numel;
    buckets.push_back(
        {flat(layout.grad_offset(bucket), numel), flat(layout.param_offset(bucket), numel)});
  }
  return buckets;
}

}  // namespace gradsync
