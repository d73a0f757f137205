#include "core/links/frame_error.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/utf8.h"

namespace gradsync {
namespace {

// A message is for people, and may quote what a peer said.
constexpr size_t kMaxMessageBytes = 4096;

// It travels as a string of protobuf, in which a peer takes UTF-8 only, and may have been cut
// before.
std::string Clipped(absl::string_view message) { return AsUtf8(message, kMaxMessageBytes); }

}  // namespace

proto::FrameHeader FailedHeader(const absl::Status& error) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::FAILED);
  header.mutable_error()->set_code(static_cast<int>(error.code()));
  header.mutable_error()->set_message(Clipped(error.message()));
  return header;
}

absl::Status FailureIn(const proto::FrameHeader& header) {
  const int code = header.error().code();
  if (code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::Status(static_cast<absl::StatusCode>(code), Clipped(header.error().message()));
  }
  return absl::UnknownError(absl::StrCat("FAILED: expected the code of an error, found ", code,
                                         " with \"", Clipped(header.error().message()), "\""));
}

}  // namespace gradsync
