#include "ps_server/shard.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradsync {

using proto::FrameHeader;

std::shared_ptr<LentBuffer> LentBuffer::CreateBytes(int64_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t size = static_cast<size_t>(bytes);
  const size_t rounded = (std::max<size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, rounded);
  return std::shared_ptr<LentBuffer>(new LentBuffer(static_cast<char*>(memory), size));
}

LentBuffer::~LentBuffer() { std::free(data_); }

Release LentBuffer::Lend() {
  MutexLock lock(&mutex_);
  if (lenders_.fetch_add(1, std::memory_order_relaxed) == 0) keep_ = shared_from_this();
  return Release(&LentBuffer::GiveBack, this);
}

void LentBuffer::GiveBack(void* lent) {
  LentBuffer& buffer = *static_cast<LentBuffer*>(lent);
  std::shared_ptr<LentBuffer> last;  // goes without the mutex, which may go with it
  MutexLock lock(&buffer.mutex_);
  if (buffer.lenders_.fetch_sub(1, std::memory_order_release) == 1) last = std::move(buffer.keep_);
}

bool MakeWritable(std::shared_ptr<LentBuffer>& buffer, bool keep) {
  if (!buffer->lent()) return true;
  const absl::Span<const char> bytes = buffer->bytes();
  std::shared_ptr<LentBuffer> fresh = LentBuffer::CreateBytes(static_cast<int64_t>(bytes.size()));
  if (fresh == nullptr) return false;
  if (keep) std::copy_n(bytes.data(), bytes.size(), fresh->mutable_bytes());
  buffer = std::move(fresh);
  return true;
}

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
