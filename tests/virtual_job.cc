#include "tests/virtual_job.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "allreduce/ring_gradient_sync.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "core/group/grpc_store.h"
#include "core/group/heartbeat.h"
#include "core/group/liveness.h"
#include "core/group/sync_handle.h"
#include "core/group/watchdog.h"
#include "core/group/worker_group.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/sync/buckets.h"
#include "core/sync/gradient_sync.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "ps_server/server.h"
#include "tests/reference.h"
#include "tests/virtual_network.h"
#include "tests/virtual_store.h"
#include "tests/virtual_world.h"

namespace gradsync {
namespace {

constexpr char kStore[] = "rank0:1000";

// What a killed process's connections need to be seen by all, and a verdict to come round.
constexpr absl::Duration kPrompt = absl::Seconds(2);
// A first sign of life has come by then.
constexpr absl::Duration kFirstBeat = absl::Milliseconds(50);
// A tensor below n elements, one of many stripes with a cut tail, one with an odd rest.
Plan PlanFor(int ranks) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  return *Plan::FromBuckets(
      {{"a", {3}, {1}, 0}, {"b", {170}, {1}, 0}, {"c", {16 * ranks + 1}, {1}, 0}}, {{0}, {1}, {2}},
      optimizer, ranks, /*chunk_bytes=*/128);
}

StepOptions StepFor(const VirtualJobOptions& options, int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  step.max_norm = options.max_norm;
  return step;
}

// What every rank must have after each step: means, or parameters where owners update.
struct Expected {
  std::vector<std::vector<FlatValues>> gradients;  // by step and rank
  FlatValues parameters;                           // before the first step
  std::vector<FlatValues> results;                 // by step
};

Expected Expect(const VirtualJobOptions& options, const Plan& plan) {
  Expected expected;
  expected.parameters = RandomValues(plan, 1);
  FlatValues parameters = expected.parameters;
  ReferenceOptimizer optimizer(plan);
  for (int step = 1; step <= options.steps; ++step) {
    auto& gradients = expected.gradients.emplace_back();
    for (int rank = 0; rank < options.ranks; ++rank) {
      gradients.push_back(RandomValues(plan, 100 * step + rank));
    }
    FlatValues mean = ReferenceMean(plan, gradients, 1);
    if (options.site == UpdateSite::kOwner) {
      optimizer.Apply(StepFor(options, step), std::move(mean), &parameters);
      expected.results.push_back(parameters);
    } else {
      expected.results.push_back(std::move(mean));
    }
  }
  return expected;
}

// "rank 3" or "server 0" where `text` has one; what follows is skipped.
absl::optional<std::string> FirstName(absl::string_view* text) {
  size_t best = absl::string_view::npos;
  for (const absl::string_view kind : {"rank ", "ranks ", "server "}) {
    for (size_t at = text->find(kind); at != absl::string_view::npos;
         at = text->find(kind, at + 1)) {
      const size_t digits = at + kind.size();
      if (digits < text->size() && absl::ascii_isdigit((*text)[digits])) {
        best = std::min(best, at);
        break;
      }
    }
  }
  if (best == absl::string_view::npos) return absl::nullopt;
  size_t end = text->find(' ', best) + 1;
  while (end < text->size() && absl::ascii_isdigit((*text)[end])) ++end;
  std::string name(text->substr(best, end - best));
  if (absl::StartsWith(name, "ranks ")) name.erase(4, 1);
  text->remove_prefix(end);
  return name;
}

// Whom an error blames: the first process that it names, but for whoever merely noticed first. Of
// one from the set-up, in which processes pass on what they heard in more words, the last.
absl::optional<std::string> Blamed(absl::string_view text, bool last) {
  absl::string_view rest = text;
  absl::optional<std::string> blamed = FirstName(&rest);
  if (!blamed.has_value()) return blamed;
  const bool reported = absl::StartsWith(rest, " failed first: ");
  while (last || reported) {
    absl::optional<std::string> next = FirstName(&rest);
    if (!next.has_value()) break;
    blamed = std::move(next);
    if (!last) break;
  }
  return blamed;
}

class VirtualJob {
 public:
  explicit VirtualJob(const VirtualJobOptions& options)
      : options_(options),
        plan_(PlanFor(options.ranks)),
        expected_(Expect(options, plan_)),
        world_(options.seed, options.verbose),
        network_(&world_, FailureTimeout(options.failure_timeout, options.timeout)),
        stores_(&world_, &network_) {
    for (int rank = 0; rank < options.ranks; ++rank) {
      world_.AddProcess(absl::StrCat("rank ", rank));
    }
    for (int server = 0; server < options.servers; ++server) {
      world_.AddProcess(absl::StrCat("server ", server));
      servers_.push_back(absl::StrCat("host", server, ":4000"));
    }
    members_.resize(options.ranks + options.servers);
  }

