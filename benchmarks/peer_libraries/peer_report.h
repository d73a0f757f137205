#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_REPORT_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_REPORT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "benchmarks/peer_libraries/peer_contestants.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// What one contestant did, for one size and one number of ranks.
struct ContestantResult {
  Contestant contestant;
  // Of its first round, with what all rounds have in common; wrong is over all rounds, round_us of
  // each, and with a failure neither is looked at.
  proto::Run run;
};

// The records: time_us_* and rates over rounds; for ours, in peer_ratios, the ratio to every other
// library and ceiling and to the best peer (peer_ratio.h), which is also in peer_ratio. A
// contestant that failed has a record that says why. Pure function, thread-safe.
std::vector<proto::Run> PeerRecords(absl::Span<const ContestantResult> results);

// A table of one size and one number of ranks: a line for each contestant, beside it how many times
// as long it took as each of ours, with the ratio's interval; at the end the best peer. Times that
// fall apart into two clusters are marked with a ~. Below the table: the medians of both clusters,
// settings, notes and failures, and who was the best peer in how many rounds.
std::string PeerTable(absl::Span<const ContestantResult> results,
                      absl::Span<const proto::Run> records);

// A table of all sizes and numbers of ranks, a column for each: the median time of the first of
// ours that ran, in milliseconds, and of everybody else how many times as long it took, with an
// interval, of which the first line says what it is; the best peer last. Contestants stand in the
// order in which they come first. Empty when none of ours ran.
std::string PeerSummary(absl::Span<const std::vector<proto::Run>> cases);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_REPORT_H_
