// nccl-tests' all_reduce_perf beside sync_bench's ring over NCCL.

#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_NCCL_TESTS_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_NCCL_TESTS_H_

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/exchange/sync_bench_options.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// What all_reduce_perf printed for one size: the only line of it that is no comment has size,
// count, type, operation and root, then time (the mean over iterations, each until the GPU is
// done), algbw, busbw and wrong elements, out of place and in place, which is taken. Has versions
// where it says them. Errors: DATA_LOSS saying what was expected and found; also where it did not
// verify. Thread-safe.
absl::StatusOr<proto::Run> ParseNcclTests(absl::string_view output);

// Whether it does what this case does: one all-reduce over NCCL between the GPUs 0, 1, ...
bool ComparesWithNcclTests(const SyncBenchCase& bench_case);

// Runs it. A Run of the library "nccl_tests"; its time over that of `measured` becomes the
// peer_ratio of `measured`. Blocks for at most the case's timeout, and until `interrupt` is not 0.
// Errors: NOT_FOUND saying how to get it when the program is not there; those of RunProgram() and
// ParseNcclTests().
absl::StatusOr<proto::Run> MeasureNcclTests(const std::string& program,
                                            const SyncBenchCase& bench_case,
                                            const std::atomic<int>* interrupt,
                                            proto::Run* measured);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_EXCHANGE_NCCL_TESTS_H_
