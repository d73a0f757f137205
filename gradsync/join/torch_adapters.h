// The adapters of a program that links LibTorch: Gloo, and in a build with CUDA the GPU and NCCL.

#ifndef GRADSYNC_GRADSYNC_JOIN_TORCH_ADAPTERS_H_
#define GRADSYNC_GRADSYNC_JOIN_TORCH_ADAPTERS_H_

#include "gradsync/join/adapters.h"

namespace gradsync {

// For SyncOptions::adapters. Opens nothing. Thread-safe.
Adapters TorchAdapters();

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_TORCH_ADAPTERS_H_
