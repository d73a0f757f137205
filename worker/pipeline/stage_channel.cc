#include "worker/pipeline/stage_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"

namespace gradsync {

absl::Status TensorInbox::Put(Neighbour from, const TensorKey& key, at::Tensor tensor) {
  MutexLock lock(&mutex_);
  if (!tensors_.emplace(Place(from, key), std::move(tensor)).second) {
    return absl::InvalidArgumentError(absl::StrCat(DescribeKey(key), " has come twice"));
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

bool TensorInbox::Has(Neighbour from, const TensorKey& key) {
  MutexLock lock(&mutex_);
  return tensors_.count({from, key}) > 0;
}

absl::Status TensorInbox::AwaitLocked(absl::FunctionRef<bool()> look,
                                      absl::FunctionRef<std::string()> what, Deadline deadline) {
  absl::optional<PatientDeadline> patience;  // what is here already needs no clock
  for (bool late = false;;) {
    if (!failed_.ok()) return failed_;
    if (look()) return absl::OkStatus();
    if (!patience.has_value()) patience.emplace(deadline);
    if (late && patience->Passed()) {
      return absl::DeadlineExceededError(absl::StrCat(what(), " did not come"));
    }
    late = changed_.WaitWithDeadline(&mutex_, patience->next_look());
  }
}

absl::StatusOr<at::Tensor> TensorInbox::Take(Neighbour from, const TensorKey& key,
                                             Deadline deadline) {
  MutexLock lock(&mutex_);
  auto found = tensors_.end();
  GS_RETURN_IF_ERROR(AwaitLocked(
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        found = tensors_.find({from, key});
        return found != tensors_.end();
      },
      [&] { return DescribeKey(key); }, deadline));
  at::Tensor tensor = std::move(found->second);
  tensors_.erase(found);
  return tensor;
}

absl::StatusOr<TensorInbox::Neighbour> TensorInbox::AwaitEither(const TensorKey& from_before,
                                                                const TensorKey& from_behind,
                                                                Deadline deadline) {
  MutexLock lock(&mutex_);
  Neighbour from = Neighbour::kBehind;
  GS_RETURN_IF_ERROR(AwaitLocked(
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        const bool behind = tensors_.count({Neighbour::kBehind, from_behind}) > 0;
        from = behind ? Neighbour::kBehind : Neighbour::kBefore;
        return behind || tensors_.count({Neighbour::kBefore, from_before}) > 0;
      },
      [&] {
        return absl::StrCat(DescribeKey(from_behind), ", and ", DescribeKey(from_before), ",");
      },
      deadline));
  return from;
}

void TensorInbox::Fail(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (!failed_.ok()) return;
  failed_ = status;
  tensors_.clear();
  changed_.SignalAll();
}

absl::Status TensorInbox::WaitForFailure(Deadline deadline) {
  MutexLock lock(&mutex_);
  while (failed_.ok() && !changed_.WaitWithDeadline(&mutex_, deadline)) {
  }
  return failed_;
}

class LocalStages::Channel : public StageChannel {
 public:
  Channel(LocalStages* all, int stage, int stages) : all_(all), stage_(stage), stages_(stages) {}

  int stage() const override { return stage_; }
  int stages() const override { return stages_; }

  // Without the graph, which is this stage's.
  void Send(Neighbour to, const TensorKey& key, const at::Tensor& tensor) override {
    const bool behind = to == Neighbour::kBehind;
    Channel& other = *all_->channels_[behind ? stage_ + 1 : stage_ - 1];
    const absl::Status status =
        other.inbox().Put(behind ? Neighbour::kBefore : Neighbour::kBehind, key, tensor.detach());
    if (!status.ok()) all_->Fail(status);
  }

  absl::StatusOr<at::Tensor> Receive(Neighbour from, const TensorKey& key,
                                     Deadline deadline) override {
    return inbox_.Take(from, key, deadline);
  }

  bool IsHere(Neighbour from, const TensorKey& key) override { return inbox_.Has(from, key); }

  absl::StatusOr<Neighbour> AwaitEither(const TensorKey& from_before, const TensorKey& from_behind,
                                        Deadline deadline) override {
    return inbox_.AwaitEither(from_before, from_behind, deadline);
  }

  TensorInbox& inbox() { return inbox_; }

 private:
  LocalStages* const all_;
  const int stage_;
  const int stages_;
  TensorInbox inbox_;
};

LocalStages::LocalStages(int count) {
  for (int s = 0; s < count; ++s) channels_.push_back(std::make_unique<Channel>(this, s, count));
}

LocalStages::~LocalStages() = default;

StageChannel& LocalStages::channel(int stage) { return *channels_[stage]; }

void LocalStages::Fail(const absl::Status& reason) {
  for (const std::unique_ptr<Channel>& channel : channels_) {
    channel->inbox().Fail(reason);
  }
}

}  // namespace gradsync
