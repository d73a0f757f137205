#ifndef GRADSYNC_TRAIN_STEP_TIMES_H_
#define GRADSYNC_TRAIN_STEP_TIMES_H_

#include "absl/time/time.h"

namespace gradsync {

// Where one step's time went, in order; the parts add up to `total`.
//
// On a GPU `total` is the device's: from the end of the step before to the end of this one, by
// events on the compute stream (training_clock.h). `exposed` is the device's too: how long its
// compute stream stood still for this step's buckets. Data, forward and update are what the host
// took to queue them, while the device was some steps behind, and `backward` is the rest of
// `total`, zero where the host took longer than that.
struct StepTimes {
  absl::Duration total;
  absl::Duration data;      // waiting for the batch
  absl::Duration forward;   // model and loss
  absl::Duration backward;  // with the launches of buckets that become ready in it
  absl::Duration exposed;   // waiting for buckets after backward: communication that nothing hid
  absl::Duration update;    // the optimizer, when the worker runs it
};

}  // namespace gradsync

#endif  // GRADSYNC_TRAIN_STEP_TIMES_H_
