#include "worker/checkpoint/host_tensor.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradsync {
namespace {

constexpr StoredTypeInfo kTypes[] = {
    {StoredType::kFloat64, 8, "DoubleStorage", "F64"},
    {StoredType::kFloat32, 4, "FloatStorage", "F32"},
    {StoredType::kFloat16, 2, "HalfStorage", "F16"},
    {StoredType::kBfloat16, 2, "BFloat16Storage", "BF16"},
    {StoredType::kInt64, 8, "LongStorage", "I64"},
    {StoredType::kInt32, 4, "IntStorage", "I32"},
    {StoredType::kInt16, 2, "ShortStorage", "I16"},
    {StoredType::kInt8, 1, "CharStorage", "I8"},
    {StoredType::kUint8, 1, "ByteStorage", "U8"},
    {StoredType::kBool, 1, "BoolStorage", "BOOL"},
};

}  // namespace

const StoredTypeInfo& InfoOf(StoredType type) { return kTypes[static_cast<int>(type)]; }

absl::optional<StoredType> TypeOfStorage(absl::string_view storage) {
  for (const StoredTypeInfo& info : kTypes) {
    if (info.storage == storage) return info.type;
  }
  return absl::nullopt;
}

absl::optional<StoredType> TypeOfSafetensors(absl::string_view name) {
  for (const StoredTypeInfo& info : kTypes) {
    if (info.safetensors == name) return info.type;
  }
  return absl::nullopt;
}

std::string Describe(const HostTensor& tensor) {
  return absl::StrCat(InfoOf(tensor.type).safetensors, " [", absl::StrJoin(tensor.sizes, ", "),
                      "]");
}

absl::StatusOr<int64_t> CountElements(const std::vector<int64_t>& sizes, int64_t most) {
  bool empty = false;
  for (int64_t size : sizes) {
    if (size < 0) return absl::DataLossError(absl::StrCat("a size of ", size));
    empty = empty || size == 0;
  }
  if (empty) return 0;
  int64_t count = 1;
  for (int64_t size : sizes) {
    if (size > most / count) {
      return absl::DataLossError(absl::StrCat("sizes [", absl::StrJoin(sizes, ", "),
                                              "] are more than ", most, " elements"));
    }
    count *= size;
  }
  return count;
}

}  // namespace gradsync