  VirtualJobResult Run();

 private:
  enum class Phase { kSetUp, kTraining, kLeaving, kEnded };
  struct Member {
    Phase phase = Phase::kSetUp;
    absl::optional<absl::Duration> met;  // when it began to give signs of life
    bool trained = false;                // it has done all its steps
    std::string settled;                 // under ssp and asp: the parameters when all have settled
    absl::Status status;
    absl::Duration ended;
  };

  int processes() const { return static_cast<int>(members_.size()); }
  bool is_server(int process) const { return process >= options_.ranks; }
  Deadline Patience() const { return Deadline::In(options_.timeout); }

  absl::Status Rank(int rank);
  absl::Status Train(int rank, const WorkerGroup& group, Activity* activity);
  absl::StatusOr<std::unique_ptr<GradientSync>> MakeSync(const WorkerGroup& group);
  absl::Status Steps(int rank, GradientSync& sync, Activity* activity);
  void CheckBits(int rank, int step, const std::vector<BucketMemory>& buckets);
  absl::Status Server(int server);
  void Compute(int rank, int step);
  void Strike();
  void End(int process, absl::Status status);
  bool SurvivorsEnded() const;
  void Complain(absl::string_view what) {
    if (result_.complaint.empty()) result_.complaint = std::string(what);
  }
  void Judge();
  absl::Duration NoticeLimit() const;
  bool Trained() const;
  void CleanUp();

  const VirtualJobOptions options_;
  const Plan plan_;
  const Expected expected_;
  VirtualWorld world_;
  VirtualNetwork network_;
  VirtualStores stores_;
  std::vector<std::string> servers_;
  std::vector<Member> members_;
  bool struck_ = false;
  absl::Duration struck_at_;
  bool met_ = false;        // all members had been heard of when it happened
  std::set<int> victims_;   // whose own end nobody judges
  std::set<int> culprits_;  // who may be blamed
  std::set<int> stuck_;
  VirtualJobResult result_;
};

// A rank as gradsync/join/meet.h and worker/train/trainer.h make it, without tensors.
absl::Status VirtualJob::Rank(int rank) {
  world_.Sleep(world_.DrawDuration(absl::ZeroDuration(), absl::Milliseconds(3)));
  WorkerGroup group;
  group.rank = rank;
  group.world_size = options_.ranks;
  group.run_id = "virtual";
  group.timeout = options_.timeout;
  group.failure_timeout = FailureTimeout(options_.failure_timeout, options_.timeout);
  group.address = absl::StrCat("rank", rank);
  std::unique_ptr<VirtualStoreServer> served;
  std::shared_ptr<ConnectedStore> connected;  // of all but rank 0
  group.store_address = kStore;
  if (rank == 0) {
    served = stores_.Serve(kStore);
    group.store = served->local();
  } else {
    GS_ASSIGN_OR_RETURN(connected, stores_.Connect(kStore, Patience()));
    group.store = connected;
  }

  const absl::Duration timeout = group.failure_timeout;
  const auto activity = std::make_shared<Activity>();
  HeartbeatOptions beats;
  beats.key = RankBeatKey(group.Key(""), rank);
  beats.activity = activity;
  beats.failure_timeout = timeout;
  beats.store = group.store;
  std::unique_ptr<Watchdog> watchdog;
  std::unique_ptr<KeyValueStore::Watcher> presence;
  if (connected == nullptr) {
    WatchdogOptions watch;
    watch.store = group.store;
    watch.prefix = group.Key("");
    watch.world_size = options_.ranks;
    watch.failure_timeout = timeout;
    watchdog = std::make_unique<Watchdog>(std::move(watch));
    for (const std::string& address : servers_) watchdog->AddServer(address);
  } else {
    beats.on_silence = [connected, reason = LostStoreHolder(kStore, timeout)] {
      connected->Abandon(reason);
    };
  }
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Heartbeat> heartbeat,
                      Heartbeat::Start(beats, Patience()));
  if (connected != nullptr) presence = connected->Attend(GoneKey(beats.key));

