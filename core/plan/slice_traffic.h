// What the slices of a GPT (docs/internals/slices.md) send each other, as arithmetic: the exchanges in which
// forward and backward of each block meet, and their bytes over streams
// (worker/pipeline/slice_link.h). In shared memory two slices read as many of each other.

#ifndef GRADSYNC_CORE_PLAN_SLICE_TRAFFIC_H_
#define GRADSYNC_CORE_PLAN_SLICE_TRAFFIC_H_

#include <cstdint>
#include <vector>

namespace gradsync {

// The exchanges of worker/pipeline/slice_link.h.
enum class SliceCall { kSum, kSumPart, kGather };

struct SliceMeeting {
  SliceCall call = SliceCall::kSum;
  int64_t numbers = 0;  // of fp32, in the tensor that each slice brings
  // What share of the block's pass is computed before. Attention and MLP of a layer are taken as
  // halves.
  double at = 1;
};

// A GPT in slices. Its blocks are the embedding, the layers, and the head with the loss, which has
// no label smoothing here.
struct SlicedGpt {
  int slices = 1;
  bool split_sequence = false;  // --sequence_parallel
  int64_t layers = 0;
  int64_t width = 0;
  int64_t context = 0;  // tokens of a sample, a multiple of `slices` where sequences are split

  int64_t blocks() const { return layers + 2; }
};

// The meetings of a micro-batch of `samples` in block number `block`, in their order. Where a layer
// is recomputed, its backward begins with those of its forward.
std::vector<SliceMeeting> ForwardMeetings(const SlicedGpt& gpt, int64_t block, int64_t samples);
std::vector<SliceMeeting> BackwardMeetings(const SlicedGpt& gpt, int64_t block, int64_t samples);

// A meeting has so many rounds of messages. In each, every slice sends one to every other, and
// begins the next when it has all of theirs.
int SliceRounds(SliceCall call, int slices);

// Of the message from one slice to another.
int64_t SliceMessageBytes(const SliceMeeting& meeting, int slices, int round, int from, int to);

// What slice number `slice` sends in a micro-batch, and receives. `recomputes`: with
// --activation_checkpointing.
int64_t SliceTxBytes(const SlicedGpt& gpt, int64_t samples, bool recomputes, int slice);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_SLICE_TRAFFIC_H_
