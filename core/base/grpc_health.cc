#include "core/base/grpc_health.h"

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace gradsync {
namespace {

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";

// Who watches holds memory here, whoever it is.
constexpr size_t kMostWatchers = 32;

// A HealthCheckResponse: its field 1, the status, is SERVING (1) or NOT_SERVING (2).
grpc::ByteBuffer Response(bool serving) {
  const grpc::Slice slice(serving ? "\x08\x01" : "\x08\x02", 2);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

struct GrpcHealth::State {
  Mutex mutex;
  bool serving ABSL_GUARDED_BY(mutex) = false;
  std::set<Watch*> watchers ABSL_GUARDED_BY(mutex);
};

class GrpcHealth::Check : public grpc::ServerGenericBidiReactor {
 public:
  explicit Check(bool serving) : response_(Response(serving)) {
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void OnDone() override { delete this; }

 private:
  const grpc::ByteBuffer response_;
};

class GrpcHealth::Watch : public grpc::ServerGenericBidiReactor {
 public:
  explicit Watch(std::shared_ptr<State> state) : state_(std::move(state)) {
    MutexLock lock(&state_->mutex);
    if (state_->watchers.size() >= kMostWatchers) {
      finished_ = true;
      Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watch this server"));
      return;
    }
    state_->watchers.insert(this);
    Tell();
  }

  // Says what holds, unless that is what was said last, or is being said. Needs the mutex, of which
  // clang does not know that all watchers have the same.
  void Tell() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (writing_ || finished_ || (said_ && last_ == state_->serving)) return;
    writing_ = said_ = true;
    last_ = state_->serving;
    response_ = Response(last_);
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&state_->mutex);
    writing_ = false;
    if (ok) Tell();
  }

  // Also when the server shuts down.
  void OnCancel() override {
    MutexLock lock(&state_->mutex);
    if (!std::exchange(finished_, true)) Finish(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    {
      MutexLock lock(&state_->mutex);
      state_->watchers.erase(this);
    }
    delete this;
  }

 private:
  const std::shared_ptr<State> state_;
  grpc::ByteBuffer response_;
  bool writing_ ABSL_GUARDED_BY(state_->mutex) = false;
  bool finished_ ABSL_GUARDED_BY(state_->mutex) = false;
  bool said_ ABSL_GUARDED_BY(state_->mutex) = false;
  bool last_ ABSL_GUARDED_BY(state_->mutex) = false;
};

GrpcHealth::GrpcHealth() : state_(std::make_shared<State>()) {}

GrpcHealth::~GrpcHealth() = default;

void GrpcHealth::SetServing(bool serving) {
  MutexLock lock(&state_->mutex);
  state_->serving = serving;
  for (Watch* watcher : state_->watchers) watcher->Tell();
}

grpc::ServerGenericBidiReactor* GrpcHealth::Answer(const std::string& method) {
  if (method == kCheck) {
    MutexLock lock(&state_->mutex);
    return new Check(state_->serving);
  }
  if (method == kWatch) return new Watch(state_);
  return nullptr;
}

}  // namespace gradsync
