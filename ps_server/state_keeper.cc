#include "ps_server/state_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "core/base/chunk_codec.h"
#include "core/base/status_macros.h"

namespace gradsync {

absl::StatusOr<std::shared_ptr<const ShardState>> StateKeeper::Export(int64_t step) {
  MutexLock lock(&mutex_);
  if (auto exported = exported_.lock(); exported != nullptr && exported_step_ == step) {
    return exported;
  }
  auto state = std::make_shared<ShardState>();
  state->step = step;
  for (const Part& part : parts_) {
    GS_RETURN_IF_ERROR(part.acquire());
    for (size_t s = 0; s < slot_names_.size() && part.optimizer->has_state(); ++s) {
      const absl::Span<const float> slot = part.optimizer->slot(static_cast<int>(s));
      std::shared_ptr<LentBuffer> values = LentBuffer::Create(static_cast<int64_t>(slot.size()));
      if (values == nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat("no memory for ", slot.size() * sizeof(float), " bytes of state"));
      }
      absl::c_copy(slot, values->data());
      state->pieces.push_back({slot_names_[s], part.chunk, std::move(values)});
    }
    part.release();
  }
  exported_ = state;
  exported_step_ = step;
  return state;
}

absl::Status StateKeeper::Clear() {
  exported_.reset();
  for (const Part& part : parts_) {
    GS_RETURN_IF_ERROR(part.acquire());
    part.optimizer->ClearState();
    part.release();
  }
  return absl::OkStatus();
}

absl::Status StateKeeper::Import(absl::string_view name, ChunkId id, const Payload& payload) {
  const auto slot = absl::c_find(slot_names_, name);
  if (slot == slot_names_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state \"", name, "\": the plan's optimizer has no such slot"));
  }
  const auto part = std::partition_point(parts_.begin(), parts_.end(), [id](const Part& p) {
    return std::make_pair(p.chunk.bucket, p.chunk.slot) < std::make_pair(id.bucket, id.slot);
  });
  if (part == parts_.end() || !(part->chunk == id)) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer state \"", name, "\": bucket ",
                                                   id.bucket, " slot ", id.slot,
                                                   " is no chunk of this server"));
  }
  MutexLock lock(&mutex_);
  if (imported_ == 0) GS_RETURN_IF_ERROR(Clear());
  ++imported_;
  GS_RETURN_IF_ERROR(part->acquire());
  const absl::Span<float> values =
      part->optimizer->mutable_slot(static_cast<int>(slot - slot_names_.begin()));
  FloatCopier to(values.data(), values.size());
  for (absl::Span<const char> bytes : payload.parts) {
    GS_RETURN_IF_ERROR(to.Consume(absl::string_view(bytes.data(), bytes.size())));
  }
  GS_RETURN_IF_ERROR(to.Finish());
  part->release();
  return absl::OkStatus();
}

absl::Status StateKeeper::Finish(int64_t step, size_t pieces) {
  MutexLock lock(&mutex_);
  const size_t imported = std::exchange(imported_, 0);
  if (step < 0 || imported != pieces) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer state: expected ", pieces,
                                                   " pieces and a step of at least 0, found ",
                                                   imported, " and step ", step));
  }
  return imported == 0 ? Clear() : absl::OkStatus();
}

}  // namespace gradsync
