// What units that define or train modules include of LibTorch, most of what they compile, and what they have besides (cc.bzl). Not
// for use by name.

#ifndef GRADSYNC_THIRD_PARTY_TORCH_HEADERS_H_
#define GRADSYNC_THIRD_PARTY_TORCH_HEADERS_H_

#include "third_party/tensor_headers.h"
#include "torch/nn/module.h"

#endif  // GRADSYNC_THIRD_PARTY_TORCH_HEADERS_H_
