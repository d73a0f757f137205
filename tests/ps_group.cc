#include "tests/ps_group.h"

#include <utility>

#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "tests/forwarding_store.h"

namespace gradsync {

namespace {

// Takes everything but errors.
class MuteStore : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  absl::StatusOr<std::string> Fail(absl::string_view, absl::string_view reason, Deadline) override {
    return std::string(reason);
  }
};

}  // namespace

PsGroup::PsGroup(std::shared_ptr<StreamLink> link, int world_size, int servers, PsOptions base,
                 EventSink on_event)
    : base_(std::move(base)) {
  base_.link = link;
  base_.group.world_size = world_size;
  base_.group.run_id = "test";
  base_.group.store = NewInMemoryStore();
  base_.group.address = "127.0.0.1";
  base_.group.credentials = InsecureCredentials();
  for (int i = 0; i < servers; ++i) {
    ServerOptions options;
    options.link = link;
    options.run_id = "test";
    if (on_event) {
      options.on_event = [i, on_event](const ServerEvent& event) { on_event(i, event); };
    }
    servers_.push_back(*ParameterServer::Start(options));
    base_.servers.push_back(servers_.back()->address());
  }
}

std::unique_ptr<GradientSync> PsGroup::Worker(int rank) const {
  PsOptions options = base_;
  options.group.rank = rank;
  return *CreatePsGradientSync(options);
}

std::unique_ptr<GradientSync> PsGroup::Worker(int rank, Consistency consistency) const {
  PsOptions options = base_;
  options.group.rank = rank;
  options.consistency = consistency;
  return *CreatePsGradientSync(options);
}

std::unique_ptr<GradientSync> PsGroup::MuteWorker(int rank) const {
  PsOptions options = base_;
  options.group.rank = rank;
  options.group.store = std::make_shared<MuteStore>(base_.group.store);
  return *CreatePsGradientSync(options);
}

Plan UnevenPlan(int world_size) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  return *Plan::FromBuckets(
      {{"a", {3}, {1}, 0}, {"b", {5000}, {1}, 0}, {"c", {2049}, {1}, 0}, {"d", {40}, {1}, 0}},
      {{0}, {1}, {2}, {3}}, optimizer, world_size, /*chunk_bytes=*/512);
}

absl::Status RunStep(GradientSync& sync, const Plan& plan, int64_t number, double max_norm) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  step.max_norm = max_norm;
  return RunStep(sync, plan, step);
}

}  // namespace gradsync