  members_[rank].met = world_.elapsed();
  GS_RETURN_IF_ERROR(Train(rank, group, activity.get()));
  watchdog.reset();
  heartbeat->Leave();
  presence.reset();  // after the last beat, which says that this rank has left
  const Deadline farewell = Deadline::In(absl::Seconds(5));
  if (rank != 0) {
    group.store->Set(group.Key(absl::StrCat("left/", rank)), "", farewell).IgnoreError();
  }
  for (int other = 1; rank == 0 && other < options_.ranks; ++other) {
    group.store->Get(group.Key(absl::StrCat("left/", other)), farewell).status().IgnoreError();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GradientSync>> VirtualJob::MakeSync(const WorkerGroup& group) {
  if (servers_.empty()) {
    RingOptions ring;
    ring.group = group;
    ring.link = network_.LinkOf(group.rank);
    ring.update_site = options_.site;
    ring.connections = options_.connections;
    ring.lead = options_.lead;
    return CreateRingGradientSync(ring);
  }
  PsOptions ps;
  ps.group = group;
  ps.link = network_.LinkOf(group.rank);
  ps.servers = servers_;
  ps.update_site = options_.site;
  ps.consistency = options_.consistency;
  ps.connections = options_.connections;
  ps.lead = options_.lead;
  return CreatePsGradientSync(ps);
}

absl::Status VirtualJob::Train(int rank, const WorkerGroup& group, Activity* activity) {
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<GradientSync> sync, MakeSync(group));
  absl::Status status = Steps(rank, *sync, activity);
  if (!status.ok()) return status;
  members_[rank].phase = Phase::kLeaving;
  members_[rank].trained = true;
  return sync->Shutdown(Patience());
}

absl::Status VirtualJob::Steps(int rank, GradientSync& sync, Activity* activity) {
  GS_ASSIGN_OR_RETURN(const std::vector<GradBucket> tensors, sync.Bind(plan_, Patience()));
  const std::vector<BucketMemory> buckets = MemoryOf(tensors);
  for (size_t b = 0; rank == 0 && b < buckets.size(); ++b) {
    std::memcpy(buckets[b].param, expected_.parameters[b].data(), 4 * buckets[b].numel);
  }
  GS_RETURN_IF_ERROR(sync.BroadcastParameters(Patience()));
  members_[rank].phase = Phase::kTraining;
  absl::optional<Activity::Work> work(absl::in_place, activity);
  for (int number = 1; number <= options_.steps; ++number) {
    const StepOptions step = StepFor(options_, number);
    std::vector<SyncHandle> handles;
    for (size_t b = 0; b < buckets.size(); ++b) {
      Compute(rank, number);
      std::memcpy(buckets[b].grad, expected_.gradients[number - 1][rank][b].data(),
                  4 * buckets[b].numel);
      CountActivity(activity);
      handles.push_back(sync.Launch(step, static_cast<int>(b)));
    }
    {
      const Activity::Wait wait(activity);
      const Deadline deadline = Patience();
      for (const SyncHandle& handle : handles) GS_RETURN_IF_ERROR(handle.Wait(deadline));
    }
    world_.Log(absl::StrCat("step ", number, " done"));
    if (options_.consistency.bulk()) CheckBits(rank, number, buckets);
    activity->Prove();
  }
  work.reset();
  if (options_.consistency.bulk()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(sync.Settle(Patience()));
  for (const BucketMemory& bucket : buckets) {
    members_[rank].settled.append(reinterpret_cast<const char*>(bucket.param), 4 * bucket.numel);
  }
  return absl::OkStatus();
}

void VirtualJob::CheckBits(int rank, int step, const std::vector<BucketMemory>& buckets) {
  const FlatValues& expected = expected_.results[step - 1];
  for (size_t b = 0; b < buckets.size(); ++b) {
    const float* const found =
        options_.site == UpdateSite::kOwner ? buckets[b].param : buckets[b].grad;
    const size_t bytes = 4 * static_cast<size_t>(buckets[b].numel);
    if (std::memcmp(found, expected[b].data(), bytes) == 0) continue;
    Complain(absl::StrCat("wrong bits: rank ", rank, ", step ", step, ", bucket ", b));
  }
}

// In its first step nobody counts as stuck (core/group/liveness.h).
void VirtualJob::Compute(int rank, int step) {
  world_.Sleep(world_.DrawDuration(absl::ZeroDuration(), absl::Milliseconds(4)));
  if (step > 1 && stuck_.count(rank) > 0 && !culprits_.count(rank)) {
    culprits_ = {rank};
    struck_at_ = world_.elapsed();
    world_.Log("stuck");
  }
  while (step > 1 && stuck_.count(rank) > 0) world_.Wait(&stuck_, absl::InfiniteDuration());
}

absl::Status VirtualJob::Server(int server) {
  world_.Sleep(world_.DrawDuration(absl::ZeroDuration(), absl::Milliseconds(3)));
  ServerOptions options;
  options.link = network_.LinkOf(options_.ranks + server);
  options.listen = servers_[server];
  options.run_id = "virtual";
  options.timeout = options_.timeout;
  options.failure_timeout = options_.failure_timeout;
  options.connect_store = [this](const std::string& address, Deadline deadline,
                                 const std::string&) { return stores_.Connect(address, deadline); };
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<ParameterServer> started,
                      ParameterServer::Start(options));
  members_[options_.ranks + server].met = world_.elapsed();
  return started->Wait();
}

void VirtualJob::End(int process, absl::Status status) {
  Member& member = members_[process];
  member.phase = Phase::kEnded;
  member.status = std::move(status);
  member.ended = world_.elapsed();
  world_.Log(absl::StrCat("ended: ", member.status.ToString()));
}

// On no thread: it may be the victim's own that is next.
void VirtualJob::Strike() {
  struck_ = true;
  struck_at_ = world_.elapsed();
  const int victim = options_.victim;
  // A process that has ended cannot fail any more.
  if (options_.fault != VirtualFault::kNone && members_[victim].phase == Phase::kEnded) return;
  met_ = std::all_of(members_.begin(), members_.end(), [this](const Member& m) {
    return m.met.has_value() && *m.met + kFirstBeat < world_.elapsed();
  });
  result_.in_training = true;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (members_[rank].phase != Phase::kTraining) result_.in_training = false;
  }
  result_.fault_happened = options_.fault != VirtualFault::kNone;
  world_.Log(
      absl::StrCat("fault: ", VirtualFaultName(options_.fault), " of ", world_.name(victim)));
  // Goodbyes take five seconds at most (gradsync/join/meet.h).
  const absl::Duration pause = world_.DrawDuration(
      absl::Milliseconds(500), std::min(0.7 * options_.failure_timeout, absl::Seconds(4)));
  switch (options_.fault) {
    case VirtualFault::kNone:
      return;
    case VirtualFault::kKill:
      victims_ = culprits_ = {victim};
      world_.Stop(victim);
      network_.Kill(victim);
      return;
    case VirtualFault::kStop:
      victims_ = culprits_ = {victim};
      world_.Stop(victim);
      network_.NoteStopped(victim);
      return;
    case VirtualFault::kStuck:
      victims_ = {victim};
      stuck_.insert(victim);
      return;
    case VirtualFault::kCut:
      culprits_ = {victim, options_.other};
      network_.Cut(victim, options_.other);
      return;
    case VirtualFault::kBreak: {
      const auto [a, b] = network_.BreakStream();
      result_.fault_happened = a >= 0;
      if (a >= 0) culprits_ = {a, b};
      return;
    }
    case VirtualFault::kSlow:
      network_.Slow(absl::Milliseconds(500), absl::Seconds(5));
      return;
    case VirtualFault::kSuspend:
      for (int process = 0; process < processes(); ++process) {
        // Not at once: each is stopped, and goes on, a little after the others.
        world_.Outside(world_.DrawDuration(absl::ZeroDuration(), absl::Milliseconds(300)),
                       [this, process] { world_.Stop(process); });
        world_.Outside(3 * options_.failure_timeout +
                           world_.DrawDuration(absl::ZeroDuration(), absl::Milliseconds(300)),
                       [this, process] { world_.Resume(process); });
      }
      return;
    case VirtualFault::kPause:
      world_.Stop(victim);
      world_.Outside(pause, [this, victim] { world_.Resume(victim); });
      return;
  }
}

