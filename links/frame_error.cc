#include "links/frame_error.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace gradsync {

proto::FrameHeader FailedHeader(const absl::Status& error) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::FAILED);
  header.mutable_error()->set_code(static_cast<int>(error.code()));
  header.mutable_error()->set_message(std::string(error.message()));
  return header;
}

absl::Status FailureIn(const proto::FrameHeader& header) {
  const int code = header.error().code();
  if (code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::Status(static_cast<absl::StatusCode>(code), header.error().message());
  }
  return absl::UnknownError(absl::StrCat("FAILED: expected the code of an error, found ", code,
                                         " with \"", header.error().message(), "\""));
}

}  // namespace gradsync
