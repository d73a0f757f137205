#include "ps_server/shard.h"

#include "absl/strings/str_cat.h"

namespace gradsync {

using proto::FrameHeader;

absl::Status UnexpectedWindows() {
  return absl::InvalidArgumentError(
      "WINDOWS: expected addresses from rank 0 where the terms say windows, found others");
}

absl::Status Shard::Refuse(FrameHeader::Kind kind) const {
  absl::Status expected = Expects(kind);
  if (!expected.ok()) return expected;
  return absl::InternalError(
      absl::StrCat(FrameHeader::Kind_Name(kind), ": expected by a shard that cannot take it"));
}

absl::Status Shard::Push(int, ChunkId, const StepOptions&, Payload) {
  return Refuse(FrameHeader::PUSH);
}

absl::Status Shard::Norm(int, int64_t, double) { return Refuse(FrameHeader::NORM); }

absl::StatusOr<std::shared_ptr<LentBuffer>> Shard::SetParameters(ChunkId, const Payload&) {
  return Refuse(FrameHeader::PARAMETERS);
}

absl::StatusOr<std::vector<Shard::KeptChunk>> Shard::Parameters(int) {
  return Refuse(FrameHeader::SHARD);
}

absl::Status Shard::Settle(int) { return Refuse(FrameHeader::SETTLE); }

absl::Status Shard::Begin(std::vector<std::string>) { return Refuse(FrameHeader::WINDOWS); }

absl::Status Shard::Leave(int) {
  if (idle()) return absl::OkStatus();
  return absl::InvalidArgumentError("left in the middle of a step");
}

}  // namespace gradsync
