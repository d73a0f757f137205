// The claim that everything rests on: n workers under any topology, update site and number of
// servers end with the bits of one process that computes n micro-batches one after the other and
// averages them in the plan's order.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "core/group/side_channel.h"
#include "core/links/in_process_stream.h"
#include "gradsync/ddp/ddp_engine.h"
#include "gtest/gtest.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "ps_server/server.h"
#include "tests/rank_threads.h"
#include "tests/reference.h"
#include "worker/data/augment.h"
#include "worker/data/open_dataset.h"
#include "worker/models/create_model.h"
#include "worker/models/loss.h"

namespace gradsync {
namespace {

constexpr int64_t kSteps = 4;
constexpr int64_t kBatch = 6;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

// Small buckets and chunks: several stripes, cut tails, and for many ranks empty chunks and a
// bucket below n elements.
DdpEngineOptions SmallPieces() {
  DdpEngineOptions options;
  options.plan.first_bucket_bytes = 64;
  options.plan.bucket_bytes = 100000;
  options.plan.chunk_bytes = 4096;
  OptimizerGroup group;
  group.momentum = 0.9;
  group.weight_decay = 5e-4;
  options.optimizer.groups = {group};
  return options;
}

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1 / static_cast<double>(number);
  return step;
}

std::shared_ptr<Model> NewModel() {
  ModelOptions options;
  options.name = "mlp";
  options.hidden = {24, 7};
  options.seed = 3;
  return *CreateModel(options);
}

// The loss of `rank`'s batch in `step`, ready for backward.
at::Tensor Loss(Model& model, int64_t step, int rank, int world_size) {
  static const auto* const data = new std::shared_ptr<const ImageDataset>(*OpenDataset(
      "synthetic", Split::kTrain, {/*seed=*/1, {}, /*skip_damaged=*/0, /*say=*/nullptr}));
  const ImageShape shape = (*data)->shape();
  const Augmenter augmenter(shape, AugmentOptions());
  at::Tensor images = at::empty({kBatch, shape.channels, shape.height, shape.width}, at::kFloat);
  at::Tensor labels = at::empty({kBatch}, at::kLong);
  std::vector<uint8_t> scratch(shape.bytes());
  for (int64_t i = 0; i < kBatch; ++i) {
    const int64_t index = ((step * world_size + rank) * kBatch + i) % (*data)->size();
    const ImageExample example = *(*data)->Get(index, absl::MakeSpan(scratch));
    augmenter.Evaluate(example.pixels, images.data_ptr<float>() + i * shape.bytes());
    labels.data_ptr<int64_t>()[i] = example.label;
  }
  return CrossEntropy(model.forward(images), labels);
}

// The parameters, flat, in the plan's places.
FlatValues ParametersOf(const Model& model, const Plan& plan) {
  FlatValues flat;
  for (const BucketPlan& bucket : plan.buckets()) flat.emplace_back(bucket.numel, 0.0f);
  const auto named = model.named_parameters();
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
      const at::Tensor& tensor = named[plan.tensors()[placed.tensor].name];
      std::memcpy(flat[b].data() + placed.offset, tensor.data_ptr<float>(), 4 * tensor.numel());
    }
  }
  return flat;
}

// One process, n micro-batches per step. The plan is the one that a rank of the group made.
FlatValues TrainAlone(const Plan& plan) {
  const int n = plan.world_size();
  const std::shared_ptr<Model> model = NewModel();
  ReferenceOptimizer optimizer(plan);
  FlatValues params = ParametersOf(*model, plan);
  auto named = model->named_parameters();
  for (int64_t step = 1; step <= kSteps; ++step) {
    std::vector<FlatValues> gradients;
    for (int rank = 0; rank < n; ++rank) {
      model->zero_grad();
      Loss(*model, step, rank, n).backward();
      FlatValues& flat = gradients.emplace_back();
      for (size_t b = 0; b < plan.buckets().size(); ++b) {
        flat.emplace_back(plan.buckets()[b].numel, 0.0f);
        for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
          const at::Tensor grad = named[plan.tensors()[placed.tensor].name].grad();
          std::memcpy(flat[b].data() + placed.offset, grad.data_ptr<float>(), 4 * grad.numel());
        }
      }
    }
    optimizer.Apply(Step(step), ReferenceMean(plan, gradients, 1), &params);
    for (size_t b = 0; b < plan.buckets().size(); ++b) {
      for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
        at::Tensor& tensor = named[plan.tensors()[placed.tensor].name];
        std::memcpy(tensor.data_ptr<float>(), params[b].data() + placed.offset, 4 * tensor.numel());
      }
    }
  }
  return params;
}

