#include "allreduce/fake_nccl.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace gradsync {
namespace internal {

struct FakeNcclOp {
  enum class Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kRecv };

  Kind kind = Kind::kAllReduce;
  size_t size = 0;  // in elements, or in bytes where NcclApi counts those
  int root = 0;     // or the peer
  const void* in = nullptr;
  void* out = nullptr;
  GpuStream stream = nullptr;
  int64_t number = 0;

  bool is_message() const { return kind == Kind::kSend || kind == Kind::kRecv; }
  size_t bytes_in(size_t ranks) const {
    if (kind == Kind::kAllReduce) return size * sizeof(float);
    return kind == Kind::kReduceScatter ? ranks * size * sizeof(float) : size;
  }
  size_t bytes_out(size_t ranks) const {
    if (kind == Kind::kAllGather) return ranks * size;
    return kind == Kind::kBroadcast || is_message() ? size : size * sizeof(float);
  }
  bool Fits(const FakeNcclOp& other) const {
    return kind == other.kind && size == other.size && root == other.root;
  }
  std::string Describe() const {
    static constexpr const char* kNames[] = {"AllReduce", "ReduceScatter", "AllGather",
                                             "Broadcast", "Send",          "Recv"};
    return absl::StrCat(kNames[static_cast<int>(kind)], " of ", size);
  }
};

// The k-th collective of a group.
struct FakeNcclRound {
  std::vector<FakeNcclOp> ops;  // by rank
  std::vector<bool> here;
  int arrived = 0;
  bool spoilt = false;  // somebody left, or came with something else: it never takes place
  bool done = false;
};

// A send or receive that its stream has come to.
struct FakeNcclPosted {
  std::shared_ptr<FakeNcclComm> comm;
  FakeNcclOp op;
  std::shared_ptr<int> unmet;  // of the group that it is part of
};

// From one rank to another, in order.
struct FakeNcclChannel {
  std::deque<FakeNcclPosted> sends;
  std::deque<FakeNcclPosted> receives;
  bool spoilt = false;
};

struct FakeNcclGroup {
  int world_size = 0;
  int joined = 0;
  int finalized = 0;
  std::map<int64_t, FakeNcclRound> rounds;
  std::map<std::pair<int, int>, FakeNcclChannel> channels;  // by sender and receiver
};

struct FakeNcclComm {
  std::shared_ptr<FakeNcclGroup> group;
  int rank = 0;
  bool stuck = false;
  bool aborted = false;
  bool broken = false;
  bool finalizing = false;
  int polls_left = 0;
  std::vector<FakeNcclOp> pending;  // issued, and queued when the polls are over
  int64_t collectives = 0;          // issued; they are numbered
  int64_t queued = 0;               // pieces of work
  int64_t ended = 0;

  bool in_progress() const {
    return stuck || group->joined < group->world_size || polls_left > 0 || !pending.empty() ||
           (finalizing && (group->finalized < group->world_size || ended < queued));
  }
};

namespace {

using Kind = FakeNcclOp::Kind;

std::vector<float> SumOf(const FakeNcclRound& round, size_t begin, size_t size) {
  std::vector<float> sum(size);
  for (size_t rank = 0; rank < round.ops.size(); ++rank) {
    const float* const in = static_cast<const float*>(round.ops[rank].in) + begin;
    for (size_t i = 0; i < size; ++i) sum[i] = rank == 0 ? in[i] : sum[i] + in[i];
  }
  return sum;
}

// All ranks' memory at rest: they wait in the round.
void Execute(const FakeNcclRound& round) {
  const FakeNcclOp& first = round.ops[0];
  const size_t size = first.size;
  if (size == 0) return;  // then memory may be null
  const size_t ranks = round.ops.size();
  switch (first.kind) {
    case Kind::kAllReduce: {
      const std::vector<float> sum = SumOf(round, 0, size);
      for (const FakeNcclOp& op : round.ops) std::memcpy(op.out, sum.data(), size * sizeof(float));
      break;
    }
    case Kind::kReduceScatter: {
      std::vector<std::vector<float>> sums;  // all before any is written: pieces may be in place
      for (size_t rank = 0; rank < ranks; ++rank) sums.push_back(SumOf(round, rank * size, size));
      for (size_t rank = 0; rank < ranks; ++rank) {
        std::memcpy(round.ops[rank].out, sums[rank].data(), size * sizeof(float));
      }
      break;
    }
    case Kind::kAllGather: {
      std::string all;
      for (const FakeNcclOp& op : round.ops) all.append(static_cast<const char*>(op.in), size);
      for (const FakeNcclOp& op : round.ops) std::memcpy(op.out, all.data(), all.size());
      break;
    }
    case Kind::kBroadcast:
      for (const FakeNcclOp& op : round.ops) {
        if (op.out != round.ops[first.root].in) std::memcpy(op.out, round.ops[first.root].in, size);
      }
      break;
    case Kind::kSend:
    case Kind::kRecv:
      break;  // have no rounds
  }
}

}  // namespace
}  // namespace internal