bool VirtualJob::SurvivorsEnded() const {
  for (int process = 0; process < processes(); ++process) {
    if (members_[process].phase != Phase::kEnded && victims_.count(process) == 0) return false;
  }
  return true;
}

// Whether a rank has done all its steps, and so may be leaving.
bool VirtualJob::Trained() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.trained; });
}

// From the fault until all survivors have ended.
absl::Duration VirtualJob::NoticeLimit() const {
  const absl::Duration lost = options_.failure_timeout + kPrompt;
  // Whoever has not met the others is missed by their patience alone. A farewell may take five
  // seconds more, and one that fails another two.
  if (!met_ || !result_.in_training) return 2 * options_.timeout + absl::Seconds(20);
  switch (options_.fault) {
    case VirtualFault::kKill:
    case VirtualFault::kBreak:
      return kPrompt + absl::Seconds(2);
    case VirtualFault::kStop:
    case VirtualFault::kStuck:
    case VirtualFault::kCut:
      // Nobody is watched any more while goodbyes are said.
      return (Trained() ? 2 * lost : lost) + absl::Seconds(2);
    default:
      return 2 * options_.timeout;
  }
}

void VirtualJob::Judge() {
  absl::Duration last;
  for (int process = 0; process < processes(); ++process) {
    const Member& member = members_[process];
    if (victims_.count(process) > 0) continue;
    last = std::max(last, member.ended);
    if (member.status.ok()) {
      // A fault in the middle of training ends it for all, but for one that harms nobody.
      if (result_.in_training && !culprits_.empty() && options_.fault != VirtualFault::kCut &&
          !(options_.fault == VirtualFault::kBreak && Trained()) && !is_server(process)) {
        Complain(absl::StrCat(world_.name(process), " ended well"));
      }
      continue;
    }
    const absl::optional<std::string> blamed =
        Blamed(member.status.message(), /*last=*/!result_.in_training);
    ++(blamed.has_value() ? result_.named : result_.unnamed);
    if (culprits_.empty()) {
      if (is_server(process) && members_[0].status.ok()) continue;  // see below
      Complain(absl::StrCat(world_.name(process),
                            " failed, and nothing was wrong: ", member.status.ToString()));
      continue;
    }
    // A server is a member of the run from the moment at which its group is complete. Before, it
    // knows of nothing but its streams.
    if (is_server(process) && !result_.in_training) continue;
    // Rank 0 leaves, and the store with it, whether servers have heard all goodbyes or not.
    if (is_server(process) && members_[0].status.ok()) continue;
    // A process of which nothing was heard cannot be missed; who waited for it gives up, and is
    // missed by others.
    if (!met_) continue;
    if (!blamed.has_value()) {
      if (met_ && result_.in_training) {
        Complain(absl::StrCat(world_.name(process), " blames nobody: ", member.status.ToString()));
      }
      continue;
    }
    bool guilty = std::any_of(culprits_.begin(), culprits_.end(),
                              [&](int culprit) { return world_.name(culprit) == *blamed; });
    // Between two that reach the store neither is to blame.
    if (options_.fault == VirtualFault::kCut && culprits_.count(0) == 0) {
      guilty = guilty && absl::StartsWith(member.status.message(), "link ");
    }
    if (!guilty) {
      Complain(
          absl::StrCat(world_.name(process), " blames an innocent: ", member.status.ToString()));
    }
  }
  for (const Member& member : members_) {
    for (const Member& other : members_) {
      if (!member.settled.empty() && !other.settled.empty() && member.settled != other.settled) {
        Complain("workers have settled with different parameters");
      }
    }
  }
  if (!culprits_.empty() && last > struck_at_) {
    result_.noticed = last - struck_at_;
    if (result_.noticed > NoticeLimit()) {
      Complain(absl::StrCat("noticed after ", absl::FormatDuration(result_.noticed), ", limit ",
                            absl::FormatDuration(NoticeLimit())));
    }
  }
}

