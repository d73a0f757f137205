// The frames of the ring: how they are made, and what each rank may receive.

#ifndef GRADSYNC_ALLREDUCE_RING_FRAMES_H_
#define GRADSYNC_ALLREDUCE_RING_FRAMES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/codec.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "core/plan/step_options.h"
#include "proto/frame.pb.h"

namespace gradsync {

// A frame about one chunk. `hop` as in core/plan/ring_schedule.h.
proto::FrameHeader RingHeader(proto::FrameHeader::Kind kind, const StepOptions& step, ChunkId id,
                              int hop);

// Whether the sender's step is `step`, options included.
bool IsStep(const proto::FrameHeader& header, const StepOptions& step);

// "REDUCE of bucket 3 slot 7", for errors.
std::string DescribeFrame(const proto::FrameHeader& header);

// Chunks that `rank` owns and that are not empty, in order of bucket and slot.
std::vector<ChunkId> OwnedChunks(const Plan& plan, int rank);

// Whether a rank of the ring may receive this frame at all: a kind of the ring, a chunk of the plan
// that is not empty, the hop at which it passes `rank`, and `payload_bytes` as the chunk has in the
// plan's codec; `returned` is what GATHER frames bring. What came before is not looked at.
//   SQUARES  `slot` is the rank that it comes from, and the payload one double per chunk that this
//            rank owns
//   SHARD    a chunk's parameters, where owners alone keep them; the step is the gather's number
//   CREDIT   an own token that is reduced but whose result has to wait for the norm
// Errors: INVALID_ARGUMENT, saying what was expected and what came.
absl::Status CheckRingFrame(const Plan& plan, int rank, const proto::FrameHeader& header,
                            size_t payload_bytes, Returned returned = Returned::kMean);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_FRAMES_H_
