#ifndef GRADSYNC_CORE_BASE_STRAGGLER_H_
#define GRADSYNC_CORE_BASE_STRAGGLER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Which worker computes how much slower than it could, in which step: what --straggler says.
//
//   ""                              nobody
//   RANK:FACTOR                     that rank's compute takes FACTOR times as long in every step
//   random:SEED:PROBABILITY:FACTOR  so does that of each rank in each step with this probability
//
// The random kind is a function of seed, rank and step alone (a 64-bit mix of the three, the
// finalizer of Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): the
// same under every topology, link and restart, and known before the job runs.
//
// A value; const methods are thread-safe. Nothing blocks.
class Straggler {
 public:
  // Nobody.
  Straggler() = default;

  // Errors: INVALID_ARGUMENT, worded as that of a flag --straggler, when the text has another form,
  // the rank is negative, the factor below 1 or not finite, or the probability not within 0 to 1.
  static absl::StatusOr<Straggler> Parse(absl::string_view text);

  // Errors: INVALID_ARGUMENT as above when the rank is none of 0 to workers - 1.
  absl::Status CheckWorkers(int workers) const;

  // How many times as long `rank` computes in step `step`; 1 or more.
  double Factor(int rank, int64_t step) const;

  // As it was given to Parse().
  const std::string& text() const { return text_; }
  bool nobody() const { return text_.empty(); }
  bool random() const { return !nobody() && rank_ < 0; }

 private:
  std::string text_;
  int rank_ = -1;  // -1: random
  uint64_t seed_ = 0;
  double probability_ = 0;
  double factor_ = 1;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_STRAGGLER_H_
