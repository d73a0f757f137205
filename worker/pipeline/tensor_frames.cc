#include "worker/pipeline/tensor_frames.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "ATen/ops/empty_strided.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/ScalarType.h"

namespace gradsync {
namespace {

using proto::FrameHeader;
using proto::TensorMessage;

// Far above any activation, far below what overflows.
constexpr int64_t kMaxElements = int64_t{1} << 36;

struct TypeName {
  at::ScalarType type;
  const char* name;
};

constexpr TypeName kTypes[] = {
    {at::kFloat, "float"}, {at::kBFloat16, "bfloat16"}, {at::kHalf, "half"}};

const char* NameOf(at::ScalarType type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known.name;
  }
  return "";
}

const TypeName* Find(const std::string& name) {
  for (const TypeName& known : kTypes) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

// Whether elements lie without gaps or overlaps in some order of the dimensions, and so many.
bool IsDense(const TensorMessage& message, int64_t* elements) {
  if (message.sizes_size() != message.strides_size()) return false;
  std::vector<std::pair<int64_t, int64_t>> by_stride;
  *elements = 1;
  for (int d = 0; d < message.sizes_size(); ++d) {
    const int64_t size = message.sizes(d);
    if (size < 0 || (size > 0 && *elements > kMaxElements / size)) return false;
    *elements *= size;
    if (size != 1) by_stride.emplace_back(message.strides(d), size);
  }
  if (*elements == 0) return true;
  std::sort(by_stride.begin(), by_stride.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : by_stride) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

absl::Status Refuse(const TensorMessage& message, size_t payload_bytes) {
  return absl::InvalidArgumentError(absl::StrCat(
      "TENSOR: expected float, bfloat16 or half, dense strides and as many bytes, found \"",
      message.type(), "\" of sizes [", absl::StrJoin(message.sizes(), ","), "] strides [",
      absl::StrJoin(message.strides(), ","), "] in ", payload_bytes, " bytes"));
}

}  // namespace

std::string DescribeKey(const TensorKey& key) {
  switch (key.what) {
    case TensorKey::kActivation:
      return absl::StrCat("the input of micro-batch ", key.micro_batch, " of step ", key.step);
    case TensorKey::kGradient:
      return absl::StrCat("the gradient of micro-batch ", key.micro_batch, " of step ", key.step);
    case TensorKey::kFigures:
      return absl::StrCat("the loss of step ", key.step);
    case TensorKey::kTestInput:
      return absl::StrCat("the input of test batch ", key.micro_batch);
    case TensorKey::kTestCredit:
      return absl::StrCat("the receipt of test batch ", key.micro_batch);
    case TensorKey::kOfSlice:
      return absl::StrCat("its part of exchange ", key.step, " between slices");
  }
  return "a tensor";
}

OutgoingFrame TensorFrame(const TensorKey& key, const at::Tensor& tensor) {
  const at::Tensor dense =
      tensor.is_non_overlapping_and_dense() ? tensor.detach() : tensor.detach().contiguous();
  OutgoingFrame frame;
  frame.header.set_kind(FrameHeader::TENSOR);
  frame.header.set_step(static_cast<uint64_t>(key.step));
  TensorMessage& message = *frame.header.mutable_tensor();
  message.set_what(key.what);
  message.set_micro_batch(key.micro_batch);
  message.set_type(NameOf(dense.scalar_type()));
  message.mutable_sizes()->Add(dense.sizes().begin(), dense.sizes().end());
  message.mutable_strides()->Add(dense.strides().begin(), dense.strides().end());
  frame.payload = {static_cast<const char*>(dense.data_ptr()), dense.nbytes()};
  frame.released = [dense] {};
  return frame;
}

absl::StatusOr<TensorKey> KeyIn(const FrameHeader& header) {
  const TensorMessage& message = header.tensor();
  if (header.kind() != FrameHeader::TENSOR || message.what() < TensorKey::kActivation ||
      message.what() > TensorKey::kOfSlice) {
    return absl::InvalidArgumentError(absl::StrCat("expected TENSOR of a kind from 1 to 6, found ",
                                                   FrameHeader::Kind_Name(header.kind()),
                                                   " of kind ", message.what()));
  }
  return TensorKey{static_cast<TensorKey::What>(message.what()),
                   static_cast<int64_t>(header.step()), message.micro_batch()};
}

absl::StatusOr<at::Tensor> TensorIn(const FrameHeader& header, const Payload& payload) {
  const TensorMessage& message = header.tensor();
  const TypeName* const type = Find(message.type());
  int64_t elements = 0;
  if (type == nullptr || !IsDense(message, &elements) ||
      static_cast<size_t>(elements) * c10::elementSize(type->type) != payload.size()) {
    return Refuse(message, payload.size());
  }
  at::Tensor tensor;
  try {
    tensor = at::empty_strided(
        {message.sizes().data(), static_cast<size_t>(message.sizes_size())},
        {message.strides().data(), static_cast<size_t>(message.sizes_size())}, type->type);
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("TENSOR of ", payload.size(), " bytes: ", e.what()));
  }
  char* to = static_cast<char*>(tensor.data_ptr());
  for (absl::Span<const char> part : payload.parts) {
    if (part.empty()) continue;
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
  return tensor;
}

}  // namespace gradsync
