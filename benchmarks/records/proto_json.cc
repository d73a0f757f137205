#include "benchmarks/records/proto_json.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "benchmarks/options/flag_checks.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/program/regular_file.h"
#include "google/protobuf/util/json_util.h"

namespace gradsync {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(status.ToString());
  return json;
}

absl::Status WriteJson(const std::string& path, const google::protobuf::Message& message) {
  GS_ASSIGN_OR_RETURN(const std::string json, ToJson(message));
  return WriteFileAtomically(path, json);
}

absl::Status ParseJson(absl::string_view json, absl::string_view what,
                       google::protobuf::Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), message, options);
  if (status.ok()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(what, ": expected JSON of ",
                                          message->GetDescriptor()->name(), ", found \"",
                                          json.substr(0, 40), "\": ", status.ToString()));
}

absl::Status ReadJson(const std::string& path, google::protobuf::Message* message) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("cannot read ", path, ": ", text.status().message()));
  }
  return ParseJson(*text, path, message);
}

absl::Status WriteRecords(const std::string& path, const proto::RunRecords& records) {
  if (path.empty()) return absl::OkStatus();
  const absl::Status written = WriteJson(path, records);
  return written.ok() ? written : Named("json", written);
}

}  // namespace gradsync
