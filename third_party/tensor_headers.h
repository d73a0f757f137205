// What units with tensors include, most of which speak to other processes (cc.bzl). Not for use by name.

#ifndef GRADSYNC_THIRD_PARTY_TENSOR_HEADERS_H_
#define GRADSYNC_THIRD_PARTY_TENSOR_HEADERS_H_

#include "ATen/core/Tensor.h"
#include "google/protobuf/message.h"
#include "grpcpp/grpcpp.h"
#include "third_party/common_headers.h"

#endif  // GRADSYNC_THIRD_PARTY_TENSOR_HEADERS_H_
