#include "core/group/key_value_store.h"

#include <utility>

#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/base/thread.h"
#include "core/group/store_map.h"

namespace gradsync {
namespace {

// Where one thread waits for a callback's result.
template <typename T>
class Slot {
 public:
  void Fill(absl::StatusOr<T> result) {
    MutexLock lock(&mutex_);
    result_ = std::move(result);
    filled_.SignalAll();
  }

  // False at the deadline.
  bool Await(Deadline deadline) {
    PatientDeadline patience(deadline);
    MutexLock lock(&mutex_);
    while (!result_.has_value()) {
      filled_.WaitWithDeadline(&mutex_, patience.next_look());
      if (!result_.has_value() && patience.Passed()) return false;
    }
    return true;
  }

  absl::StatusOr<T> Take() {
    MutexLock lock(&mutex_);
    return *std::move(result_);
  }

 private:
  Mutex mutex_;
  CondVar filled_;
  absl::optional<absl::StatusOr<T>> result_ ABSL_GUARDED_BY(mutex_);
};

// The slot's result, or what the map says of a wait that ends at the deadline.
template <typename T>
absl::StatusOr<T> AwaitResult(StoreMap& map, StoreMap::Ticket ticket, Slot<T>& slot,
                              Deadline deadline) {
  if (!slot.Await(deadline)) {
    map.Expire(ticket);
    slot.Await(Deadline::Never());
  }
  return slot.Take();
}

class InMemoryWatcher : public KeyValueStore::Watcher {
 public:
  InMemoryWatcher(std::shared_ptr<StoreMap> map, absl::string_view key,
                  std::function<void(absl::StatusOr<std::string>)> callback)
      : map_(std::move(map)) {
    ticket_ = map_->Get(key, [slot = slot_](absl::StatusOr<StoreMap::Value> value) {
      slot->Fill(std::move(value));
    });
    thread_ = Thread([slot = slot_, callback = std::move(callback)] {
      slot->Await(Deadline::Never());
      const absl::StatusOr<StoreMap::Value> value = slot->Take();
      if (value.ok()) return callback(**value);
      if (!absl::IsCancelled(value.status())) callback(value.status());
    });
  }

  ~InMemoryWatcher() override {
    map_->Cancel(ticket_);
    thread_.join();
  }

 private:
  const std::shared_ptr<StoreMap> map_;
  const std::shared_ptr<Slot<StoreMap::Value>> slot_ = std::make_shared<Slot<StoreMap::Value>>();
  StoreMap::Ticket ticket_;
  Thread thread_;
};

class InMemoryStore : public KeyValueStore {
 public:
  explicit InMemoryStore(std::shared_ptr<StoreMap> map) : map_(std::move(map)) {}

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline) override {
    return map_->Set(key, std::string(value));
  }

  absl::StatusOr<std::string> SetIfAbsent(absl::string_view key, absl::string_view value,
                                          Deadline) override {
    GS_ASSIGN_OR_RETURN(const StoreMap::Value found, map_->SetIfAbsent(key, std::string(value)));
    return *found;
  }

  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    Slot<StoreMap::Value> slot;
    const StoreMap::Ticket ticket =
        map_->Get(key, [&slot](absl::StatusOr<StoreMap::Value> value) { slot.Fill(value); });
    GS_ASSIGN_OR_RETURN(const StoreMap::Value value, AwaitResult(*map_, ticket, slot, deadline));
    return *value;
  }

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank,
                                                     int world_size, absl::string_view value,
                                                     Deadline deadline) override {
    Slot<StoreMap::Values> slot;
    const StoreMap::Ticket ticket =
        map_->AllGather(key, rank, world_size, std::string(value),
                        [&slot](absl::StatusOr<StoreMap::Values> values) { slot.Fill(values); });
    GS_ASSIGN_OR_RETURN(const StoreMap::Values values, AwaitResult(*map_, ticket, slot, deadline));
    return *values;
  }

  absl::StatusOr<std::string> Fail(absl::string_view prefix, absl::string_view reason,
                                   Deadline) override {
    GS_ASSIGN_OR_RETURN(const StoreMap::Value found, map_->Fail(prefix, std::string(reason)));
    return *found;
  }

  std::unique_ptr<Watcher> Watch(
      absl::string_view key, std::function<void(absl::StatusOr<std::string>)> callback) override {
    return std::make_unique<InMemoryWatcher>(map_, key, std::move(callback));
  }

 private:
  const std::shared_ptr<StoreMap> map_;
};

}  // namespace

std::shared_ptr<KeyValueStore> NewInMemoryStore() {
  return NewInMemoryStore(std::make_shared<StoreMap>());
}

std::shared_ptr<KeyValueStore> NewInMemoryStore(std::shared_ptr<StoreMap> map) {
  return std::make_shared<InMemoryStore>(std::move(map));
}

}  // namespace gradsync
