#include "benchmarks/options/flag_checks.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/program/byte_sizes.h"

namespace gradsync {

absl::Status CheckNames(absl::string_view flag, const std::vector<std::string>& found,
                        const std::vector<std::string>& known) {
  if (found.empty()) return FlagError(flag, absl::StrJoin(known, ", "), "");
  for (const std::string& name : found) {
    if (!Contains(known, name)) {
      return FlagError(flag, absl::StrCat("some of ", absl::StrJoin(known, ", ")), name);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAtLeast(absl::string_view flag, int64_t least, int64_t found) {
  if (found >= least) return absl::OkStatus();
  return FlagError(flag, absl::StrCat("at least ", least), absl::StrCat(found));
}

absl::Status CheckTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return FlagError("timeout", "more than 0s", absl::FormatDuration(timeout));
}

absl::Status CheckConnections(int connections) {
  if (connections >= 0 && connections <= 256) return absl::OkStatus();
  return FlagError("connections", "1 to 256, or 0 for the default", absl::StrCat(connections));
}

absl::Status CheckBandwidths(const std::vector<std::string>& bandwidths) {
  for (const std::string& bandwidth : bandwidths) {
    const absl::StatusOr<double> rate = ParseBandwidth(bandwidth);
    if (!rate.ok()) return Named("bandwidth", rate.status());
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> BatchPerWorker(int64_t batch_size, int64_t global_batch_size, int workers) {
  const auto refuse = [global_batch_size](absl::string_view expected) {
    return FlagError("global_batch_size", expected, absl::StrCat(global_batch_size));
  };
  GS_RETURN_IF_ERROR(CheckAtLeast("batch_size", 0, batch_size));
  GS_RETURN_IF_ERROR(CheckAtLeast("global_batch_size", 0, global_batch_size));
  if (global_batch_size == 0) return batch_size;
  if (batch_size > 0) return refuse("nothing beside --batch_size");
  if (global_batch_size % workers != 0) {
    return refuse(absl::StrCat("a multiple of ", workers, " workers"));
  }
  return global_batch_size / workers;
}

absl::Status Named(absl::string_view flag, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", status.message()));
}

absl::StatusOr<std::vector<int>> ParseCounts(absl::string_view flag,
                                             const std::vector<std::string>& texts, int most) {
  const std::string range = most == kNoMost ? "of at least 1" : absl::StrCat("from 1 to ", most);
  const std::string expected = absl::StrCat("numbers ", range, ", such as 1,2");
  if (texts.empty()) return FlagError(flag, expected, "");
  std::vector<int> counts;
  for (const std::string& text : texts) {
    int count = 0;
    if (!absl::SimpleAtoi(text, &count) || count < 1 || count > most) {
      return FlagError(flag, expected, text);
    }
    counts.push_back(count);
  }
  return counts;
}

absl::StatusOr<int64_t> ParseSize(absl::string_view flag, absl::string_view text) {
  absl::StatusOr<int64_t> bytes = ParseBytes(text);
  if (!bytes.ok()) return Named(flag, bytes.status());
  return bytes;
}

absl::StatusOr<int64_t> ParseChunkBytes(absl::string_view text) {
  if (text == "0") return 0;
  GS_ASSIGN_OR_RETURN(const int64_t bytes, ParseSize("chunk_bytes", text));
  if (bytes % 64 != 0) return FlagError("chunk_bytes", "0 (automatic) or a multiple of 64", text);
  return bytes;
}

}  // namespace gradsync
