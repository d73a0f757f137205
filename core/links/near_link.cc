#include "core/links/near_link.h"

#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/links/in_process_stream.h"

namespace gradsync {
namespace {

// The addresses at which the link's listeners can be reached without a network.
class NearAddresses {
 public:
  void Add(const std::string& address) {
    MutexLock lock(&mutex_);
    addresses_.insert(address);
  }

  void Remove(const std::string& address) {
    MutexLock lock(&mutex_);
    addresses_.erase(address);
  }

  bool Has(const std::string& address) const {
    MutexLock lock(&mutex_);
    return addresses_.count(address) > 0;
  }

 private:
  mutable Mutex mutex_;
  std::set<std::string> addresses_ ABSL_GUARDED_BY(mutex_);
};

class NearListener : public StreamListener {
 public:
  NearListener(std::shared_ptr<NearAddresses> addresses, std::unique_ptr<StreamListener> far,
               std::unique_ptr<StreamListener> near)
      : addresses_(std::move(addresses)), far_(std::move(far)), near_(std::move(near)) {
    addresses_->Add(far_->address());
  }

  ~NearListener() override { addresses_->Remove(far_->address()); }

  std::string address() const override { return far_->address(); }

 private:
  const std::shared_ptr<NearAddresses> addresses_;
  const std::unique_ptr<StreamListener> far_;
  const std::unique_ptr<StreamListener> near_;
};

class NearLink : public StreamLink {
 public:
  NearLink(std::shared_ptr<StreamLink> far, StreamProof proof) : far_(std::move(far)) {
    InProcessLinkOptions options;
    options.proof = std::move(proof);
    near_ = NewInProcessLink(options);
  }

  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    GS_ASSIGN_OR_RETURN(std::unique_ptr<StreamListener> far, far_->Listen(address, acceptor));
    GS_ASSIGN_OR_RETURN(std::unique_ptr<StreamListener> near,
                        near_->Listen(far->address(), std::move(acceptor)));
    return std::make_unique<NearListener>(addresses_, std::move(far), std::move(near));
  }

  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address, int connection,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    StreamLink& link = addresses_->Has(address) ? *near_ : *far_;
    return link.Connect(address, connection, std::move(sink), deadline);
  }

 private:
  const std::shared_ptr<NearAddresses> addresses_ = std::make_shared<NearAddresses>();
  const std::shared_ptr<StreamLink> far_;
  std::shared_ptr<StreamLink> near_;
};

}  // namespace

std::shared_ptr<StreamLink> NewNearLink(std::shared_ptr<StreamLink> far, StreamProof proof) {
  return std::make_shared<NearLink>(std::move(far), std::move(proof));
}

}  // namespace gradsync