using internal::FakeNcclGroup;
using internal::FakeNcclRound;

// A thread inside a call, from before it asks for the mutex.
class FakeNccl::Visit {
 public:
  explicit Visit(FakeNccl* nccl) : nccl_(nccl), alone_(nccl->visitors_.fetch_add(1) == 0) {}
  ~Visit() { nccl_->visitors_.fetch_sub(1); }
  bool alone() const { return alone_; }

 private:
  FakeNccl* const nccl_;
  const bool alone_;
};

std::vector<std::string> FakeNcclNetwork::mismatches() const {
  MutexLock lock(&mutex_);
  return mismatches_;
}

void FakeNcclNetwork::AwaitMismatch() const {
  MutexLock lock(&mutex_);
  while (mismatches_.empty()) changed_.Wait(&mutex_);
}

FakeNccl::FakeNccl(std::shared_ptr<FakeNcclNetwork> network, std::shared_ptr<FakeGpu> gpu)
    : network_(std::move(network)), gpu_(std::move(gpu)) {}

FakeNccl::~FakeNccl() { assert(live_communicators() == 0); }

void FakeNccl::FailNext(absl::string_view method, NcclResult result) {
  MutexLock lock(&network_->mutex_);
  failures_[std::string(method)] = result;
}

void FakeNccl::NeverFinishInit() {
  MutexLock lock(&network_->mutex_);
  never_finish_init_ = true;
}

void FakeNccl::Break(NcclResult state, absl::string_view why) {
  MutexLock lock(&network_->mutex_);
  broken_ = state;
  why_ = std::string(why);
  for (auto& entry : comms_) entry.second->broken = true;
  network_->changed_.SignalAll();
}

void FakeNccl::StayInProgress(int polls) {
  MutexLock lock(&network_->mutex_);
  polls_ = polls;
}

void FakeNccl::Hang(absl::string_view method) {
  MutexLock lock(&network_->mutex_);
  hanging_.insert(std::string(method));
}

void FakeNccl::Release() {
  MutexLock lock(&network_->mutex_);
  hanging_.clear();
  network_->changed_.SignalAll();
}

std::vector<std::string> FakeNccl::misuses() const {
  MutexLock lock(&network_->mutex_);
  return misuses_;
}

int FakeNccl::calls(absl::string_view method) const {
  MutexLock lock(&network_->mutex_);
  const auto found = calls_.find(std::string(method));
  return found == calls_.end() ? 0 : found->second;
}

void FakeNccl::AwaitCalls(absl::string_view method, int count) const {
  MutexLock lock(&network_->mutex_);
  while (true) {
    const auto found = calls_.find(std::string(method));
    if (found != calls_.end() && found->second >= count) return;
    network_->changed_.Wait(&network_->mutex_);
  }
}

int FakeNccl::live_communicators() const {
  MutexLock lock(&network_->mutex_);
  return static_cast<int>(comms_.size());
}

int FakeNccl::live_registrations() const {
  MutexLock lock(&network_->mutex_);
  return static_cast<int>(registrations_.size());
}

NcclResult FakeNccl::Misuse(absl::string_view method, absl::string_view why) {
  misuses_.push_back(absl::StrCat(method, ": ", why));
  return NcclResult::kInvalidUsage;
}

NcclResult FakeNccl::Begin(absl::string_view method) {
  const std::string name(method);
  ++calls_[name];
  network_->changed_.SignalAll();
  const auto failure = failures_.find(name);
  if (failure == failures_.end()) return NcclResult::kSuccess;
  const NcclResult result = failure->second;
  failures_.erase(failure);
  return result;
}

