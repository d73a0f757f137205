// Plans as messages, for servers, which have no parameters of their own to build them from; and steps
// and chunks in frame headers, for both ends of a stream.

#ifndef GRADSYNC_CORE_PLAN_PLAN_PROTO_H_
#define GRADSYNC_CORE_PLAN_PLAN_PROTO_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "proto/frame.pb.h"
#include "proto/plan.pb.h"

namespace gradsync {

// PlanFromProto(PlanToProto(plan)) has the same Describe() and fingerprint().
proto::Plan PlanToProto(const Plan& plan);

// Checks everything, so that the message may come from anybody: sizes whose product overflows,
// indices out of range and cuts into absurdly many chunks are refused before anything of that size
// is allocated. Errors: INVALID_ARGUMENT naming the field, what was expected and what came.
absl::StatusOr<Plan> PlanFromProto(const proto::Plan& message);

// Steps and chunks in frame headers, for both ends of a stream.

inline void SetStep(const StepOptions& step, proto::FrameHeader* header) {
  header->set_step(static_cast<uint64_t>(step.step));
  header->set_lr(step.lr);
  header->set_max_norm(step.max_norm);
  header->set_inverse_loss_scale(step.inverse_loss_scale);
}

// What a peer sent: may be anything, also negative.
inline StepOptions StepOf(const proto::FrameHeader& header) {
  StepOptions step;
  step.step = static_cast<int64_t>(header.step());
  step.lr = header.lr();
  step.max_norm = header.max_norm();
  step.inverse_loss_scale = header.inverse_loss_scale();
  return step;
}

inline void SetChunk(ChunkId id, proto::FrameHeader* header) {
  header->set_bucket(static_cast<uint32_t>(id.bucket));
  header->set_slot(static_cast<uint32_t>(id.slot));
}

// What a peer sent: may be anything, also negative.
inline ChunkId ChunkOf(const proto::FrameHeader& header) {
  return {static_cast<int>(header.bucket()), static_cast<int>(header.slot())};
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_PLAN_PROTO_H_
