// Compression of gradients on the wire: which form (core/base/chunk_codec.h) the payloads of a run
// have.
//
//   none      fp32 both ways.
//   fp16      Gradients and means in IEEE binary16; sums in fp32. A finite gradient, sum or mean
//             beyond 65504 is sent as 65504 with its sign, so that no rank trains on infinities or
//             NaNs that only the wire made; with a loss scale (StepOptions::inverse_loss_scale
//             other than 1) gradients and sums become infinite instead, which is what the scaler
//             looks for. Infinities and NaNs that come in stay what they are.
//   bf16      The same in bfloat16.
//   topk:R    Parameter servers only. Of each chunk of E elements a worker pushes the
//             k = ceil(R * E) (computed in double) that are largest in absolute value, of equal
//             ones those that come first; what it does not send it keeps and adds to the next
//             step's gradient (error feedback). The mean of n such contributions has at most n * k
//             elements that are not zero, and min(n * k, E) entries come back: nothing is lost on
//             the way back. Where entries would take as many bytes as the whole chunk or more, the
//             whole chunk is sent, in fp32.
//
// Who rounds when (docs/use/compression.md says why):
//   ring      A sum is rounded each time it is sent: decoded, added to in fp32, encoded again.
//   ps        A worker's gradient is rounded once; the server adds in fp32.
//   both      The finished mean is rounded once, by its owner, whoever updates: under kWorker it
//             is what all ranks end with, owner included; under kOwner it is what the optimizer
//             is given, and the *parameters come back in fp32*, because an update is often smaller
//             than half a unit in the last place of a 16-bit parameter. So both update sites end
//             with the same bits. Ring and ps do not, once anything is rounded.
//   never     Broadcasts of parameters, optimizer state, norms: fp32 or double as ever.
//
// Part of the plan and its fingerprint, so ranks and servers that disagree find out in Bind().
// Pure functions of their arguments; values copy freely.

#ifndef GRADSYNC_CORE_PLAN_CODEC_H_
#define GRADSYNC_CORE_PLAN_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/chunk_codec.h"

namespace gradsync {

struct Codec {
  enum class Kind { kNone, kFp16, kBf16, kTopK };

  Kind kind = Kind::kNone;
  double ratio = 0;  // kTopK: R, above 0 and at most 1

  bool compresses() const { return kind != Kind::kNone; }
  bool sparse() const { return kind == Kind::kTopK; }

  friend bool operator==(Codec a, Codec b) { return a.kind == b.kind && a.ratio == b.ratio; }
};

// "none", "fp16", "bf16" or "topk:0.01"; ParseCodec() gives the codec back. An empty text is none.
// Errors: INVALID_ARGUMENT with what was expected and found.
std::string CodecName(Codec codec);
absl::StatusOr<Codec> ParseCodec(absl::string_view text);

// What owners send back to the workers: the mean under kWorker, parameters under kOwner.
enum class Returned { kMean, kParameters };

// The payload of a gradient chunk on its way to its owner, or of a sum at a hop of a ring.
ChunkForm GradientForm(Codec codec, int64_t elements);

// The payload of a finished chunk on its way back. `world_size` is the number of contributions.
ChunkForm ReturnedForm(Codec codec, int64_t elements, int world_size, Returned returned);

// values = the mean as the workers get it: what its owner does with it first.
void RoundMean(Codec codec, float* values, int64_t n);

// For backends that exchange fp32 only. Errors: INVALID_ARGUMENT when `codec` compresses, with
// `reason`, why they do not.
absl::Status CheckUncompressed(Codec codec, absl::string_view reason);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_CODEC_H_
