#include "core/pipeline/local_stages.h"

#include "core/pipeline/tensor_inbox.h"

namespace gradsync {

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
