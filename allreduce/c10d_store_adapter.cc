#include "allreduce/c10d_store_adapter.h"

#ifdef USE_C10D_GLOO

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "c10/util/Exception.h"

namespace gradsync {

C10dStoreAdapter::C10dStoreAdapter(std::shared_ptr<KeyValueStore> store, std::string prefix,
                                   Deadline deadline)
    : store_(std::move(store)), prefix_(std::move(prefix)), deadline_(deadline) {}

void C10dStoreAdapter::set(const std::string& key, const std::vector<uint8_t>& value) {
  const absl::Status status = store_->Set(
      prefix_ + key, absl::string_view(reinterpret_cast<const char*>(value.data()), value.size()),
      deadline_);
  TORCH_CHECK(status.ok(), status.ToString());
}

std::string C10dStoreAdapter::Read(const std::string& key, Deadline deadline) {
  absl::StatusOr<std::string> value = store_->Get(prefix_ + key, std::min(deadline, deadline_));
  TORCH_CHECK(value.ok(), value.status().ToString());
  return *std::move(value);
}

std::vector<uint8_t> C10dStoreAdapter::get(const std::string& key) {
  const std::string value = Read(key, deadline_);
  return std::vector<uint8_t>(value.begin(), value.end());
}

bool C10dStoreAdapter::check(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    const absl::Status status = store_->Get(prefix_ + key, Deadline::Now()).status();
    if (absl::IsDeadlineExceeded(status)) return false;
    TORCH_CHECK(status.ok(), status.ToString());
  }
  return true;
}

void C10dStoreAdapter::wait(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) Read(key, deadline_);
}

void C10dStoreAdapter::wait(const std::vector<std::string>& keys,
                            const std::chrono::milliseconds& timeout) {
  const Deadline deadline =
      timeout == kNoTimeout ? deadline_ : Deadline::In(absl::Milliseconds(timeout.count()));
  for (const std::string& key : keys) Read(key, deadline);
}

int64_t C10dStoreAdapter::add(const std::string& key, int64_t) {
  TORCH_CHECK(false, "the store serves to connect a process group; it has no counters (add ", key,
              ")");
}

bool C10dStoreAdapter::deleteKey(const std::string& key) {
  TORCH_CHECK(false, "the store serves to connect a process group; it keeps its keys (delete ", key,
              ")");
}

int64_t C10dStoreAdapter::getNumKeys() {
  TORCH_CHECK(false, "the store serves to connect a process group; it does not count its keys");
}

}  // namespace gradsync

#endif  // USE_C10D_GLOO
