// Jobs on GPUs, the fake ones, whose parameters owners on the host keep: with the flags and the job
// as //worker has them, in ranks that are threads. The bits are those of plain data parallelism on
// CPUs.

#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "core/gpu/fake_gpu.h"
#include "core/links/server_link.h"
#include "core/plan/job_spec.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "ps_server/server.h"
#include "tests/rank_threads.h"
#include "worker/job.h"
#include "worker/parallel_flags.h"

ABSL_DECLARE_FLAG(std::string, offload);
ABSL_DECLARE_FLAG(int, zero);

namespace gradsync {
namespace {

constexpr int kRanks = 2;

struct Case {
  Topology topology;
  Link link;
  std::string device = "cuda:0";
  std::string offload = "none";
  int zero = 0;
};

// Of a rank.
struct Outcome {
  proto::WorkerMetrics metrics;
  std::shared_ptr<FakeGpu> gpu;  // null: none
};

JobOptions JobOf(const Case& c, int rank) {
  JobOptions job;
  job.trainer.model.name = "mlp";
  job.trainer.model.hidden = {8, 96, 96, 96, 96, 96, 96, 96, 96, 96};
  job.trainer.steps = 3;
  job.trainer.batch_size = 4;
  job.trainer.evaluate = true;
  job.trainer.optimizer.groups.emplace_back();
  job.trainer.optimizer.groups[0].momentum = 0.9;
  job.trainer.recipe.base = 0.05;
  job.trainer.plan.bucket_bytes = job.trainer.plan.first_bucket_bytes = 32 << 10;
  job.join.sync.job.topology = c.topology;
  job.join.sync.job.link = c.link;
  job.join.device.device = c.device;
  job.join.meet.rank = rank;
  job.join.meet.world_size = kRanks;
  job.log_every = 0;
  job.metrics_json = absl::StrCat(testing::TempDir(), "/rank", rank, ".json");
  return job;
}

proto::WorkerMetrics Read(const std::string& file) {
  std::stringstream json;
  json << std::ifstream(file).rdbuf();
  proto::WorkerMetrics metrics;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json.str(), &metrics).ok());
  return metrics;
}

// Of all ranks, which must end well.
std::vector<Outcome> Train(const Case& c) {
  absl::SetFlag(&FLAGS_zero, c.zero);
  absl::SetFlag(&FLAGS_offload, c.offload);
  std::vector<std::unique_ptr<ParameterServer>> servers;
  ServerOptions server;
  server.link = NewServerLink();
  for (int i = 0; c.topology == Topology::kPs && i < 2; ++i) {
    servers.push_back(ParameterServer::Start(server).value());
  }
  std::promise<std::string> store;
  const std::shared_future<std::string> address = store.get_future().share();
  std::vector<Outcome> outcomes(kRanks);
  RunRanks(kRanks, [&](int rank) {
    JobOptions job = JobOf(c, rank);
    for (const auto& each : servers) job.join.sync.servers.push_back(each->address());
    if (c.device != "cpu") {
      job.join.sync.gpu = outcomes[rank].gpu = std::make_shared<FakeGpu>();
    }
    bool told = false;
    job.join.meet.master = "127.0.0.1:0";
    job.join.meet.on_store = [&](const std::string& at) {
      told = true;
      store.set_value(at);
      return absl::OkStatus();
    };
    if (rank != 0) job.join.meet.master = address.get();
    absl::Status flags = ShardingFromFlags(&job);
    if (flags.ok()) flags = OffloadFromFlags(&job);
    EXPECT_TRUE(flags.ok()) << flags;
    const std::string file = job.metrics_json;
    const JobOutcome outcome = RunJob(std::move(job));
    if (rank == 0 && !told) store.set_value("127.0.0.1:1");  // nobody is there
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    if (outcome.status.ok()) outcomes[rank].metrics = Read(file);
  });
  return outcomes;
}

class OffloadTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    reference_ = new proto::WorkerMetrics(Train({Topology::kRing, Link::kGrpc, "cpu"})[0].metrics);
  }
  static void TearDownTestSuite() { delete reference_; }

  static void ExpectReference(const std::vector<Outcome>& outcomes) {
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.metrics.params_sha256(), reference_->params_sha256());
      EXPECT_EQ(outcome.metrics.update(), "owner");
      EXPECT_EQ(outcome.gpu->calls("SgdStep"), 0);
      EXPECT_EQ(outcome.gpu->live_objects(), 0);
      EXPECT_EQ(outcome.gpu->unpinned_copies(), 0);
    }
    EXPECT_EQ(outcomes[0].metrics.test_loss(), reference_->test_loss());
    EXPECT_EQ(outcomes[0].metrics.test_accuracy(), reference_->test_accuracy());
  }

  static const proto::WorkerMetrics* reference_;  // plain data parallelism on CPUs
};

const proto::WorkerMetrics* OffloadTest::reference_ = nullptr;

const std::vector<Case> Backends() {
  return {{Topology::kRing, Link::kGrpc},
          {Topology::kRing, Link::kShm},
          {Topology::kPs, Link::kGrpc},
          {Topology::kPs, Link::kShm}};
}

TEST_F(OffloadTest, ParametersOnTheHostTrainWithTheBitsOfTheCpuInLessMemoryOfTheGpu) {
  ASSERT_EQ(reference_->params_sha256().size(), 64u);
  for (Case c : Backends()) {
    SCOPED_TRACE(absl::StrCat(TopologyName(c.topology), " over ", LinkName(c.link)));
    c.offload = "optimizer";
    const std::vector<Outcome> optimizer = Train(c);
    ExpectReference(optimizer);
    c.offload = "parameters";
    const std::vector<Outcome> parameters = Train(c);
    ExpectReference(parameters);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_LT(2 * parameters[rank].gpu->most_device_bytes(),
                optimizer[rank].gpu->most_device_bytes());
    }
  }
}

TEST_F(OffloadTest, ShardedJobsOnGpusOverLinksOfTheHostAreTheSame) {
  std::vector<size_t> bytes;
  for (int zero : {1, 2, 3}) {
    Case c = Backends()[0];
    c.zero = zero;
    const std::vector<Outcome> outcomes = Train(c);
    ExpectReference(outcomes);
    bytes.push_back(outcomes[0].gpu->most_device_bytes());
  }
  Case c = Backends()[0];
  c.offload = "parameters";
  EXPECT_EQ(Train(c)[0].gpu->most_device_bytes(), bytes[2]);
  EXPECT_LT(bytes[2], bytes[1]);
  EXPECT_LT(bytes[1], bytes[0]);
}

}  // namespace
}  // namespace gradsync