// What a group of n ranks, as threads, ends with.
struct GroupResult {
  Plan plan;
  std::vector<FlatValues> params;   // by rank
  std::vector<std::string> hashes;  // by rank
};

struct Topology {
  std::string name;  // "ring" or "ps"
  std::string link;  // "grpc" (by its in-process stand-in) or "shm"
  int servers = 0;
  UpdateSite site = UpdateSite::kWorker;
};

class Group {
 public:
  Group(const Topology& topology, int world_size)
      : topology_(topology), world_size_(world_size), link_(NewInProcessLink()) {
    for (int i = 0; i < topology.servers; ++i) {
      ServerOptions options;
      options.link = link_;
      servers_.push_back(*ParameterServer::Start(options));
    }
  }

  GroupResult Train() {
    GroupResult result;
    result.params.resize(world_size_);
    result.hashes.resize(world_size_);
    RunRanks(world_size_, [&](int rank) { TrainRank(rank, &result); });
    return result;
  }

 private:
  absl::StatusOr<std::unique_ptr<GradientSync>> CreateSync(const WorkerGroup& group) {
    if (topology_.name == "ring" && topology_.link == "shm") {
      ShmRingOptions options;
      options.group = group;
      options.update_site = topology_.site;
      return CreateShmRingGradientSync(options);
    }
    if (topology_.name == "ring") {
      RingOptions options;
      options.group = group;
      options.link = link_;
      options.update_site = topology_.site;
      return CreateRingGradientSync(options);
    }
    PsOptions options;
    options.group = group;
    options.link = link_;
    options.update_site = topology_.site;
    options.windows = topology_.link == "shm";
    for (const auto& server : servers_) options.servers.push_back(server->address());
    return CreatePsGradientSync(options);
  }

  void TrainRank(int rank, GroupResult* result) {
    WorkerGroup group;
    group.rank = rank;
    group.world_size = world_size_;
    group.run_id = "equivalence";
    group.store = store_;
    group.address = "127.0.0.1";
    group.credentials = InsecureCredentials();
    auto sync = CreateSync(group);
    ASSERT_TRUE(sync.ok()) << sync.status();
    SideChannel side_channel(group, "test");
    const std::shared_ptr<Model> model = NewModel();
    auto ddp = DdpEngine::Create(model, sync->get(), &side_channel, SmallPieces());
    ASSERT_TRUE(ddp.ok()) << ddp.status();
    for (int64_t step = 1; step <= kSteps; ++step) {
      ASSERT_EQ((*ddp)->BeginStep(Step(step)), absl::OkStatus());
      Loss(*model, step, rank, world_size_).backward();
      ASSERT_EQ((*ddp)->FinishStep(Soon()), absl::OkStatus());
    }
    if (rank == 0) result->plan = (*ddp)->plan();
    result->params[rank] = ParametersOf(*model, (*ddp)->plan());
    result->hashes[rank] = (*ddp)->ParamsSha256();
    EXPECT_EQ((*sync)->Shutdown(Soon()), absl::OkStatus());
  }

  const Topology topology_;
  const int world_size_;
  const std::shared_ptr<StreamLink> link_;
  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
  std::vector<std::unique_ptr<ParameterServer>> servers_;
};

std::vector<Topology> AllTopologies() {
  std::vector<Topology> all;
  for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    for (const char* link : {"grpc", "shm"}) {
      all.push_back({"ring", link, 0, site});
      for (int servers : {1, 2, 3}) all.push_back({"ps", link, servers, site});
    }
  }
  return all;
}

class EquivalenceTest : public testing::TestWithParam<int> {};

TEST_P(EquivalenceTest, EveryTopologyEndsWithTheBitsOfOneProcess) {
  const int world_size = GetParam();
  at::set_num_threads(1);
  FlatValues expected;
  std::string hash;
  for (const Topology& topology : AllTopologies()) {
    SCOPED_TRACE(absl::StrCat(topology.name, " over ", topology.link, " servers ", topology.servers,
                              " update at ",
                              topology.site == UpdateSite::kOwner ? "owner" : "worker"));
    const GroupResult result = Group(topology, world_size).Train();
    ASSERT_FALSE(HasFailure());
    if (expected.empty()) {
      ASSERT_GT(result.plan.buckets().size(), 2u);
      expected = TrainAlone(result.plan);
      hash = result.hashes[0];
    }
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_TRUE(result.params[rank] == expected) << "rank " << rank;
      EXPECT_EQ(result.hashes[rank], hash) << "rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, EquivalenceTest, testing::Values(1, 2, 3, 4, 5, 8));

}  // namespace
}  // namespace gradsync
