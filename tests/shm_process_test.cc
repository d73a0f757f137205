// Rank = process: ring over shared memory between processes, and what is left when one is killed.
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "allreduce/shm_gradient_sync.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/sha256.h"
#include "core/group/grpc_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/reference.h"

namespace gradsync {
namespace {

using ::testing::ContainsRegex;

constexpr int kRanks = 3;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

Plan MakePlan() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  std::vector<TensorSpec> tensors = {{"a", {30000}, {1}, 0}, {"b", {17}, {1}, 0}};
  return *Plan::FromBuckets(tensors, {{0}, {1}}, optimizer, kRanks, /*chunk_bytes=*/4096);
}

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  return step;
}

std::vector<FlatValues> Gradients(const Plan& plan) {
  std::vector<FlatValues> all;
  for (int rank = 0; rank < kRanks; ++rank) all.push_back(RandomValues(plan, 1 + rank));
  return all;
}

std::string Hash(const FlatValues& values) {
  Sha256 hash;
  for (const std::vector<float>& bucket : values) {
    hash.Update(bucket.data(), bucket.size() * sizeof(float));
  }
  return hash.HexDigest();
}

// A child process and a line-sized channel each way.
class Child {
 public:
  explicit Child(const std::function<void(int in, int out)>& body) {
    int to_child[2], from_child[2];
    if (pipe(to_child) != 0 || pipe(from_child) != 0) _exit(1);
    pid_ = fork();
    if (pid_ == 0) {
      body(to_child[0], from_child[1]);
      _exit(0);
    }
    close(to_child[0]);
    close(from_child[1]);
    in_ = to_child[1];
    out_ = from_child[0];
  }
  ~Child() {
    Kill();
    close(in_);
    close(out_);
  }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  static void Put(int fd, const std::string& line) {
    const std::string message = line + "\n";
    if (write(fd, message.data(), message.size()) < 0) _exit(1);
  }
  static std::string Get(int fd) {
    std::string line;
    char c;
    while (read(fd, &c, 1) == 1 && c != '\n') line.push_back(c);
    return line;
  }
  void Put(const std::string& line) { Put(in_, line); }
  std::string Get() { return Get(out_); }

 private:
  pid_t pid_ = 0;
  int in_ = -1;
  int out_ = -1;
};

// Runs a rank: tells the hash of the parameters after three steps, then steps on until it fails,
// and tells why.
void RunRank(int rank, int in, int out) {
  WorkerGroup group;
  group.rank = rank;
  group.world_size = kRanks;
  group.run_id = "processes";
  group.credentials = InsecureCredentials();
  group.store =
      ConnectStore(absl::StrCat("127.0.0.1:", Child::Get(in)), group.credentials, Soon()).value();
  ShmRingOptions options;
  options.group = group;
  options.update_site = UpdateSite::kOwner;
  const auto sync = CreateShmRingGradientSync(options).value();
  const Plan plan = MakePlan();
  const auto buckets = sync->Bind(plan, Soon()).value();
  const auto exchange = [&](int64_t number) {
    const std::vector<FlatValues> gradients = Gradients(plan);
    std::vector<SyncHandle> handles;
    for (size_t b = 0; b < buckets.size(); ++b) {
      std::memcpy(buckets[b].grad.floats(), gradients[rank][b].data(),
                  gradients[rank][b].size() * sizeof(float));
      handles.push_back(sync->Launch(Step(number), static_cast<int>(b)));
    }
    absl::Status first;
    for (const SyncHandle& handle : handles) first.Update(handle.Wait(Soon()));
    return first;
  };
  absl::Status status = sync->BroadcastParameters(Soon());
  for (int64_t number = 1; number <= 3; ++number) status.Update(exchange(number));
  FlatValues params;
  for (const GradBucket& bucket : buckets) {
    const float* data = bucket.param.floats();
    params.emplace_back(data, data + bucket.param.numel);
  }
  Child::Put(out, status.ok() ? Hash(params) : status.ToString());
  for (int64_t number = 4; status.ok(); ++number) status = exchange(number);
  Child::Put(out, status.ToString());
}

std::set<std::string> Names(const char* directory) {
  std::set<std::string> names;
  if (DIR* dir = opendir(directory)) {
    while (const dirent* entry = readdir(dir)) {
      if (strstr(entry->d_name, "gradsync") != nullptr) names.insert(entry->d_name);
    }
    closedir(dir);
  }
  return names;
}

TEST(ShmProcessTest, ProcessesTrainLikeOneAndNoticeWhenOneIsKilled) {
  const std::set<std::string> in_shm = Names("/dev/shm"), in_tmp = Names("/tmp");
  // gRPC's threads do not survive a fork: all children first.
  std::vector<std::unique_ptr<Child>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::make_unique<Child>([rank](int in, int out) { RunRank(rank, in, out); }));
  }
  const auto store = GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials()).value();
  for (const auto& rank : ranks) rank->Put(absl::StrCat(store->port()));

  const Plan plan = MakePlan();
  FlatValues params;
  for (const BucketPlan& bucket : plan.buckets()) params.emplace_back(bucket.numel, 0.0f);
  ReferenceOptimizer reference(plan);
  const FlatValues mean = ReferenceMean(plan, Gradients(plan), 1);
  for (int64_t number = 1; number <= 3; ++number) reference.Apply(Step(number), mean, &params);
  for (const auto& rank : ranks) EXPECT_EQ(rank->Get(), Hash(params));

  ranks[1]->Kill();
  const MonotonicTime killed = MonotonicTime::Now();
  for (int rank : {0, 2}) {
    // ABORTED where the other one has said so first.
    EXPECT_THAT(ranks[rank]->Get(), ContainsRegex("^(UNAVAILABLE|ABORTED): rank 1 .process"));
  }
  EXPECT_LT(MonotonicTime::Now() - killed, absl::Seconds(5));
  for (const auto& rank : ranks) rank->Kill();
  EXPECT_EQ(Names("/dev/shm"), in_shm);
  EXPECT_EQ(Names("/tmp"), in_tmp);
}

}  // namespace
}  // namespace gradsync
