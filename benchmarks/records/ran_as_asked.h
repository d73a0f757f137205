#ifndef GRADSYNC_BENCHMARKS_RECORDS_RAN_AS_ASKED_H_
#define GRADSYNC_BENCHMARKS_RECORDS_RAN_AS_ASKED_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/plan/job_spec.h"

namespace gradsync {

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

#endif  // GRADSYNC_BENCHMARKS_RECORDS_RAN_AS_ASKED_H_
