// What tests of streams need: a sink that remembers, and memory on loan that counts how often it
// came back.

#ifndef GRADSYNC_CORE_LINKS_STREAM_TEST_UTIL_H_
#define GRADSYNC_CORE_LINKS_STREAM_TEST_UTIL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"

namespace gradsync {

std::string Flatten(const Payload& payload);

// Bytes that differ from place to place and from seed to seed.
std::string Pattern(size_t bytes, uint32_t seed);

// Counts loans out and back. Thread-safe. Await functions give up after a minute and return false.
class LoanBook {
 public:
  // A frame that lends `payload`, which must outlive the loan. `slot` numbers it.
  OutgoingFrame Lend(absl::string_view payload, uint32_t slot = 0, bool urgent = false);

  bool AwaitAllBack();
  int out() const;
  int back() const;
  bool came_back_twice() const;

 private:
  struct State {
    Mutex mutex;
    CondVar changed;
    int out ABSL_GUARDED_BY(mutex) = 0;
    int back ABSL_GUARDED_BY(mutex) = 0;
    bool twice ABSL_GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Remembers what it hears and checks that calls come one at a time. Thread-safe.
class RecordingSink : public FrameSink {
 public:
  struct Heard {
    proto::FrameHeader header;
    std::string payload;
  };

  // With `keep_owners`, payload owners live until DropOwners(). `on_frame` runs inside OnFrame(),
  // after the recording.
  explicit RecordingSink(bool keep_owners = false, std::function<void()> on_frame = nullptr)
      : keep_owners_(keep_owners), on_frame_(std::move(on_frame)) {}

  void OnFrame(const proto::FrameHeader& header, Payload payload) override;
  void OnClosed(absl::Status status) override;

  // Each gives up after a minute: false, or DEADLINE_EXCEEDED.
  bool AwaitFrames(size_t count);
  absl::Status AwaitClosed();

  std::vector<Heard> heard() const;
  bool closed() const;
  void DropOwners();
  // Calls that overlapped or came after OnClosed().
  int misplaced_calls() const { return misplaced_calls_; }

 private:
  const bool keep_owners_;
  const std::function<void()> on_frame_;
  std::atomic<int> calls_inside_{0};
  std::atomic<int> misplaced_calls_{0};
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Heard> heard_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const void>> owners_ ABSL_GUARDED_BY(mutex_);
  absl::optional<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
};

// Accepts everything; keeps stream and sink of each accepted stream. Thread-safe.
class Host {
 public:
  using SinkFactory = std::function<std::shared_ptr<RecordingSink>()>;

  explicit Host(SinkFactory new_sink = [] { return std::make_shared<RecordingSink>(); })
      : state_(std::make_shared<State>()) {
    state_->new_sink = std::move(new_sink);
  }

  StreamAcceptor acceptor();

  // The accepted streams in order of arrival; waits for the first `count`, at most a minute.
  std::vector<std::pair<std::shared_ptr<FrameStream>, std::shared_ptr<RecordingSink>>> Await(
      size_t count);

 private:
  struct State {
    SinkFactory new_sink;
    Mutex mutex;
    CondVar changed;
    std::vector<std::pair<std::shared_ptr<FrameStream>, std::shared_ptr<RecordingSink>>> accepted
        ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_;
};

// A link over which no peer can be reached, for tests.

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

#endif  // GRADSYNC_CORE_LINKS_STREAM_TEST_UTIL_H_
