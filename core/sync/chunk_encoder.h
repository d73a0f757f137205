// Where a worker makes the payloads of its chunks, and what it does not send stays.

#ifndef GRADSYNC_CORE_SYNC_CHUNK_ENCODER_H_
#define GRADSYNC_CORE_SYNC_CHUNK_ENCODER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/codec.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// Payloads for one plan, in the plan's codec. Without compression a payload is the floats
// themselves: nothing is allocated or copied. With it, each chunk has a place of its own in memory
// that lives as long as this object (half of the gradient's bytes for fp16 and bf16), so nothing is
// allocated per step but what the selection of topk needs; a chunk must not be encoded while its
// last payload is still being read, which the resolution of its bucket's handle says.
//
// Different chunks may be encoded at the same time; nothing blocks.
class ChunkEncoder {
 public:
  explicit ChunkEncoder(const Plan& plan);

  // The payload of a chunk's gradient (or, in a ring, of a sum): form GradientForm(). Under fp16
  // what is too large saturates (Overflow), but for gradients with a loss scale: there an infinity
  // is what tells the loss scaler to lower it.
  //
  // Under topk the gradient is first added to what earlier payloads of the chunk did not tell, and
  // what this one does not tell is kept: gradients sent so far + what is kept = gradients so far,
  // but for the rounding of the additions. Sources: Seide et al., "1-Bit Stochastic Gradient
  // Descent", Interspeech 2014; Stich et al., "Sparsified SGD with Memory", NeurIPS 2018. What is
  // kept has the scale of the gradient; when the inverse loss scale changes, it is rescaled.
  absl::Span<const char> EncodeGradient(ChunkId id, const float* grad, double inverse_loss_scale);

  // The payload of a finished chunk on its way round the ring: form ReturnedForm(). Not for topk,
  // whose means only servers send.
  absl::Span<const char> EncodeReturned(ChunkId id, const float* values, Returned returned);

  // Forgets what is kept, as a new object would.
  void Reset();

  // What is kept, by parameter, in units of the gradient without a loss scale; empty but for topk.
  // Both calls between steps.
  RankState Residuals() const;

  // Keeps that, and nothing else. `state` fits the plan, whose codec is topk.
  void SetResiduals(const RankState& state);

  // What is kept of a bucket under topk; empty otherwise. For tests.
  const std::vector<float>& residual(int bucket) const { return buckets_[bucket].residual; }

 private:
  struct Bucket {
    std::vector<char> payloads;
    std::vector<int64_t> begin;          // by slot: of its payload
    std::vector<float> residual;         // topk
    std::vector<double> residual_scale;  // topk, by slot: inverse loss scale of the residual
  };

  ElementRange Range(ChunkId id) const { return plan_.buckets()[id.bucket].layout.range(id.slot); }
  char* PlaceOf(ChunkId id) {
    return buckets_[id.bucket].payloads.data() + buckets_[id.bucket].begin[id.slot];
  }

  const Plan plan_;
  std::vector<Bucket> buckets_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_CHUNK_ENCODER_H_
