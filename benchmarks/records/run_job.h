// The job that a record is about: words on one side, enums (core/plan/job_spec.h) on the other.
// Pure functions, thread-safe.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_RUN_JOB_H_
#define GRADSYNC_BENCHMARKS_RECORDS_RUN_JOB_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "benchmarks/options/placed_job.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// What a record's words say. A word that is missing, or that only another library knows, stands for
// what most jobs have: a ring, no link of ours, an update at the worker, bsp, no codec.
JobSpec SpecOfWords(absl::string_view topology, absl::string_view link, absl::string_view update,
                    absl::string_view consistency, absl::string_view compression);

// Of a proto::Run or a proto::WorkerMetrics.
template <typename Record>
JobSpec SpecOf(const Record& record) {
  return SpecOfWords(record.topology(), record.link(), record.update(), record.consistency(),
                     record.compression());
}

PlacedJob JobOf(const proto::Run& run);

// fp32 where the record does not say.
Precision PrecisionOf(const proto::Run& run);

// Writes what SpecOf() reads, into any message that has these words.
template <typename Record>
void SetKind(const JobSpec& spec, Record* record) {
  record->set_topology(TopologyName(spec.topology));
  record->set_link(LinkName(spec.link));
  record->set_update(UpdateSiteName(spec.update));
  record->set_consistency(ConsistencyName(spec.consistency));
  record->set_compression(CodecName(spec.codec));
}

// Writes what JobOf() reads of it.
void SetArrangement(const Arrangement& arrangement, proto::Run* run);

// Writes what else JobOf() reads: how many processes are where.
void SetPlaced(const PlacedJob& job, proto::Run* run);

// A backend, in the words of records.
struct BackendWords {
  std::string topology;
  std::string link;
  std::string update;

  std::string Text() const {
    return absl::StrCat(topology, link.empty() ? "" : absl::StrCat(" over ", link), ", update at ",
                        update);
  }
};

// Compares what was asked of a rank with what ran, as the record of that rank has it (which has it
// from the object, gradsync/join/backend_record.h). Links kAuto and kNone ask for none in
// particular. Errors: INTERNAL with both.
inline absl::Status CheckRanAsAsked(const JobSpec& asked, const BackendWords& ran) {
  const BackendWords words = {TopologyName(asked.topology), LinkName(asked.link),
                              UpdateSiteName(asked.update)};
  const bool any_link = asked.link == Link::kAuto || asked.link == Link::kNone;
  if (words.topology == ran.topology && words.update == ran.update &&
      (any_link || words.link == ran.link)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("expected a rank to run ", words.Text(), ", found ",
                                          ran.Text(), "; the measurement is not what it says"));
}

template <typename Record>
absl::Status CheckRanAsAsked(const JobSpec& asked, const Record& record) {
  return CheckRanAsAsked(asked, BackendWords{record.topology(), record.link(), record.update()});
}

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_RUN_JOB_H_
