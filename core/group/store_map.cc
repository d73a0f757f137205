#include "core/group/store_map.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr int kMaxWorldSize = 1 << 16;

// Of ranks that are missing, in a message.
constexpr size_t kMaxNamed = 16;

absl::Status CheckKey(absl::string_view key) {
  if (key.size() <= StoreMap::kMaxKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("store: expected a key of at most ",
                                                 StoreMap::kMaxKeyBytes, " bytes, found one of ",
                                                 key.size()));
}

// A key in a message.
absl::string_view Short(absl::string_view key) { return key.substr(0, 200); }

// "ranks 2, 3 of 4 have not come to "key"": those who have `expired` had come. Where all had, they
// are whom the last ones wait for.
template <typename Parts>
std::string DescribeMissing(absl::string_view key, int world_size, const Parts& parts,
                            const std::set<int>& expired) {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size && missing.size() <= kMaxNamed; ++rank) {
    if (parts.count(rank) == 0 && expired.count(rank) == 0) missing.push_back(rank);
  }
  const bool all_came = missing.empty();
  if (all_came) missing.assign(expired.begin(), expired.end());
  const bool more = missing.size() > kMaxNamed;
  if (more) missing.resize(kMaxNamed);
  const bool one = missing.size() == 1 && !more;
  return absl::StrCat(one ? "rank " : "ranks ", absl::StrJoin(missing, ", "), more ? ", ..." : "",
                      " of ", world_size, one ? " has " : " have ",
                      all_came ? "come, and left, before all came" : "not come", " to \"", key,
                      "\" by the deadline");
}

}  // namespace

absl::Status StoreMap::Set(absl::string_view key, std::string value) {
  const Value shared = std::make_shared<const std::string>(std::move(value));
  std::map<Ticket, OnValue> woken;
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) return closed_;
    GS_RETURN_IF_ERROR(CheckRoom(key, shared->size()));
    Store(key, shared, &woken);
  }
  for (auto& [ticket, done] : woken) std::move(done)(shared);
  return absl::OkStatus();
}

absl::StatusOr<StoreMap::Value> StoreMap::SetIfAbsent(absl::string_view key, std::string value) {
  const Value shared = std::make_shared<const std::string>(std::move(value));
  std::map<Ticket, OnValue> woken;
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) return closed_;
    const auto found = values_.find(key);
    if (found != values_.end()) return found->second;
    GS_RETURN_IF_ERROR(CheckRoom(key, shared->size()));
    Store(key, shared, &woken);
  }
  for (auto& [ticket, done] : woken) std::move(done)(shared);
  return shared;
}

absl::Status StoreMap::CheckRoom(absl::string_view key, size_t value_bytes) const {
  GS_RETURN_IF_ERROR(CheckKey(key));
  const auto found = values_.find(key);
  if (found == values_.end() && values_.size() >= kMaxKeys) {
    return absl::ResourceExhaustedError(absl::StrCat("store: expected at most ", kMaxKeys,
                                                     " keys, found another: \"", Short(key), "\""));
  }
  return CheckBytes(key, found == values_.end() ? 0 : found->second->size(), value_bytes);
}

absl::Status StoreMap::CheckBytes(absl::string_view key, size_t before, size_t bytes) const {
  if (bytes > kMaxValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("store: \"", Short(key),
                                                   "\": expected a value of at most ",
                                                   kMaxValueBytes, " bytes, found ", bytes));
  }
  if (bytes_ - before + bytes <= max_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("store: \"", Short(key), "\": expected values of at most ", max_bytes_,
                   " bytes in all, found ", bytes_ - before, " and another of ", bytes));
}

absl::Status StoreMap::CheckWaits() const {
  if (places_.size() < kMaxWaits) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("store: expected at most ", kMaxWaits, " calls that wait, found another"));
}

