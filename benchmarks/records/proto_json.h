// Messages of proto/ as JSON text and back, and the files that have them.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_PROTO_JSON_H_
#define GRADSYNC_BENCHMARKS_RECORDS_PROTO_JSON_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "google/protobuf/message.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// JSON with the fields' own names, zeros included, indented, ending in a newline.
// Errors: INTERNAL when protobuf refuses (a string that is not UTF-8).
absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message);

// ToJson() of a message as a file, whole or not at all (core/base/write_file.h).
// Errors: those of ToJson(); the errno's code, naming the path.
absl::Status WriteJson(const std::string& path, const google::protobuf::Message& message);

// Replaces `*message` by what `json` says; `what` is named in errors. Fields that the message lacks
// are ignored, so that records of newer versions can be read.
// Errors: DATA_LOSS when it is not JSON or does not fit the message.
absl::Status ParseJson(absl::string_view json, absl::string_view what,
                       google::protobuf::Message* message);

// ParseJson() of a file, which is named in errors.
// Errors: also the errno's code for a file that cannot be read.
absl::Status ReadJson(const std::string& path, google::protobuf::Message* message);

// Each of `texts`, which an error calls "metrics of `what` 0", "metrics of `what` 1", ...
template <typename Message>
absl::Status ParseMetrics(const std::vector<std::string>& texts, absl::string_view what,
                          std::vector<Message>* parsed) {
  for (size_t i = 0; i < texts.size(); ++i) {
    GS_RETURN_IF_ERROR(
        ParseJson(texts[i], absl::StrCat("metrics of ", what, " ", i), &parsed->emplace_back()));
  }
  return absl::OkStatus();
}

// Replaces the file that a benchmark's --json names by `records`; no file without a path. Called
// before anything is measured, too, so that a path that cannot be written is found in time.
// Thread-safe for different paths.
// Errors: INVALID_ARGUMENT naming --json.
absl::Status WriteRecords(const std::string& path, const proto::RunRecords& records);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_PROTO_JSON_H_
