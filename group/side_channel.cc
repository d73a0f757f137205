#include "group/side_channel.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

constexpr absl::string_view kAllGather = "AllGather";
constexpr absl::string_view kBroadcast = "Broadcast";
constexpr absl::string_view kSumDoubles = "SumDoubles";
constexpr absl::string_view kBarrier = "Barrier";

// A part on the wire is the method's name, a line end, and the bytes.
std::string Pack(absl::string_view call, absl::string_view bytes) {
  return absl::StrCat(call, "\n", bytes);
}

}  // namespace

SideChannel::SideChannel(WorkerGroup group, absl::string_view name)
    : group_(std::move(group)), name_(name) {}

absl::StatusOr<std::vector<std::string>> SideChannel::Collect(absl::string_view call,
                                                              absl::string_view bytes,
                                                              Deadline deadline) {
  if (!failed_.ok()) return failed_;
  if (group_.world_size == 1) return std::vector<std::string>{std::string(bytes)};
  const int64_t number = calls_++;
  absl::StatusOr<std::vector<std::string>> parts =
      group_.store->AllGather(group_.Key(absl::StrCat("side/", name_, "/", number)), group_.rank,
                              group_.world_size, Pack(call, bytes), deadline);
  if (!parts.ok()) {
    failed_ = group_.InJob(parts.status());
    return failed_;
  }
  for (int rank = 0; rank < group_.world_size; ++rank) {
    std::string& part = (*parts)[rank];
    const size_t end = part.find('\n');
    const absl::string_view theirs = absl::string_view(part).substr(0, end);
    if (end == std::string::npos || theirs != call) {
      failed_ = absl::FailedPreconditionError(
          absl::StrCat("side channel \"", name_, "\", call ", number, ": ", Name(group_.rank),
                       " made ", call, ", ", Name(rank), " made ", theirs));
      return failed_;
    }
    part.erase(0, end + 1);
    bytes_received_ += static_cast<int64_t>(part.size());
  }
  bytes_sent_ += static_cast<int64_t>(bytes.size());
  return parts;
}

absl::StatusOr<std::vector<std::string>> SideChannel::AllGather(absl::string_view bytes,
                                                                Deadline deadline) {
  return Collect(kAllGather, bytes, deadline);
}

absl::StatusOr<std::string> SideChannel::Broadcast(absl::string_view bytes, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(std::vector<std::string> parts,
                      Collect(kBroadcast, group_.rank == 0 ? bytes : "", deadline));
  return std::move(parts[0]);
}

absl::StatusOr<std::vector<double>> SideChannel::SumDoubles(const std::vector<double>& values,
                                                            Deadline deadline) {
  const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                values.size() * sizeof(double));
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> parts, Collect(kSumDoubles, bytes, deadline));
  std::vector<double> sums(parts[0].size() / sizeof(double));
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].size() != sums.size() * sizeof(double)) {
      failed_ = absl::InvalidArgumentError(
          absl::StrCat("side channel \"", name_, "\": rank 0 sums ", sums.size(), " doubles, rank ",
                       rank, " ", parts[rank].size() / sizeof(double)));
      return failed_;
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      double value;
      std::memcpy(&value, parts[rank].data() + i * sizeof(double), sizeof(double));
      // Not added to zero, which would lose the sign of a sum of negative zeros.
      sums[i] = rank == 0 ? value : sums[i] + value;
    }
  }
  return sums;
}

absl::Status SideChannel::Barrier(Deadline deadline) {
  return Collect(kBarrier, "", deadline).status();
}

}  // namespace gradsync
