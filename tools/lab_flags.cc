#include "tools/lab_flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/string_view.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/program/byte_sizes.h"

ABSL_FLAG(gradsync::ByteSize, burst, gradsync::ByteSize{gradsync::NetworkLabOptions().burst_bytes},
          "emulated links: what one may pass at once after a pause; 0: what it carries in 5 ms, "
          "but at least 64KiB and at most 256KiB");
ABSL_FLAG(std::string, congestion_control, gradsync::NetworkLabOptions().congestion_control,
          "emulated hosts: TCP's congestion control");
ABSL_FLAG(std::string, tcp_rmem, gradsync::NetworkLabOptions().tcp_rmem,
          "emulated hosts: TCP's receive buffers, minimum, default and maximum, in bytes");
ABSL_FLAG(std::string, tcp_wmem, gradsync::NetworkLabOptions().tcp_wmem,
          "emulated hosts: TCP's send buffers, minimum, default and maximum, in bytes");

namespace gradsync {

NetworkLabOptions LabFromFlags() {
  NetworkLabOptions options;
  options.burst_bytes = absl::GetFlag(FLAGS_burst).bytes;
  options.congestion_control = absl::GetFlag(FLAGS_congestion_control);
  options.tcp_rmem = absl::GetFlag(FLAGS_tcp_rmem);
  options.tcp_wmem = absl::GetFlag(FLAGS_tcp_wmem);
  return options;
}

absl::Status CheckNoLab() {
  const NetworkLabOptions found = LabFromFlags();
  const NetworkLabOptions plain;
  const auto check = [](absl::string_view flag, const std::string& expected,
                        const std::string& value) {
    if (value == expected) return absl::OkStatus();
    return FlagError(flag, "none without --bandwidth, which makes links", value);
  };
  GS_RETURN_IF_ERROR(check("burst", AbslUnparseFlag(ByteSize{plain.burst_bytes}),
                           AbslUnparseFlag(ByteSize{found.burst_bytes})));
  GS_RETURN_IF_ERROR(
      check("congestion_control", plain.congestion_control, found.congestion_control));
  GS_RETURN_IF_ERROR(check("tcp_rmem", plain.tcp_rmem, found.tcp_rmem));
  return check("tcp_wmem", plain.tcp_wmem, found.tcp_wmem);
}

}  // namespace gradsync
