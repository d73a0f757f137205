// The flags of //worker as records: who set them, which of them do something beside the others, and
// under which topics they are shown.

#ifndef GRADSYNC_WORKER_EFFECTIVE_FLAGS_H_
#define GRADSYNC_WORKER_EFFECTIVE_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/program/flag_effects.h"
#include "core/program/flags.h"

namespace gradsync {

// All flags of a job with their values and who set them: what rank 0 prints, what a run's record
// keeps, and what can be given back as a job file.
struct EffectiveFlags {
  std::vector<FlagRecord> flags;            // all of //worker, by name, the launcher's words put in
  std::vector<FlagTopic> topics;            // the order in which files show them
  std::vector<std::string> without_effect;  // names of those that do nothing in this job
  bool print_all = false;
  std::string write_to;  // path of a job file that gives the same run; empty: none
};

// "flags by command line: model=mlp, steps=20; by job.yaml: lr=0.02": those that somebody set, by
// who did. One line, without its end. Pure.
std::string NotableFlags(const std::vector<FlagRecord>& flags);

// Each flag as a line of YAML with its origin, and whether it does nothing in this job, as a
// comment, by topic. Pure.
std::string AllFlags(const EffectiveFlags& flags);

// A job file: the values of all flags that say what the job is, but for those that do nothing in
// it. Those that say who a process is, where the others are, and where this run's records go, are
// left to whoever starts it again.
// Pure.
std::string JobFile(const EffectiveFlags& flags);

// Prints NotableFlags() if `brief`, or AllFlags() if that was asked for, and writes the job file.
// Errors: those of WriteFileAtomically().
absl::Status ShowFlags(const EffectiveFlags& flags, bool brief);

// The flags of //worker that have an effect only beside others: the one list of them. What two
// flags may not have together, or how large a value may be, is not in it: that is checked where the
// values are used.
std::vector<FlagEffect> WorkerFlagEffects();

// How --help of //worker groups its flags. Thread-safe.
std::vector<FlagTopic> WorkerTopics();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_EFFECTIVE_FLAGS_H_
