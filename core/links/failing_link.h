// A link over which no peer can be reached, for tests.

#ifndef GRADSYNC_CORE_LINKS_FAILING_LINK_H_
#define GRADSYNC_CORE_LINKS_FAILING_LINK_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// Connect() ends with `why`, at once. Where `listens` is not null peers may connect by that one.
class FailingLink : public StreamLink {
 public:
  explicit FailingLink(absl::Status why, std::shared_ptr<StreamLink> listens = nullptr)
      : why_(std::move(why)), listens_(std::move(listens)) {}

  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    if (listens_ == nullptr) return absl::UnavailableError("nobody listens");
    return listens_->Listen(address, std::move(acceptor));
  }
  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string&, int,
                                                       std::shared_ptr<FrameSink>,
                                                       Deadline) override {
    return why_;
  }

 private:
  const absl::Status why_;
  const std::shared_ptr<StreamLink> listens_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_FAILING_LINK_H_
