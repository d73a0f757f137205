#include "ps_server/push_sequence.h"

#include "absl/strings/str_cat.h"

namespace gradsync {

absl::Status PushSequence::Check(size_t next, ChunkId found) const {
  if (next >= order_->size()) {
    return absl::InvalidArgumentError(absl::StrCat("connection ", connection_,
                                                   ": expected nothing, found bucket ",
                                                   found.bucket, " slot ", found.slot));
  }
  const ChunkId expected = order_->At(rank_, next);
  if (expected == found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("connection ", connection_, ": expected bucket ", expected.bucket, " slot ",
                   expected.slot, " (number ", next, " of ", order_->size(), "), found bucket ",
                   found.bucket, " slot ", found.slot));
}

void PushSequence::Advance(size_t& next) const {
  next += connections_;
  if (next >= order_->size()) next = connection_;
}

absl::Status PushSequence::Push(ChunkId found, int64_t step) {
  absl::Status status = Check(next_push_, found);
  if (!status.ok()) return status;
  if (next_parameters_ != connection_) {
    return absl::InvalidArgumentError(
        absl::StrCat("connection ", connection_, ": expected the rest of the parameters, found a ",
                     "gradient of step ", step));
  }
  const bool begins = next_push_ == connection_;
  if (begins ? step <= step_ : step != step_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connection ", connection_, ": expected step ", step_,
        begins ? " to be followed by a later one" : " to go on", ", found step ", step));
  }
  step_ = step;
  Advance(next_push_);
  return absl::OkStatus();
}

absl::Status PushSequence::Parameters(ChunkId found) {
  absl::Status status = Check(next_parameters_, found);
  if (!status.ok()) return status;
  if (next_push_ != connection_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connection ", connection_, ": expected the rest of step ", step_, ", found parameters"));
  }
  Advance(next_parameters_);
  return absl::OkStatus();
}

}  // namespace gradsync
