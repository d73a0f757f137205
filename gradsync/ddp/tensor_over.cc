#include "gradsync/ddp/tensor_over.h"

#include "ATen/ops/from_blob.h"
#include "c10/core/TensorOptions.h"

namespace gradsync {
namespace {

c10::Device DeviceOf(int ordinal) {
  if (ordinal == FlatBuffer::kHost) return c10::Device(c10::DeviceType::CPU);
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(ordinal));
}

}  // namespace

c10::Device TensorDevice(const GpuApi* gpu) {
  return DeviceOf(gpu == nullptr || !gpu->is_cuda() ? FlatBuffer::kHost : gpu->device());
}

c10::Device TensorDevice(const FlatBuffer& buffer) { return DeviceOf(buffer.device); }

at::Tensor TensorOver(const FlatBuffer& buffer) {
  if (buffer.memory == nullptr) return at::Tensor();
  return at::from_blob(
      buffer.data, {buffer.numel}, [memory = buffer.memory](void*) {},
      at::TensorOptions().dtype(at::kFloat).device(TensorDevice(buffer)));
}

}  // namespace gradsync
