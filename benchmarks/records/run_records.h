#ifndef GRADSYNC_BENCHMARKS_RECORDS_RUN_RECORDS_H_
#define GRADSYNC_BENCHMARKS_RECORDS_RUN_RECORDS_H_

#include <string>

#include "absl/status/status.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// Replaces the file that a benchmark's --json names by `records`; no file without a path. Called
// before anything is measured, too, so that a path that cannot be written is found in time.
// Thread-safe for different paths.
// Errors: INVALID_ARGUMENT naming --json.
absl::Status WriteRecords(const std::string& path, const proto::RunRecords& records);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_RUN_RECORDS_H_
