#ifndef GRADSYNC_ALLREDUCE_C10D_STORE_ADAPTER_H_
#define GRADSYNC_ALLREDUCE_C10D_STORE_ADAPTER_H_

// Only where LibTorch's Gloo is; see gloo_gradient_sync.h.
#ifdef USE_C10D_GLOO

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace gradsync {

// Our rendezvous store as LibTorch's process groups want to see it, while they connect: set, get,
// wait and check. They use nothing else, and the rest is refused.
//
// As the base class demands, errors are exceptions (c10::Error, with the text of our status);
// whoever calls LibTorch catches them. Thread-safe.
class C10dStoreAdapter : public c10d::Store {
 public:
  // Every key gets `prefix`; calls give up at `deadline`, whatever timeout LibTorch asks for.
  C10dStoreAdapter(std::shared_ptr<KeyValueStore> store, std::string prefix, Deadline deadline);

  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

  // Refused.
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  int64_t getNumKeys() override;

 private:
  std::string Read(const std::string& key, Deadline deadline);

  const std::shared_ptr<KeyValueStore> store_;
  const std::string prefix_;
  const Deadline deadline_;
};

}  // namespace gradsync

#endif  // USE_C10D_GLOO

#endif  // GRADSYNC_ALLREDUCE_C10D_STORE_ADAPTER_H_
