// What the transports count must be what core/plan/wire_traffic.h says, to the byte and to the
// message:
// for every topology, update site, number of workers and of servers, in steps and in broadcasts.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "core/group/key_value_store.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/tcp_stream.h"
#include "core/plan/codec.h"
#include "core/plan/cost_model.h"
#include "core/plan/wire_traffic.h"
#include "gtest/gtest.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "ps_server/server.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

constexpr int64_t kSteps = 2;

struct WireCase {
  std::string name;
  int workers = 1;
  std::vector<double> weights;  // of the servers; none: a ring
  UpdateSite site = UpdateSite::kWorker;
  std::string link = "in process";  // or "grpc", "tcp", "shm"
  std::string compression = "none";
};

// Tensors' sizes by bucket. Even: every chunk has the same size, for every n. Uneven: buckets below
// n chunks, cut tails, empty chunks, padding.
std::vector<Plan> Plans(int n, const std::string& compression) {
  const Codec codec = *ParseCodec(compression);
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  const auto tensor = [](std::string name, int64_t numel) {
    return TensorSpec{std::move(name), {numel}, {1}, 0};
  };
  return {*Plan::FromBuckets({tensor("a", 128 * n * 5), tensor("b", 128 * n)}, {{0}, {1}},
                             optimizer, n, /*chunk_bytes=*/512, codec),
          *Plan::FromBuckets({tensor("a", 3), tensor("b", 5000), tensor("c", 17), tensor("d", 2049),
                              tensor("e", 40)},
                             {{0}, {1, 2}, {3}, {4}}, optimizer, n, /*chunk_bytes=*/512, codec)};
}

NodeTraffic Counted(const WireStats& stats) {
  return {stats.tx_bytes, stats.rx_bytes, stats.tx_messages, stats.rx_messages};
}

NodeTraffic Counted(const ServerStats& stats) {
  return {stats.tx_bytes, stats.rx_bytes, stats.tx_messages, stats.rx_messages};
}

std::string Describe(const NodeTraffic& traffic) {
  return absl::StrCat("tx ", traffic.tx_bytes, " B in ", traffic.tx_messages, ", rx ",
                      traffic.rx_bytes, " B in ", traffic.rx_messages, " messages");
}

// Ranks are threads, servers objects; all in this process.
class Job {
 public:
  Job(const WireCase& config, const Plan& plan)
      : config_(config),
        plan_(plan),
        link_(config.link == "grpc"  ? NewGrpcLink()
              : config.link == "tcp" ? NewTcpLink()
                                     : NewInProcessLink()),
        syncs_(config.workers),
        store_(NewInMemoryStore()) {
    for (size_t i = 0; i < config_.weights.size(); ++i) {
      ServerOptions options;
      options.link = link_;
      servers_.push_back(*ParameterServer::Start(options));
    }
    Collective([this](int rank) {
      syncs_[rank] = Create(rank);
      return syncs_[rank]->Bind(plan_, Soon()).status();
    });
  }

  ~Job() {
    Collective([this](int rank) { return syncs_[rank]->Shutdown(Soon()); });
  }

  void Broadcast() {
    Collective([this](int rank) { return syncs_[rank]->BroadcastParameters(Soon()); });
  }

  void Step(int64_t number) {
    Collective([this, number](int rank) {
      StepOptions step;
      step.step = number;
      step.lr = 0.1;
      return RunStep(*syncs_[rank], plan_, step);
    });
  }

  // Of all processes, workers first, since the start.
  std::vector<NodeTraffic> counted() const {
    std::vector<NodeTraffic> nodes;
    for (const auto& sync : syncs_) nodes.push_back(Counted(sync->wire_stats()));
    for (const auto& server : servers_) nodes.push_back(Counted(server->stats()));
    return nodes;
  }

 private:
  std::unique_ptr<GradientSync> Create(int rank) const {
    WorkerGroup group;
    group.rank = rank;
    group.world_size = config_.workers;
    group.run_id = "wire";
    group.store = store_;
    group.address = "127.0.0.1";
    if (config_.weights.empty() && config_.link == "shm") {
      ShmRingOptions options;
      options.group = group;
      options.update_site = config_.site;
      return *CreateShmRingGradientSync(options);
    }
    if (config_.weights.empty()) {
      RingOptions options;
      options.group = group;
      options.link = link_;
      options.update_site = config_.site;
      options.connections = 2;
      return *CreateRingGradientSync(options);
    }
    PsOptions options;
    options.group = group;
    options.link = link_;
    options.update_site = config_.site;
    options.windows = config_.link == "shm";
    options.weights = config_.weights;
    for (const auto& server : servers_) options.servers.push_back(server->address());
    return *CreatePsGradientSync(options);
  }

  void Collective(const std::function<absl::Status(int rank)>& body) {
    RunRanks(config_.workers, [&body](int rank) {
      const absl::Status status = body(rank);
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
    });
  }

