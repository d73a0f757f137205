// What of a module is not exchanged through buckets: buffers and frozen parameters.

#ifndef GRADSYNC_GRADSYNC_DDP_MODULE_STATE_H_
#define GRADSYNC_GRADSYNC_DDP_MODULE_STATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "gradsync/ddp/flat_parameters.h"

namespace gradsync {

// The module's buffers (BatchNorm's running statistics), in named_buffers() order.
std::vector<NamedParameter> BuffersOf(const torch::nn::Module& module);

// The module's parameters without requires_grad.
std::vector<NamedParameter> FrozenParametersOf(const torch::nn::Module& module);

// Both: what ranks have to have in common besides the plan's parameters.
std::vector<NamedParameter> UnplannedTensorsOf(const torch::nn::Module& module);

// A line per tensor: name, type and sizes.
std::string DescribeTensors(const std::vector<NamedParameter>& tensors);

// The values of tensors as bytes, copied from a GPU if they are there, with a first line that names
// tensors, types and shapes.
std::string PackTensors(const std::vector<NamedParameter>& tensors);

// Copies the values into `tensors`, in place, wherever they are.
// Errors: FAILED_PRECONDITION when the other side's names, types or shapes differ, with the first
// difference; DATA_LOSS when bytes are missing. Nothing is changed then.
absl::Status UnpackTensors(absl::string_view packed, const std::vector<NamedParameter>& tensors);

// Collective: the values that rank `source` has of these tensors, which all have, on all ranks of
// `ranks`; null: there is one. Errors: those of SideChannel and of UnpackTensors().
absl::Status BroadcastTensors(const std::vector<NamedParameter>& tensors, SideChannel* ranks,
                              Deadline deadline, int source = 0);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_MODULE_STATE_H_
