// Reads back what perfetto_file.h writes, and refuses what Perfetto would draw wrong.

#ifndef GRADSYNC_WORKER_TRACE_TRACE_READER_H_
#define GRADSYNC_WORKER_TRACE_TRACE_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

struct ReadSlice {
  std::string process;  // "worker 0"
  std::string lane;     // "compute", "to worker 1 (2)"
  std::string name;
  int64_t step = 0;
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t flow = 0;
};

// All slices and instants. Errors: DATA_LOSS for bytes that are no trace, a lane that was not
// described, an end without a begin or the other way round, and slices of a lane that overlap.
absl::StatusOr<std::vector<ReadSlice>> ReadTrace(absl::string_view bytes);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRACE_TRACE_READER_H_