  const WireCase config_;
  const Plan plan_;
  const std::shared_ptr<StreamLink> link_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
  std::vector<std::unique_ptr<GradientSync>> syncs_;
  const std::shared_ptr<KeyValueStore> store_;
};

struct Expected {
  std::vector<NodeTraffic> broadcast;
  std::vector<NodeTraffic> step;
};

Expected ExpectedTraffic(const WireCase& config, const Plan& plan) {
  const int processes = config.workers + static_cast<int>(config.weights.size());
  if (config.link == "shm") {
    return {ProcessTraffic(WindowBroadcastFlows(plan), processes),
            ProcessTraffic(config.weights.empty()
                               ? WindowStepFlows(plan)
                               : WindowStepFlows(plan, *ShardMap::Create(plan, config.weights)),
                           processes)};
  }
  const Returned returned =
      config.site == UpdateSite::kOwner ? Returned::kParameters : Returned::kMean;
  if (config.weights.empty()) {
    return {ProcessTraffic(RingBroadcastFlows(plan), processes),
            ProcessTraffic(RingStepFlows(plan, returned), processes)};
  }
  const ShardMap shards = *ShardMap::Create(plan, config.weights);
  return {ProcessTraffic(PsBroadcastFlows(plan, shards), processes),
          ProcessTraffic(PsStepFlows(plan, shards, returned), processes)};
}

void ExpectCounted(const std::vector<NodeTraffic>& before, const std::vector<NodeTraffic>& after,
                   const std::vector<NodeTraffic>& expected, const std::string& what) {
  ASSERT_EQ(after.size(), expected.size());
  for (size_t i = 0; i < after.size(); ++i) {
    const NodeTraffic counted = {
        after[i].tx_bytes - before[i].tx_bytes, after[i].rx_bytes - before[i].rx_bytes,
        after[i].tx_messages - before[i].tx_messages, after[i].rx_messages - before[i].rx_messages};
    EXPECT_TRUE(counted == expected[i]) << what << ", process " << i << ": expected "
                                        << Describe(expected[i]) << "; found " << Describe(counted);
  }
}

class WireBytesTest : public testing::TestWithParam<WireCase> {};

TEST_P(WireBytesTest, EveryProcessCountsExactlyWhatTheModelSays) {
  for (const Plan& plan : Plans(GetParam().workers, GetParam().compression)) {
    const Expected expected = ExpectedTraffic(GetParam(), plan);
    Job job(GetParam(), plan);
    std::vector<NodeTraffic> before = job.counted();
    for (const NodeTraffic& node : before) EXPECT_EQ(node, NodeTraffic()) << Describe(node);
    job.Broadcast();
    std::vector<NodeTraffic> after = job.counted();
    ExpectCounted(before, after, expected.broadcast, "broadcast");
    for (int64_t step = 1; step <= kSteps; ++step) {
      before = std::move(after);
      job.Step(step);
      after = job.counted();
      ExpectCounted(before, after, expected.step, absl::StrCat("step ", step));
    }
  }
}

std::vector<WireCase> Cases() {
  std::vector<WireCase> cases;
  const auto add = [&cases](std::string name, int n, std::vector<double> weights, std::string link,
                            std::string compression = "none") {
    for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
      cases.push_back({absl::StrCat(name, n, site == UpdateSite::kOwner ? "UpdateAtOwner" : ""), n,
                       weights, site, link, compression});
    }
  };
  for (int n : {1, 2, 3, 4, 5, 6, 7, 8}) {
    add("Ring", n, {}, "in process");
    add("ShmRing", n, {}, "shm");
    add("ShmMixedServersWorkers", n, n >= 2 ? MixedWeights(n, 1) : std::vector<double>{1}, "shm");
    for (int k = 1; k <= 3; ++k) {
      add(absl::StrCat("Servers", k, "Workers"), n, std::vector<double>(k, 1), "in process");
      add(absl::StrCat("ShmServers", k, "Workers"), n, std::vector<double>(k, 1), "shm");
    }
    if (n >= 2) add("MixedServersWorkers", n, MixedWeights(n, 1), "in process");
  }
  for (int n : {1, 2, 3, 5}) {
    for (const char* sixteen : {"fp16", "bf16"}) {
      add(absl::StrCat(sixteen, "Ring"), n, {}, "in process", sixteen);
      add(absl::StrCat(sixteen, "Servers2Workers"), n, {1, 1}, "in process", sixteen);
    }
    add("Top2PercentServers2Workers", n, {1, 1}, "in process", "topk:0.02");
    add("Top30PercentServers3Workers", n, {1, 1, 1}, "in process", "topk:0.3");
  }
  add("GrpcBf16Ring", 3, {}, "grpc", "bf16");
  add("TcpTop2PercentServers2Workers", 3, {1, 1}, "tcp", "topk:0.02");
  add("TcpRing", 3, {}, "tcp");
  add("GrpcServers2Workers", 3, {1, 1}, "grpc");
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, WireBytesTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<WireCase>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace gradsync
