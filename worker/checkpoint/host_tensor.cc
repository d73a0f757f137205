#include "worker/checkpoint/host_tensor.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradsync {
namespace {

constexpr ElementTypeInfo kTypes[] = {
    {ElementType::kFloat64, 8, "DoubleStorage", "F64"},
    {ElementType::kFloat32, 4, "FloatStorage", "F32"},
    {ElementType::kFloat16, 2, "HalfStorage", "F16"},
    {ElementType::kBfloat16, 2, "BFloat16Storage", "BF16"},
    {ElementType::kInt64, 8, "LongStorage", "I64"},
    {ElementType::kInt32, 4, "IntStorage", "I32"},
    {ElementType::kInt16, 2, "ShortStorage", "I16"},
    {ElementType::kInt8, 1, "CharStorage", "I8"},
    {ElementType::kUint8, 1, "ByteStorage", "U8"},
    {ElementType::kBool, 1, "BoolStorage", "BOOL"},
};

}  // namespace

const ElementTypeInfo& InfoOf(ElementType type) { return kTypes[static_cast<int>(type)]; }

absl::optional<ElementType> TypeOfStorage(absl::string_view storage) {
  for (const ElementTypeInfo& info : kTypes) {
    if (info.storage == storage) return info.type;
  }
  return absl::nullopt;
}

absl::optional<ElementType> TypeOfSafetensors(absl::string_view name) {
  for (const ElementTypeInfo& info : kTypes) {
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
