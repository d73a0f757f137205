#ifndef GRADSYNC_BENCHMARKS_RECORDS_RAN_AS_ASKED_H_
#define GRADSYNC_BENCHMARKS_RECORDS_RAN_AS_ASKED_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// A backend, in the words of flags and records.
struct BackendWords {
  std::string topology;
  std::string link;  // "auto" and "" ask for none in particular
  std::string update;

  std::string Text() const {
    return absl::StrCat(topology, link.empty() ? "" : absl::StrCat(" over ", link), ", update at ",
                        update);
  }
};

// Compares what was asked of a rank with what ran, as the record of that rank has it (which has it
// from the object, join/backend_record.h).
// Errors: INTERNAL with both.
inline absl::Status CheckRanAsAsked(const BackendWords& asked, const BackendWords& ran) {
  const bool any_link = asked.link.empty() || asked.link == "auto";
  if (asked.topology == ran.topology && asked.update == ran.update &&
      (any_link || asked.link == ran.link)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("expected a rank to run ", asked.Text(), ", found ",
                                          ran.Text(), "; the measurement is not what it says"));
}

template <typename Record>
absl::Status CheckRanAsAsked(const BackendWords& asked, const Record& record) {
  return CheckRanAsAsked(asked, BackendWords{record.topology(), record.link(), record.update()});
}

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_RAN_AS_ASKED_H_
