#include "core/group/liveness.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradsync {
namespace {

// A gap that was seen once, times this, is no surprise.
constexpr int kSurprise = 10;

// When a member stopped is known to some beats, those of others are no more exact.
constexpr int kBeatsOfDoubt = 3;

}  // namespace

std::string Beat::ToText() const {
  return absl::StrCat(number, " ", done, " ", working ? 1 : 0, " ", proven ? 1 : 0, " ",
                      left ? 1 : 0, " ", stopped_thread);
}

absl::optional<Beat> Beat::Parse(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
  Beat beat;
  if (parts.size() != 6 || !absl::SimpleAtoi(parts[0], &beat.number) ||
      !absl::SimpleAtoi(parts[1], &beat.done) ||
      !absl::SimpleAtoi(parts[5], &beat.stopped_thread)) {
    return absl::nullopt;
  }
  beat.working = parts[2] == "1";
  beat.proven = parts[3] == "1";
  beat.left = parts[4] == "1";
  return beat;
}

Liveness::Liveness(absl::Duration failure_timeout, MonotonicTime now)
    : timeout_(failure_timeout), interval_(BeatInterval(failure_timeout)), asked_(now) {}

int Liveness::Add(std::string name, Kind kind) {
  Member member;
  member.name = std::move(name);
  member.kind = kind;
  members_.push_back(std::move(member));
  return static_cast<int>(members_.size()) - 1;
}

void Liveness::OnBeat(int number, const Beat& beat, MonotonicTime now) {
  Member& member = members_[static_cast<size_t>(number)];
  if (member.known && (member.beat.left || beat.number <= member.beat.number)) return;
  const bool moved = !member.known || !beat.working || beat.done != member.beat.done;
  if (moved) {
    // Seen from beat to beat, a gap is at least this long. Silence is no part of it.
    if (member.known && member.beat.working) {
      member.longest_gap = std::max(member.longest_gap, member.heard - member.moved);
    }
    member.moved = now;
  }
  if (!member.known || member.beat.stopped_thread == 0 ||
      member.beat.stopped_thread != beat.stopped_thread) {
    member.held = now;
  }
  member.known = true;
  member.beat = beat;
  member.heard = now;
}

void Liveness::OnGone(int number) { members_[static_cast<size_t>(number)].gone = true; }

void Liveness::Shift(MonotonicTime now) {
  const absl::Duration late = now - asked_ - interval_;
  asked_ = now;
  // Less is a busy machine.
  if (late <= interval_) return;
  for (Member& member : members_) {
    member.heard = std::min(now, member.heard + late);
    member.moved = std::min(now, member.moved + late);
    member.held = std::min(now, member.held + late);
  }
}

absl::optional<std::string> Liveness::Judge(MonotonicTime now) {
  Shift(now);
  absl::optional<std::string> verdict = Lost(now);
  if (!verdict.has_value()) verdict = Held(now);
  return verdict.has_value() ? verdict : Stuck(now);
}

absl::optional<std::string> Liveness::Held(MonotonicTime now) const {
  for (const Member& member : members_) {
    if (member.beat.left || member.beat.stopped_thread == 0 || now - member.held < timeout_) {
      continue;
    }
    return absl::StrCat(member.name, " stuck: it is alive, but its thread ",
                        member.beat.stopped_thread, " has been stopped for ",
                        absl::FormatDuration(timeout_));
  }
  return absl::nullopt;
}

absl::optional<std::string> Liveness::Lost(MonotonicTime now) const {
  const Member* lost = nullptr;
  for (const Member& member : members_) {
    if (member.gone && !member.beat.left) {
      return absl::StrCat(member.name, " lost: its connection to the store of rank 0 has ended");
    }
    if (!member.known || member.beat.left || now - member.heard < timeout_) continue;
    if (members_[0].beat.stopped_thread != 0 && &member != &members_[0]) continue;
    if (lost == nullptr || member.heard < lost->heard) lost = &member;
  }
  if (lost == nullptr) return absl::nullopt;
  return absl::StrCat(lost->name, " lost: no sign of life for ", absl::FormatDuration(timeout_));
}

absl::Duration Liveness::Limit(const Member& member) const {
  return std::max(timeout_, kSurprise * member.longest_gap);
}

// Of those at work, who held up the others if anybody did.
const Liveness::Member* Liveness::Idlest(MonotonicTime now) const {
  const Member* stuck = nullptr;
  for (const Member& member : members_) {
    if (!member.known || member.beat.left) continue;
    if (now - member.heard > timeout_ / 2 || member.beat.stopped_thread != 0) return nullptr;
    if (!member.beat.working) continue;
    if (stuck == nullptr || member.moved < stuck->moved) stuck = &member;
  }
  if (stuck == nullptr) return nullptr;
  // Whoever of those that stopped then has done least held up the others.
  const MonotonicTime stopped = stuck->moved;
  for (const Member& member : members_) {
    if (!member.known || member.beat.left || !member.beat.working) continue;
    if (member.moved - stopped > kBeatsOfDoubt * interval_) continue;
    if (member.kind == stuck->kind && member.kind == Kind::kRank &&
        member.beat.done < stuck->beat.done) {
      stuck = &member;
    }
  }
  return stuck;
}

absl::optional<std::string> Liveness::Stuck(MonotonicTime now) const {
  const Member* const stuck = Idlest(now);
  if (stuck == nullptr || !stuck->beat.proven) return absl::nullopt;
  const absl::Duration limit = Limit(*stuck);
  if (now - stuck->moved < limit) return absl::nullopt;
  return absl::StrCat(stuck->name, " stuck: it is alive and at work, but has done nothing for ",
                      absl::FormatDuration(limit));
}

absl::optional<std::string> Liveness::Blame(MonotonicTime now) const {
  const Member* const stuck = Idlest(now);
  if (stuck == nullptr || now - stuck->moved < timeout_) return absl::nullopt;
  return absl::StrCat(stuck->name, " stuck: it is alive and at work, but has done nothing for ",
                      absl::FormatDuration(absl::Trunc(now - stuck->moved, absl::Seconds(1))),
                      ", and another one waited for it in vain");
}

}  // namespace gradsync