// Those who are left find themselves alone, and must end too.
void VirtualJob::CleanUp() {
  for (int a = 0; a < processes(); ++a) {
    for (int b = 0; b < a; ++b) network_.Heal(a, b);
  }
  stuck_.clear();
  world_.WakeQuietly(&stuck_);
  for (int process = 0; process < processes(); ++process) world_.Resume(process);
  const absl::Status ended = world_.Run(
      [this] {
        return std::all_of(members_.begin(), members_.end(),
                           [](const Member& m) { return m.phase == Phase::kEnded; });
      },
      world_.elapsed() + 5 * options_.timeout);
  if (!ended.ok()) return Complain(absl::StrCat("a victim never ends: ", ended.message()));
  const absl::Status rest = world_.Run([] { return false; }, world_.elapsed() + absl::Hours(1));
  if (!absl::IsAborted(rest) || world_.threads() > 0) {
    Complain(absl::StrCat("something runs on: ", rest.message()));
  }
}

VirtualJobResult VirtualJob::Run() {
  for (int process = 0; process < processes(); ++process) {
    world_.Spawn(process, [this, process] {
      End(process, is_server(process) ? Server(process - options_.ranks) : Rank(process));
    });
  }
  absl::Status ran = world_.Run(
      [this] {
        if (!struck_ && world_.switches() >= options_.fault_at) Strike();
        return SurvivorsEnded();
      },
      4 * options_.timeout + absl::Minutes(2));
  result_.switches = world_.switches();
  if (!ran.ok()) {
    Complain(absl::StrCat("hang: ", ran.ToString()));
    result_.digest = world_.digest();
    return result_;
  }
  Judge();
  CleanUp();
  if (!network_.wrong().ok()) Complain(network_.wrong().ToString());
  result_.digest = world_.digest();
  return result_;
}

}  // namespace

