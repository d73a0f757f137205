// What `compare` does when it is not told what to compare: two short parts that together say what
// the project is for, in less than three minutes on two cores.
//
//   1. On this machine alone: parameter servers and ring with two workers, over gRPC and shared
//      memory. There is no network, so this compares CPU time.
//   2. The same training on emulated hosts, at two bandwidths: three workers, the fewest for which
//      theory sees a difference, as a ring; with three servers beside them, on the same hosts,
//      which is the fair comparison (docs/compare/fairness.md); and with three servers on hosts of their
//      own, which is what three more machines gain.
//
// Pure functions, thread-safe.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_DEFAULT_COMPARISON_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_DEFAULT_COMPARISON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/comparison/compare_options.h"

namespace gradsync {

// Whether a command line of `compare` says nothing about which jobs to compare: it has no flags but
// those that say how (--rounds, --data, --lr, --seed, --timeout, --out, --json and the binaries)
// and --bandwidth.
bool AsksForDefault(int argc, const char* const* argv);

// Both parts, or without bandwidths the first. `asked_for` has what the command line said; its
// bandwidths are those of the second part.
std::vector<CompareOptions> MakeDefaultComparison(const CompareOptions& asked_for);

// The bandwidths that --bandwidth=`texts` asks for. "auto" is 250mbit and 400mbit in a default
// comparison, at which two cores are not the limit, and otherwise none; "none" or nothing is none.
// Errors: INVALID_ARGUMENT naming the flag when one of these words stands beside other values.
absl::StatusOr<std::vector<std::string>> ResolveBandwidths(const std::vector<std::string>& texts,
                                                           bool default_comparison);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_DEFAULT_COMPARISON_H_
