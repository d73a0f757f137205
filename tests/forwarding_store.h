// A store that is another one, but for what a test overrides.

#ifndef GRADSYNC_TESTS_FORWARDING_STORE_H_
#define GRADSYNC_TESTS_FORWARDING_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"

namespace gradsync {

class ForwardingStore : public KeyValueStore {
 public:
  explicit ForwardingStore(std::shared_ptr<KeyValueStore> store) : store_(std::move(store)) {}

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    return store_->Set(key, value, deadline);
  }
  absl::StatusOr<std::string> SetIfAbsent(absl::string_view key, absl::string_view value,
                                          Deadline deadline) override {
    return store_->SetIfAbsent(key, value, deadline);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    return store_->Get(key, deadline);
  }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank,
                                                     int world_size, absl::string_view value,
                                                     Deadline deadline) override {
    return store_->AllGather(key, rank, world_size, value, deadline);
  }
  absl::StatusOr<std::string> Fail(absl::string_view prefix, absl::string_view reason,
                                   Deadline deadline) override {
    return store_->Fail(prefix, reason, deadline);
  }
  std::unique_ptr<Watcher> Watch(
      absl::string_view key, std::function<void(absl::StatusOr<std::string>)> callback) override {
    return store_->Watch(key, std::move(callback));
  }

 private:
  const std::shared_ptr<KeyValueStore> store_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_FORWARDING_STORE_H_