std::string VirtualFaultName(VirtualFault fault) {
  switch (fault) {
    case VirtualFault::kNone:
      return "none";
    case VirtualFault::kKill:
      return "kill";
    case VirtualFault::kStop:
      return "stop";
    case VirtualFault::kStuck:
      return "stuck";
    case VirtualFault::kCut:
      return "cut";
    case VirtualFault::kBreak:
      return "break";
    case VirtualFault::kSlow:
      return "slow";
    case VirtualFault::kSuspend:
      return "suspend";
    case VirtualFault::kPause:
      return "pause";
  }
  return "?";
}

VirtualJobOptions DrawVirtualJob(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t n) { return static_cast<int>(random() % n); };
  VirtualJobOptions options;
  options.seed = seed;
  options.ranks = 2 + draw(3);
  options.servers = draw(2) == 0 ? 0 : 1 + draw(2);
  options.site = draw(2) == 0 ? UpdateSite::kWorker : UpdateSite::kOwner;
  if (options.servers > 0 && draw(4) == 0) {
    options.site = UpdateSite::kOwner;
    options.consistency.kind = draw(2) == 0 ? Consistency::Kind::kAsp : Consistency::Kind::kSsp;
    if (options.consistency.kind == Consistency::Kind::kSsp) options.consistency.bound = draw(3);
  }
  const bool clips = draw(2) == 0 && options.consistency.bulk();
  options.max_norm = options.site == UpdateSite::kOwner && clips ? 0.5 : 0;
  options.connections = 1 + draw(3);
  options.lead = 1 + draw(3);
  options.steps = 2 + draw(3);
  options.failure_timeout = draw(4) == 0 ? absl::Seconds(3) : absl::Seconds(10);
  options.fault = static_cast<VirtualFault>(draw(9));
  const int processes = options.ranks + options.servers;
  options.victim = options.fault == VirtualFault::kStuck ? draw(options.ranks) : draw(processes);
  options.other = (options.victim + 1 + draw(processes - 1)) % processes;
  options.fault_at = draw(2) == 0 ? draw(600) : draw(4000);
  return options;
}

std::string DescribeVirtualJob(const VirtualJobOptions& options) {
  std::string text =
      absl::StrCat(options.ranks, " ranks, ",
                   options.servers == 0 ? "ring" : absl::StrCat(options.servers, " servers"),
                   ", update at ", options.site == UpdateSite::kOwner ? "owners" : "workers", ", ",
                   ConsistencyName(options.consistency), ", max_norm ", options.max_norm, ", ",
                   options.connections, " connections, lead ", options.lead, ", ", options.steps,
                   " steps, failure timeout ", absl::FormatDuration(options.failure_timeout), "; ",
                   VirtualFaultName(options.fault));
  if (options.fault != VirtualFault::kNone) {
    absl::StrAppend(&text, " of process ", options.victim, " at ", options.fault_at);
  }
  if (options.fault == VirtualFault::kCut) absl::StrAppend(&text, " from ", options.other);
  return text;
}

VirtualJobResult RunVirtualJob(const VirtualJobOptions& options) {
  return VirtualJob(options).Run();
}

}  // namespace gradsync