NcclResult FakeNccl::Enter(const Visit& visit, absl::string_view method, NcclComm comm,
                           bool in_progress_ok, std::shared_ptr<Comm>* found) {
  const NcclResult ordered = Begin(method);
  if (!visit.alone()) return Misuse(method, "another thread is inside a call");
  if (ordered != NcclResult::kSuccess) return ordered;
  while (hanging_.count(std::string(method)) != 0) network_->changed_.Wait(&network_->mutex_);
  const auto entry = comms_.find(comm);
  if (entry == comms_.end()) return Misuse(method, "the communicator is gone");
  *found = entry->second;
  if (in_progress_ok) return NcclResult::kSuccess;
  if ((*found)->broken) return broken_;
  if ((*found)->in_progress()) return Misuse(method, "another call is in progress");
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::GetUniqueId(NcclUniqueId* id) {
  MutexLock lock(&network_->mutex_);
  const NcclResult ordered = Begin("GetUniqueId");
  if (ordered != NcclResult::kSuccess) return ordered;
  id->fill(0);
  const std::string text = absl::StrCat("fake ", ++network_->ids_);
  std::memcpy(id->data(), text.data(), text.size());
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::InitRank(int world_size, const NcclUniqueId& id, int rank, NcclComm* comm) {
  *comm = nullptr;
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  const NcclResult ordered = Begin("InitRank");
  if (!visit.alone()) return Misuse("InitRank", "another thread is inside a call");
  if (ordered != NcclResult::kSuccess) return ordered;
  std::shared_ptr<FakeNcclGroup>& group = network_->groups_[id];
  if (group == nullptr) {
    group = std::make_shared<FakeNcclGroup>();
    group->world_size = world_size;
  }
  if (group->world_size != world_size) return NcclResult::kInvalidArgument;
  ++group->joined;
  auto made = std::make_shared<Comm>();
  made->group = group;
  made->rank = rank;
  made->stuck = never_finish_init_;
  made->broken = broken_ != NcclResult::kSuccess;
  *comm = reinterpret_cast<NcclComm>(made.get());
  comms_[*comm] = std::move(made);
  network_->changed_.SignalAll();
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::AsyncError(NcclComm comm, NcclResult* state) {
  *state = NcclResult::kInternalError;
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  std::shared_ptr<Comm> found;
  const NcclResult entered = Enter(visit, "AsyncError", comm, true, &found);
  if (entered != NcclResult::kSuccess) return entered;
  if (found->broken) {
    *state = broken_;
  } else if (found->polls_left > 0) {
    --found->polls_left;
    *state = NcclResult::kInProgress;
  } else {
    Enqueue(found);
    *state = found->in_progress() ? NcclResult::kInProgress : NcclResult::kSuccess;
  }
  return NcclResult::kSuccess;
}

std::string FakeNccl::LastError(NcclComm) {
  MutexLock lock(&network_->mutex_);
  return why_;
}

NcclResult FakeNccl::Finalize(NcclComm comm) {
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  std::shared_ptr<Comm> found;
  const NcclResult entered = Enter(visit, "Finalize", comm, false, &found);
  if (entered != NcclResult::kSuccess) return entered;
  found->finalizing = true;
  ++found->group->finalized;
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::Destroy(NcclComm comm) {
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  std::shared_ptr<Comm> found;
  const NcclResult entered = Enter(visit, "Destroy", comm, false, &found);
  if (found != nullptr) comms_.erase(comm);
  if (entered != NcclResult::kSuccess) return entered;
  if (!found->finalizing) return Misuse("Destroy", "expected Finalize() first");
  for (const auto& entry : registrations_) {
    if (entry.second.first == comm) return Misuse("Destroy", "memory is registered");
  }
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Abort(NcclComm comm) {
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  std::shared_ptr<Comm> found;
  const NcclResult entered = Enter(visit, "Abort", comm, true, &found);
  if (found == nullptr) return entered;
  found->aborted = true;
  comms_.erase(comm);
  for (auto entry = registrations_.begin(); entry != registrations_.end();) {
    entry = entry->second.first == comm ? registrations_.erase(entry) : std::next(entry);
  }
  network_->changed_.SignalAll();
  return entered;
}

NcclResult FakeNccl::GroupStart() {
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  const NcclResult ordered = Begin("GroupStart");
  if (!visit.alone()) return Misuse("GroupStart", "another thread is inside a call");
  if (ordered == NcclResult::kSuccess) grouping_ = true;
  return ordered;
}

NcclResult FakeNccl::GroupEnd() {
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  const NcclResult ordered = Begin("GroupEnd");
  if (!visit.alone()) return Misuse("GroupEnd", "another thread is inside a call");
  if (!grouping_) return Misuse("GroupEnd", "expected GroupStart() first");
  grouping_ = false;
  std::vector<Op> ops;
  ops.swap(grouped_);
  const std::shared_ptr<Comm> comm = std::move(grouped_comm_);
  grouped_comm_ = nullptr;
  if (ordered != NcclResult::kSuccess || comm == nullptr) return ordered;
  return Issue(comm, std::move(ops));
}

NcclResult FakeNccl::Collective(absl::string_view method, NcclComm comm, const Op& op) {
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  std::shared_ptr<Comm> found;
  const NcclResult entered = Enter(visit, method, comm, false, &found);
  if (entered != NcclResult::kSuccess) return entered;
  if (!grouping_) return Issue(found, {op});
  grouped_.push_back(op);
  grouped_comm_ = std::move(found);
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Issue(const std::shared_ptr<Comm>& comm, std::vector<Op> ops) {
  const auto messages =
      std::count_if(ops.begin(), ops.end(), [](const Op& op) { return op.is_message(); });
  if (messages != 0 && messages != static_cast<std::ptrdiff_t>(ops.size())) {
    return Misuse("GroupEnd", "expected collectives or messages, found both");
  }
  for (Op& op : ops) {
    if (!op.is_message()) op.number = comm->collectives++;
  }
  comm->pending = std::move(ops);
  comm->polls_left = polls_;
  if (polls_ > 0) return NcclResult::kInProgress;
  Enqueue(comm);
  return NcclResult::kSuccess;
}

void FakeNccl::Enqueue(const std::shared_ptr<Comm>& comm) {
  std::vector<Op> ops;
  ops.swap(comm->pending);
  const size_t ranks = static_cast<size_t>(comm->group->world_size);
  std::vector<FakeGpu::Use> of_messages;
  for (const Op& op : ops) {
    if (op.is_message()) {
      of_messages.push_back({op.kind == Op::Kind::kSend ? op.in : op.out, op.size});
      continue;
    }
    ++comm->queued;
    gpu_->Enqueue(op.stream, [network = network_, comm, op] { network->Meet(*comm, op); },
                  {{op.in, op.bytes_in(ranks)}, {op.out, op.bytes_out(ranks)}});
  }
  if (of_messages.empty()) return;
  ++comm->queued;
  const GpuStream stream = ops[0].stream;
  gpu_->Enqueue(
      stream, [network = network_, comm, ops = std::move(ops)] { network->Deliver(comm, ops); },
      std::move(of_messages));
}

void FakeNcclNetwork::Meet(internal::FakeNcclComm& comm, const internal::FakeNcclOp& op) {
  MutexLock lock(&mutex_);
  FakeNcclRound& round = comm.group->rounds[op.number];
  const size_t ranks = static_cast<size_t>(comm.group->world_size);
  if (round.ops.empty()) {
    round.ops.resize(ranks);
    round.here.resize(ranks);
  }
  bool fits = true;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (!round.here[rank] || round.ops[rank].Fits(op)) continue;
    fits = false;
    mismatches_.push_back(absl::StrCat("rank ", comm.rank, " came with ", op.Describe(), ", rank ",
                                       rank, " with ", round.ops[rank].Describe()));
    changed_.SignalAll();
    break;
  }
  round.spoilt = round.spoilt || !fits;
  round.ops[comm.rank] = op;
  round.here[comm.rank] = true;
  ++round.arrived;
  const auto over = [&] { return round.done || comm.aborted; };
  while (!over()) {
    round.spoilt = round.spoilt || comm.broken;
    if (!round.spoilt && round.arrived == comm.group->world_size) {
      internal::Execute(round);
      round.done = true;
      changed_.SignalAll();
    } else {
      changed_.Wait(&mutex_);
    }
  }
  if (!round.done) round.spoilt = true;
  ++comm.ended;
  changed_.SignalAll();
}

void FakeNcclNetwork::Match(FakeNcclGroup& group, int from, int to) {
  internal::FakeNcclChannel& channel = group.channels[{from, to}];
  while (!channel.spoilt && !channel.sends.empty() && !channel.receives.empty()) {
    const internal::FakeNcclPosted& send = channel.sends.front();
    const internal::FakeNcclPosted& receive = channel.receives.front();
    if (send.comm->broken || receive.comm->broken) return;
    if (send.op.size != receive.op.size) {
      mismatches_.push_back(absl::StrCat("rank ", from, " came with ", send.op.Describe(),
                                         ", rank ", to, " with ", receive.op.Describe()));
      channel.spoilt = true;
      changed_.SignalAll();
      return;
    }
    std::memcpy(receive.op.out, send.op.in, send.op.size);
    --*send.unmet;
    --*receive.unmet;
    channel.sends.pop_front();
    channel.receives.pop_front();
    changed_.SignalAll();
  }
}

void FakeNcclNetwork::Deliver(const std::shared_ptr<internal::FakeNcclComm>& comm,
                              const std::vector<internal::FakeNcclOp>& ops) {
  MutexLock lock(&mutex_);
  FakeNcclGroup& group = *comm->group;
  const auto unmet = std::make_shared<int>(static_cast<int>(ops.size()));
  for (const internal::FakeNcclOp& op : ops) {
    const bool sends = op.kind == internal::FakeNcclOp::Kind::kSend;
    const int from = sends ? comm->rank : op.root;
    const int to = sends ? op.root : comm->rank;
    internal::FakeNcclChannel& channel = group.channels[{from, to}];
    (sends ? channel.sends : channel.receives).push_back({comm, op, unmet});
    Match(group, from, to);
  }
  while (*unmet > 0 && !comm->aborted) changed_.Wait(&mutex_);
  if (*unmet > 0) {  // nobody reads or writes this memory any more
    for (auto& [ends, channel] : group.channels) {
      for (auto* const posted : {&channel.sends, &channel.receives}) {
        const auto gone = [&](const auto& entry) { return entry.unmet == unmet; };
        if (std::none_of(posted->begin(), posted->end(), gone)) continue;
        posted->erase(std::remove_if(posted->begin(), posted->end(), gone), posted->end());
        channel.spoilt = true;
      }
    }
  }
  ++comm->ended;
  changed_.SignalAll();
}

NcclResult FakeNccl::AllReduce(const float* in, float* out, size_t count, NcclComm comm,
                               GpuStream stream) {
  return Collective("AllReduce", comm, {Op::Kind::kAllReduce, count, 0, in, out, stream, 0});
}

NcclResult FakeNccl::ReduceScatter(const float* in, float* out, size_t count, NcclComm comm,
                                   GpuStream stream) {
  return Collective("ReduceScatter", comm,
                    {Op::Kind::kReduceScatter, count, 0, in, out, stream, 0});
}

NcclResult FakeNccl::AllGather(const void* in, void* out, size_t bytes, NcclComm comm,
                               GpuStream stream) {
  return Collective("AllGather", comm, {Op::Kind::kAllGather, bytes, 0, in, out, stream, 0});
}

NcclResult FakeNccl::Broadcast(void* data, size_t bytes, int root, NcclComm comm,
                               GpuStream stream) {
  return Collective("Broadcast", comm, {Op::Kind::kBroadcast, bytes, root, data, data, stream, 0});
}

NcclResult FakeNccl::Send(const void* data, size_t bytes, int peer, NcclComm comm,
                          GpuStream stream) {
  return Collective("Send", comm, {Op::Kind::kSend, bytes, peer, data, nullptr, stream, 0});
}

NcclResult FakeNccl::Recv(void* data, size_t bytes, int peer, NcclComm comm, GpuStream stream) {
  return Collective("Recv", comm, {Op::Kind::kRecv, bytes, peer, nullptr, data, stream, 0});
}

NcclResult FakeNccl::Register(NcclComm comm, void* memory, size_t, NcclRegistration* registration) {
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  std::shared_ptr<Comm> found;
  const NcclResult entered = Enter(visit, "Register", comm, false, &found);
  if (entered != NcclResult::kSuccess) return entered;
  *registration = reinterpret_cast<NcclRegistration>(++next_registration_);
  registrations_[*registration] = {comm, memory};
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Deregister(NcclComm comm, NcclRegistration registration) {
  const Visit visit(this);
  MutexLock lock(&network_->mutex_);
  std::shared_ptr<Comm> found;
  const NcclResult entered = Enter(visit, "Deregister", comm, false, &found);
  if (entered != NcclResult::kSuccess) return entered;
  if (registrations_.erase(registration) == 0) return Misuse("Deregister", "not registered");
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::MemAlloc(size_t bytes, void** memory) {
  {
    MutexLock lock(&network_->mutex_);
    const NcclResult ordered = Begin("MemAlloc");
    if (ordered != NcclResult::kSuccess) return ordered;
  }
  const absl::StatusOr<void*> allocated = gpu_->AllocateDevice(bytes);
  if (!allocated.ok()) return NcclResult::kUnhandledCudaError;
  *memory = *allocated;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::MemFree(void* memory) {
  {
    MutexLock lock(&network_->mutex_);
    const NcclResult ordered = Begin("MemFree");
    if (ordered != NcclResult::kSuccess) return ordered;
    for (const auto& entry : registrations_) {
      if (entry.second.second == memory) return Misuse("MemFree", "the memory is registered");
    }
  }
  if (gpu_->ReleaseAtOnce(memory)) return NcclResult::kSuccess;
  return NcclResult::kUnhandledCudaError;  // and a misuse of the GPU
}

}  // namespace gradsync
