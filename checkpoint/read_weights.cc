#include "checkpoint/read_weights.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/file_system.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"

namespace gradsync {
namespace {

constexpr absl::string_view kWrapped = "module.";

// A header of JSON begins after its length.
bool LooksLikeSafetensors(absl::string_view file) { return file.size() > 8 && file[8] == '{'; }

absl::StatusOr<std::vector<HostTensor>> Decode(absl::string_view file) {
  if (!LooksLikeSafetensors(file)) return DecodeTorchFile(file);
  GS_ASSIGN_OR_RETURN(Safetensors content, DecodeSafetensors(file));
  return std::move(content.tensors);
}

void Unwrap(std::vector<HostTensor>* tensors) {
  const bool wrapped = std::all_of(tensors->begin(), tensors->end(), [](const HostTensor& tensor) {
    return absl::StartsWith(tensor.name, kWrapped);
  });
  if (!wrapped) return;
  for (HostTensor& tensor : *tensors) tensor.name.erase(0, kWrapped.size());
}

}  // namespace

absl::StatusOr<std::vector<HostTensor>> ReadWeights(const std::string& path) {
  GS_ASSIGN_OR_RETURN(const std::string file, NewLocalFileSystem()->Read(path));
  absl::StatusOr<std::vector<HostTensor>> tensors = Decode(file);
  if (!tensors.ok()) {
    return absl::Status(tensors.status().code(),
                        absl::StrCat(path, ": ", tensors.status().message()));
  }
  Unwrap(&*tensors);
  return tensors;
}

}  // namespace gradsync