void StoreMap::Store(absl::string_view key, Value value, std::map<Ticket, OnValue>* woken) {
  Value& place = values_[key];
  if (place != nullptr) bytes_ -= place->size();
  bytes_ += value->size();
  place = std::move(value);
  const auto waiting = getters_.find(key);
  if (waiting == getters_.end()) return;
  *woken = std::move(waiting->second);
  getters_.erase(waiting);
  for (const auto& [ticket, done] : *woken) places_.erase(ticket);
}

StoreMap::Ticket StoreMap::Get(absl::string_view key, OnValue done) {
  absl::StatusOr<Value> result;
  Ticket ticket = 0;
  {
    MutexLock lock(&mutex_);
    ticket = ++last_ticket_;
    const auto found = values_.find(key);
    if (closed_.ok() && found != values_.end()) {
      result = found->second;
    } else if (absl::Status bad = CheckKey(key); !bad.ok()) {
      result = std::move(bad);
    } else if (absl::Status failure = FailureOf(key); !failure.ok()) {
      result = std::move(failure);  // also of a store that closed because of it
    } else if (!closed_.ok()) {
      result = closed_;
    } else if (absl::Status full = CheckWaits(); !full.ok()) {
      result = std::move(full);
    } else {
      getters_[key].emplace(ticket, std::move(done));
      places_[ticket] = Place{std::string(key), /*gathering=*/false, /*rank=*/0};
      return ticket;
    }
  }
  std::move(done)(std::move(result));
  return ticket;
}

StoreMap::Ticket StoreMap::AllGather(absl::string_view key, int rank, int world_size,
                                     std::string value, OnValues done) {
  Part part;
  part.value = std::move(value);
  part.done = std::move(done);
  std::vector<OnValues> complete;
  Values values;
  absl::Status status;
  Ticket ticket = 0;
  {
    MutexLock lock(&mutex_);
    ticket = part.ticket = ++last_ticket_;
    status = FailureOf(key);
    if (status.ok()) status = closed_;
    if (status.ok()) status = Join(key, rank, world_size, &part, &complete, &values);
  }
  if (!status.ok()) std::move(part.done)(std::move(status));
  for (OnValues& each : complete) std::move(each)(values);
  return ticket;
}

absl::Status StoreMap::Join(absl::string_view key, int rank, int world_size, Part* part,
                            std::vector<OnValues>* complete, Values* values) {
  GS_RETURN_IF_ERROR(CheckKey(key));
  GS_RETURN_IF_ERROR(CheckBytes(key, 0, part->value.size()));
  GS_RETURN_IF_ERROR(CheckWaits());
  if (world_size > kMaxWorldSize) {
    return absl::InvalidArgumentError(absl::StrCat("exchange \"", key,
                                                   "\": expected a world of at most ",
                                                   kMaxWorldSize, ", found ", world_size));
  }
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat("exchange \"", key, "\": expected a rank in 0..",
                                                   world_size - 1, ", found ", rank));
  }
  Gathering& gathering = gatherings_[key];
  if (gathering.parts.empty()) gathering.world_size = world_size;
  if (gathering.world_size != world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "exchange \"", key, "\": rank ", gathering.parts.begin()->first, " expects a world of ",
        gathering.world_size, ", rank ", rank, " one of ", world_size));
  }
  if (gathering.parts.count(rank) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange \"", key, "\": rank ", rank, " of ", world_size, " came twice"));
  }
  places_[part->ticket] = Place{std::string(key), /*gathering=*/true, rank};
  bytes_ += part->value.size();
  gathering.parts.emplace(rank, std::move(*part));
  gathering.expired.erase(rank);
  if (static_cast<int>(gathering.parts.size()) < world_size) return absl::OkStatus();

  std::vector<std::string> gathered;
  for (auto& [each, finished] : gathering.parts) {
    places_.erase(finished.ticket);
    bytes_ -= finished.value.size();
    gathered.push_back(std::move(finished.value));
    complete->push_back(std::move(finished.done));
  }
  *values = std::make_shared<const std::vector<std::string>>(std::move(gathered));
  gatherings_.erase(key);
  return absl::OkStatus();
}

