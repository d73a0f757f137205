#ifndef GRADSYNC_WORKER_TRAIN_CHECKPOINT_OPTIONS_H_
#define GRADSYNC_WORKER_TRAIN_CHECKPOINT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"

namespace gradsync {

// What a job leaves behind while it trains, and what it starts from. The same on all ranks.
struct CheckpointOptions {
  std::string folder;        // of checkpoints (worker/checkpoint/checkpoint_folder.h); empty: none
  int64_t every_steps = 0;   // one after every so many steps;
  int64_t every_epochs = 0;  // or epochs; both 0: only after the last step, which always has one
  int keep = 3;              // how many stay, besides `best`
  bool best = false;         // evaluates each, and lets DIR/best name the most accurate, by the
                             // average of the weights where the job keeps one

  enum class Resume {
    kNone,  // a new job, which the folder must not have checkpoints of another for
    kAuto,  // from the newest whole checkpoint of `folder`; a new job if that has none
    kPath,  // from resume_path: a checkpoint, or a folder of them, whose newest whole one is meant
  };
  Resume resume = Resume::kNone;
  std::string resume_path;

  // Weights that a new job starts from: a file as worker/checkpoint/read_weights.h has it. Not read
  // when the job resumes. Empty: the model's own.
  std::string init_from;
  std::string init_key;   // which of its dicts, and
  std::string init_skip;  // which of the weights not: both as WeightsWanted has them

  // What is resumed from or named by init_from is evaluated, and nothing is trained or written:
  // weights are taken whatever job they are from, and there must be some.
  bool weights_only = false;

  // Flag -> value, of all that must be as it was when a job resumes.
  std::map<std::string, std::string> job;
  // The same of the data, by split: "train", "test" where it is used. And how --data names their kind
  // (KindOfData()), by which checkpoints from before identities were kept are compared.
  std::map<std::string, DataIdentity> data;
  std::string data_kind;
  // That compute on this rank, TrainerOptions::threads; with another number than before sums may be
  // rounded otherwise, which is said and no more. 0: nobody asks.
  int threads = 0;

  // Told on rank 0 what was resumed or written, and what could not be removed, in a line each. May
  // be null.
  std::function<void(absl::string_view line)> say;

  bool wanted() const { return !folder.empty() || resume != Resume::kNone; }
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_CHECKPOINT_OPTIONS_H_
