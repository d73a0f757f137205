// nccl-tests' all_reduce_perf beside sync_bench's ring over NCCL.

#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_NCCL_TESTS_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_NCCL_TESTS_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/exchange/sync_bench_options.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// Of one size, in place.
struct NcclTestsResult {
  double bytes = 0;
  double time_us = 0;  // mean over iterations, each until the GPU is done
  double algbw_gb_per_s = 0;
  double busbw_gb_per_s = 0;
  double wrong = 0;
  std::string version;       // of nccl-tests, "2.19.6"; empty if it does not say
  std::string nccl_version;  // "2.28.9"; likewise
};

// What all_reduce_perf printed for one size: the only line of it that is no comment has size,
// count, type, operation and root, then time, algbw, busbw and wrong elements, out of place and in
// place. Errors: DATA_LOSS saying what was expected and found; also where it did not verify.
// Thread-safe.
absl::StatusOr<NcclTestsResult> ParseNcclTests(absl::string_view output);

// The arguments for the bytes, ranks and iterations of a case of which `bytes` were exchanged: one
// process with a GPU per rank (it would need MPI for more), fp32 sums, verified, each iteration
// waited for like ours.
std::vector<std::string> NcclTestsCommand(const std::string& program,
                                          const SyncBenchCase& bench_case, double bytes);

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
