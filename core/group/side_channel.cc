#include "core/group/side_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr absl::string_view kAllGather = "AllGather";
constexpr absl::string_view kBroadcast = "Broadcast";
constexpr absl::string_view kSumDoubles = "SumDoubles";
constexpr absl::string_view kBarrier = "Barrier";

// The first part of a value is the method's name, how many bytes the value has, a line end, and the
// first piece. All ranks learn all sizes from it, so they know what follows.
std::string Pack(absl::string_view call, absl::string_view bytes, size_t piece) {
  return absl::StrCat(call, " ", bytes.size(), "\n", bytes.substr(0, piece));
}

// Takes the head from `part`. False when it has none.
bool TakeHead(std::string* part, std::string* call, size_t* size) {
  const size_t end = part->find('\n');
  if (end == std::string::npos) return false;
  const absl::string_view head = absl::string_view(*part).substr(0, end);
  const size_t space = head.find(' ');
  *call = std::string(head.substr(0, space));
  const bool good =
      space != absl::string_view::npos && absl::SimpleAtoi(head.substr(space + 1), size);
  part->erase(0, end + 1);
  return good;
}

}  // namespace

size_t SidePieces::Bytes(int givers, int world_size) const {
  const size_t copies = static_cast<size_t>(givers) * static_cast<size_t>(world_size);
  return std::clamp(visit / std::max<size_t>(copies, 1), least, std::max(least, most));
}

SideChannel::SideChannel(WorkerGroup group, absl::string_view name, SidePieces pieces)
    : group_(std::move(group)), name_(name), pieces_(pieces) {}

absl::StatusOr<std::vector<std::string>> SideChannel::Collect(absl::string_view call,
                                                              absl::string_view bytes,
                                                              Deadline deadline) {
  if (!failed_.ok()) return failed_;
  if (group_.world_size == 1) return std::vector<std::string>{std::string(bytes)};
  absl::StatusOr<std::vector<std::string>> all = CollectInPieces(call, bytes, deadline);
  if (!all.ok()) {
    failed_ = all.status();
    return failed_;
  }
  for (const std::string& each : *all) bytes_received_ += static_cast<int64_t>(each.size());
  bytes_sent_ += static_cast<int64_t>(bytes.size());
  return all;
}

absl::StatusOr<std::vector<std::string>> SideChannel::Visit(absl::string_view part,
                                                            Deadline deadline) {
  absl::StatusOr<std::vector<std::string>> parts =
      group_.store->AllGather(group_.Key(absl::StrCat("side/", name_, "/", visits_++)), group_.rank,
                              group_.world_size, part, deadline);
  if (!parts.ok()) return group_.InJob(parts.status());
  return parts;
}

absl::StatusOr<std::vector<std::string>> SideChannel::CollectInPieces(absl::string_view call,
                                                                      absl::string_view bytes,
                                                                      Deadline deadline) {
  const absl::Duration patience = deadline.remaining();
  const int64_t number = visits_;
  const int n = group_.world_size;
  size_t piece = pieces_.Bytes(n, n);
  GS_ASSIGN_OR_RETURN(std::vector<std::string> all, Visit(Pack(call, bytes, piece), deadline));
  std::vector<size_t> sizes(all.size());
  for (int rank = 0; rank < n; ++rank) {
    std::string theirs;
    const bool good = TakeHead(&all[rank], &theirs, &sizes[rank]);
    if (!good || theirs != call) {
      return absl::FailedPreconditionError(absl::StrCat("side channel \"", name_, "\", call ",
                                                        number, ": ", Name(group_.rank), " made ",
                                                        call, ", ", Name(rank), " made ", theirs));
    }
  }
  std::vector<size_t> had(all.size(), 0);
  for (;;) {
    int givers = 0;
    for (int rank = 0; rank < n; ++rank) {
      if (all[rank].size() != had[rank] + std::min(piece, sizes[rank] - had[rank])) {
        return absl::DataLossError(absl::StrCat(
            "side channel \"", name_, "\", call ", number, ": ", Name(rank), " said ", sizes[rank],
            " bytes, found pieces that do not add up to them after ", all[rank].size()));
      }
      had[rank] = all[rank].size();
      givers += had[rank] < sizes[rank];
    }
    if (givers == 0) return all;
    piece = pieces_.Bytes(givers, n);
    const absl::string_view mine = bytes.substr(had[group_.rank], piece);
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> parts, Visit(mine, Deadline::In(patience)));
    for (int rank = 0; rank < n; ++rank) all[rank] += parts[rank];
  }
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
