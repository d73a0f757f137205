// What flags of other programs are called here.

#ifndef GRADSYNC_CORE_PROGRAM_OTHER_NAMES_H_
#define GRADSYNC_CORE_PROGRAM_OTHER_NAMES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradsync {

// The flags of this repository's programs that do what `name` does for torchrun, mpirun, srun,
// torchvision's and timm's scripts, Lightning, Hugging Face's Trainer, DeepSpeed, Megatron or
// nccl-tests, most likely first; empty: unknown. No program has all of them. `name` has underscores,
// no dashes. Thread-safe.
std::vector<std::string> FlagsHereFor(absl::string_view name);

// Why a benchmark has no flag for what `name` does for nccl-tests; empty: it has, or none is known.
// Thread-safe.
absl::string_view NcclTestsHas(absl::string_view name);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_OTHER_NAMES_H_
