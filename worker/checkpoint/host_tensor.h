// Tensors as files hold them: a name, a type, sizes and bytes. This room knows no LibTorch.

#ifndef GRADSYNC_WORKER_CHECKPOINT_HOST_TENSOR_H_
#define GRADSYNC_WORKER_CHECKPOINT_HOST_TENSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gradsync {

// Of the elements of a tensor in a file.
enum class StoredType {
  kFloat64,
  kFloat32,
  kFloat16,
  kBfloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUint8,
  kBool,
};

// What a type is called where.
struct StoredTypeInfo {
  StoredType type;
  int64_t bytes;            // of one element
  const char* storage;      // of torch's pickles: "FloatStorage"
  const char* safetensors;  // "F32"
};

const StoredTypeInfo& InfoOf(StoredType type);
absl::optional<StoredType> TypeOfStorage(absl::string_view storage);
absl::optional<StoredType> TypeOfSafetensors(absl::string_view name);

struct HostTensor {
  std::string name;
  StoredType type = StoredType::kFloat32;
  std::vector<int64_t> sizes;
  std::string data;  // the elements in row-major order, little endian
};

struct TensorShape {
  std::string name;
  std::vector<int64_t> sizes;
};

// "float32 [64, 3, 7, 7]", as messages have it.
std::string Describe(const HostTensor& tensor);

// The product of `sizes`. Errors: DATA_LOSS for a negative size, or a product of more elements
// than `most`, however large.
absl::StatusOr<int64_t> CountElements(const std::vector<int64_t>& sizes, int64_t most);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_HOST_TENSOR_H_
