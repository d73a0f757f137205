// What units that define or train modules include of LibTorch: most of what they compile, and the same for all
// (torch_modules.bzl). Not for use by name.

#ifndef GRADSYNC_THIRD_PARTY_TORCH_MODULES_H_
#define GRADSYNC_THIRD_PARTY_TORCH_MODULES_H_

#include "torch/nn/module.h"

#endif  // GRADSYNC_THIRD_PARTY_TORCH_MODULES_H_
