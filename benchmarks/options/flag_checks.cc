#include "benchmarks/options/flag_checks.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/flag_error.h"
#include "base/status_macros.h"
#include "benchmarks/options/byte_sizes.h"
#include "plan/consistency.h"

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

absl::Status CheckPlacements(const std::vector<std::string>& placements, bool emulated_hosts) {
  GS_RETURN_IF_ERROR(CheckNames("placement", placements, {"dedicated", "colocated", "mixed"}));
  for (const std::string& placement : placements) {
    if (placement == "dedicated" || emulated_hosts) continue;
    return FlagError("placement", "dedicated, or --bandwidth, which places servers on hosts",
                     placement);
  }
  return absl::OkStatus();
}

absl::Status NotPlaced(absl::string_view placement, absl::string_view workers) {
  return FlagError(
      "placement",
      absl::StrCat("at most as many --servers as --", workers, " for colocated, fewer for mixed"),
      placement);
}

absl::Status CheckLinksBetweenHosts(absl::string_view flag, const std::vector<std::string>& links) {
  if (Contains(links, "nccl")) {
    return FlagError(flag, "grpc, gloo or auto with --bandwidth, past which NCCL would go", "nccl");
  }
  if (Contains(links, "cuda_ipc")) {
    return FlagError(flag, "grpc, gloo or auto with --bandwidth, whose hosts share no GPU",
                     "cuda_ipc");
  }
  if (!Contains(links, "shm")) return absl::OkStatus();
  return FlagError(flag, "grpc, gloo or auto with --bandwidth, whose hosts share no memory", "shm");
}

absl::Status CheckConsistencies(const std::vector<std::string>& consistencies,
                                const std::vector<std::string>& topologies,
                                const std::vector<std::string>& updates,
                                const std::vector<std::string>& links,
                                const std::vector<std::string>& compressions) {
  if (consistencies.empty()) return FlagError("consistency", "some of bsp, ssp:S, asp", "");
  for (const std::string& text : consistencies) {
    const absl::StatusOr<Consistency> consistency = ParseConsistency(text);
    if (!consistency.ok()) return Named("consistency", consistency.status());
    if (consistency->bulk()) continue;
    const auto refuse = [&text](absl::string_view without) {
      return FlagError("consistency", absl::StrCat("bsp without ", without), text);
    };
    if (!Contains(topologies, "ps")) return refuse("ps among the topologies");
    if (!Contains(updates, "owner")) return refuse("owner among --update");
    if (!Contains(links, "auto") && !Contains(links, "grpc")) return refuse("grpc among the links");
    if (!Contains(compressions, "none")) return refuse("none among --compression");
  }
  return absl::OkStatus();
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

bool Contains(const std::vector<std::string>& values, absl::string_view value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace gradsync