void StoreMap::Drop(Ticket ticket, bool expired) {
  OnValue on_value;
  OnValues on_values;
  absl::Status status = absl::CancelledError("the caller has left");
  {
    MutexLock lock(&mutex_);
    const auto found = places_.find(ticket);
    if (found == places_.end()) return;
    const Place place = std::move(found->second);
    places_.erase(found);
    if (place.gathering) {
      const auto gathering = gatherings_.find(place.key);
      std::map<int, Part>& parts = gathering->second.parts;
      if (expired) {
        const std::string obstacle = obstacle_ ? obstacle_() : "";
        status = absl::DeadlineExceededError(
            absl::StrCat(obstacle, obstacle.empty() ? "" : ": ",
                         DescribeMissing(place.key, gathering->second.world_size, parts,
                                         gathering->second.expired)));
        // Whoever came first gives up first, and is not what the others wait for.
        gathering->second.expired.insert(place.rank);
      }
      on_values = std::move(parts.at(place.rank).done);
      bytes_ -= parts.at(place.rank).value.size();
      parts.erase(place.rank);
      if (parts.empty()) gatherings_.erase(gathering);
    } else {
      if (expired) {
        status = absl::DeadlineExceededError(
            absl::StrCat("nobody has set \"", place.key, "\" by the deadline"));
      }
      const auto getters = getters_.find(place.key);
      on_value = std::move(getters->second.at(ticket));
      getters->second.erase(ticket);
      if (getters->second.empty()) getters_.erase(getters);
    }
  }
  if (on_value) std::move(on_value)(status);
  if (on_values) std::move(on_values)(status);
}

absl::StatusOr<StoreMap::Value> StoreMap::Fail(absl::string_view prefix, std::string reason) {
  const Value shared = std::make_shared<const std::string>(std::move(reason));
  Waits ended;
  {
    MutexLock lock(&mutex_);
    const auto earlier = failures_.find(std::string(prefix));
    if (earlier != failures_.end()) return earlier->second;
    if (!closed_.ok()) return closed_;
    GS_RETURN_IF_ERROR(CheckKey(prefix));
    if (failures_.size() >= kMaxFailures && failures_.count(std::string(prefix)) == 0) {
      return absl::ResourceExhaustedError(absl::StrCat("store: expected at most ", kMaxFailures,
                                                       " failures, found another: \"",
                                                       Short(prefix), "\""));
    }
    const auto [entry, first] = failures_.try_emplace(std::string(prefix), shared);
    if (!first) return entry->second;
    ended = TakeWaits(prefix);
  }
  ended.End(absl::AbortedError(*shared));
  return shared;
}

bool StoreMap::HasFailures() {
  MutexLock lock(&mutex_);
  return !failures_.empty();
}

absl::Status StoreMap::FailureOf(absl::string_view key) const {
  for (const auto& [prefix, reason] : failures_) {
    if (absl::StartsWith(key, prefix)) return absl::AbortedError(*reason);
  }
  return absl::OkStatus();
}

StoreMap::Waits StoreMap::TakeWaits(absl::string_view prefix) {
  Waits taken;
  absl::erase_if(getters_, [&](auto& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!absl::StartsWith(entry.first, prefix)) return false;
    for (auto& [ticket, done] : entry.second) {
      places_.erase(ticket);
      taken.getters.emplace(ticket, std::move(done));
    }
    return true;
  });
  absl::erase_if(gatherings_, [&](auto& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!absl::StartsWith(entry.first, prefix)) return false;
    for (auto& [rank, part] : entry.second.parts) {
      places_.erase(part.ticket);
      bytes_ -= part.value.size();
      taken.parts.emplace(part.ticket, std::move(part.done));
    }
    return true;
  });
  return taken;
}

void StoreMap::Waits::End(const absl::Status& status) {
  for (auto& [ticket, done] : getters) std::move(done)(status);
  for (auto& [ticket, done] : parts) std::move(done)(status);
}

void StoreMap::Close(absl::Status reason) {
  Waits ended;
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = reason;
    ended = TakeWaits("");
    values_.clear();
    bytes_ = 0;
  }
  ended.End(reason);
}

}  // namespace gradsync
