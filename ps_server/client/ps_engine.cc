// A worker's half of synchronous and asynchronous parameter servers (Li et al., "Scaling
// Distributed Machine Learning with the Parameter Server", OSDI 2014): as each bucket is complete
// its chunks are pushed to the servers that own them (core/plan/shard_map.h), in the order of
// PushOrders(), with at most `leads` of them on their way, and what the servers return is stored
// in place. There is no pull request: a result is the answer to a push. ps_server/service.h shows
// the frames.

#include "ps_server/client/ps_engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"
#include "core/plan/plan_proto.h"
#include "core/plan/shard_map.h"

namespace gradsync {
PsEngine::PsEngine(const Options& options, const Plan& plan, const ShardMap& shards,
                   std::vector<ExchangedBucket> buckets, std::function<void(absl::Status)> on_error)
    : options_(options),
      plan_(plan),
      shards_(shards),
      on_error_(std::move(on_error)),
      welcome_("the servers' answer to hello",
               std::accumulate(options.connections.begin(), options.connections.end(), int64_t{0})),
      norms_(plan, shards),
      encoder_(std::make_shared<ChunkEncoder>(plan)) {
  std::vector<std::vector<ChunkId>> orders = PushOrders(plan_, shards_, options_.rank);
  for (size_t i = 0; i < options_.servers.size(); ++i) {
    const int index = static_cast<int>(i);
    auto server = std::make_unique<Server>();
    server->connection = std::make_unique<ServerConnection>(
        index, options_.numbers[i], options_.names[i], options_.servers[i], options_.connections[i],
        options_.leads[i], options_.recorder, plan.world_size() + index);
    server->order = std::move(orders[i]);
    for (int b = 0; b <= static_cast<int>(plan_.buckets().size()); ++b) {
      const auto first = std::partition_point(server->order.begin(), server->order.end(),
                                              [b](ChunkId id) { return id.bucket < b; });
      server->begin.push_back(first - server->order.begin());
    }
    server->unanswered = options_.connections[i];
    servers_.push_back(std::move(server));
  }
  MutexLock lock(&mutex_);
  for (size_t b = 0; b < buckets.size(); ++b) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.memory = std::move(buckets[b]);
    bucket.awaited.resize(plan_.buckets()[b].layout.slots());
    bucket.parameters_awaited = bucket.awaited;
    bucket.deferred = bucket.awaited;
    bucket.shards_awaited = bucket.awaited;
    bucket.countdown = std::make_shared<Countdown>(absl::StrCat("bucket ", b), options_.driver);
    bucket.lending = std::make_shared<Lending>();
    bucket.lending->memory = bucket.memory.owner;
    bucket.lending->encoder = encoder_;
    bucket.lending->loans.resize(bucket.awaited.size());
  }
}

SyncHandle PsEngine::Welcomed() const { return welcome_.handle(); }

std::vector<std::string> PsEngine::ServerWindows() const {
  MutexLock lock(&mutex_);
  std::vector<std::string> windows;
  for (const auto& server : servers_) windows.push_back(server->window);
  return windows;
}

void PsEngine::SendWindows(const std::vector<std::string>& addresses) {
  proto::WindowAddresses windows;
  for (const std::string& address : addresses) windows.add_addresses(address);
  for (const auto& server : servers_) {
    OutgoingFrame frame = FrameOf(proto::FrameHeader::WINDOWS);
    SetPayload(windows.SerializeAsString(), &frame);
    server->connection->Send(std::move(frame));
  }
}

absl::Status PsEngine::Connect(StreamLink& link, const proto::Hello& hello, Deadline deadline) {
  for (const auto& server : servers_) {
    const int connections = server->connection->connections();
    for (int connection = 0; connection < connections; ++connection) {
      GS_RETURN_IF_ERROR(OpenStream(link, *server, deadline));
      proto::Hello own = hello;
      own.set_connection(connection);
      own.mutable_terms()->set_server_index(server->connection->index());
      own.set_server_number(server->connection->number() + 1);
      own.mutable_terms()->set_connections(connections);
      own.mutable_terms()->set_credit(CreditFor(options_.leads[server->connection->index()]));
      if (connection == 0) *own.mutable_plan() = PlanToProto(plan_);
      if (connection != 0) {
        own.clear_host();
        own.clear_store();
        own.clear_servers();
        own.clear_numbers();
        own.clear_server_numbers();
      }
      OutgoingFrame frame = FrameOf(proto::FrameHeader::HELLO);
      SetPayload(own.SerializeAsString(), &frame);
      server->connection->Send(std::move(frame), connection);
      const absl::Status failed = failure();
      if (!failed.ok()) {
        server->connection->LeaveWith(failed);  // as FailAll() did with those that were there
        return failed;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PsEngine::failure() const {
  MutexLock lock(&mutex_);
  return failure_;
}

std::shared_ptr<Countdown> PsEngine::Begin(std::string what, int64_t count) {
  auto countdown = std::make_shared<Countdown>(std::move(what), count);
  if (!failure_.ok()) countdown->Fail(failure_);
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(),
                                [](const auto& weak) { return weak.expired(); }),
                 pending_.end());
  pending_.push_back(countdown);
  return countdown;
}

ElementRange PsEngine::Range(ChunkId id) const {
  return plan_.buckets()[id.bucket].layout.range(id.slot);
}

void PsEngine::QueueChunk(Server& server, size_t number, proto::FrameHeader header,
                          absl::Span<const char> payload,
                          const std::shared_ptr<Countdown>& countdown) {
  const ChunkId id = server.order[number];
  OutgoingFrame frame;
  frame.header = std::move(header);
  SetChunk(id, &frame.header);
  frame.payload = payload;
  {
    MutexLock lock(&mutex_);
    const std::shared_ptr<Lending>& lending = buckets_[id.bucket].lending;
    Loan& loan = lending->loans[id.slot];
    loan.keep = lending;
    loan.countdown = countdown;
    frame.released = Release(&PsEngine::Returned, &loan);
  }
  server.connection->Queue(std::move(frame), number);
}

void PsEngine::Returned(void* returned) {
  Loan& loan = *static_cast<Loan*>(returned);
  // The loan may be made again as soon as it is counted.
  const std::shared_ptr<Lending> keep = std::move(loan.keep);
  const std::shared_ptr<Countdown> countdown = std::move(loan.countdown);
  countdown->Done();
}

SyncHandle PsEngine::Launch(const StepOptions& step, int bucket) {
  std::shared_ptr<Countdown> countdown;
  absl::optional<SyncHandle> handle;
  const float* grad;
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return ResolvedHandle(failure_);
    if (bucket == 0 && !options_.consistency.bulk()) {
      if (steps_++ > 0) past_staleness_.Count(step_staleness_);
      step_staleness_ = 0;
    }
    Bucket& state = buckets_[bucket];
    int64_t chunks = 0;
    for (size_t slot = 0; slot < state.awaited.size(); ++slot) {
      state.awaited[slot] = !Range({bucket, static_cast<int>(slot)}).empty();
      state.deferred[slot] = false;
      chunks += state.awaited[slot];
    }
    // A chunk is done with when its result is here and no stream reads its gradient.
    state.countdown->Restart(step.step, 2 * chunks);
    state.step = step.step;
    countdown = state.countdown;
    handle = countdown->handle();
    grad = state.memory.grad;
  }
  if (bucket == 0) norms_.Begin(step.step);
  StepOptions told = step;
  if (options_.update_site == UpdateSite::kWorker) told.lr = told.max_norm = 0;  // not theirs
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PUSH);
  SetStep(told, &header);
  for (const auto& server : servers_) {
    for (size_t q = server->begin[bucket]; q < server->begin[bucket + 1]; ++q) {
      const ChunkId id = server->order[q];
      QueueChunk(*server, q, header,
                 encoder_->EncodeGradient(id, grad + Range(id).begin, step.inverse_loss_scale),
                 countdown);
    }
  }
  return *std::move(handle);
}

int64_t PsEngine::AwaitParameters(int first, int end) {
  int64_t chunks = 0;
  for (const auto& server : servers_) {
    for (size_t q = server->begin[first]; q < server->begin[end]; ++q) {
      const ChunkId id = server->order[q];
      buckets_[id.bucket].parameters_awaited[id.slot] = true;
      ++chunks;
    }
  }
  return chunks;
}

SyncHandle PsEngine::Gather(int bucket) {
  std::shared_ptr<Countdown> countdown;
  {
    MutexLock lock(&mutex_);
    int64_t chunks = 0;
    Bucket& state = buckets_[bucket];
    for (size_t slot = 0; slot < state.shards_awaited.size(); ++slot) {
      state.shards_awaited[slot] = !Range({bucket, static_cast<int>(slot)}).empty();
      chunks += state.shards_awaited[slot];
    }
    countdown = Begin(absl::StrCat("a gather of bucket ", bucket), chunks);
    state.gather = countdown;
    if (!failure_.ok()) return countdown->handle();
  }
  for (const auto& server : servers_) {
    if (server->begin[bucket] == server->begin[bucket + 1]) continue;
    OutgoingFrame frame;
    frame.header.set_kind(proto::FrameHeader::SHARD);
    frame.header.set_bucket(bucket);
    // The gradients before it are of buckets that this step does not gather any more.
    frame.urgent = true;
    server->connection->Send(std::move(frame));
  }
  return countdown->handle();
}

SyncHandle PsEngine::Settle() {
  std::shared_ptr<Countdown> countdown;
  {
    MutexLock lock(&mutex_);
    countdown = Begin("the parameters after all workers have settled",
                      AwaitParameters(0, static_cast<int>(buckets_.size())));
    settling_ = true;
    transfer_ = countdown;
    if (!failure_.ok()) return countdown->handle();
  }
  for (const auto& server : servers_) {
    OutgoingFrame frame;
    frame.header.set_kind(proto::FrameHeader::SETTLE);
    server->connection->Send(std::move(frame));
  }
  return countdown->handle();
}

SyncHandle PsEngine::FetchTraces() {
  std::shared_ptr<Countdown> countdown;
  {
    MutexLock lock(&mutex_);
    countdown = Begin("what the servers recorded", static_cast<int64_t>(servers_.size()));
    transfer_ = countdown;
    if (!failure_.ok()) return countdown->handle();
  }
  for (const auto& server : servers_) server->connection->Send(server->clock.Ask());
  return countdown->handle();
}

SyncHandle PsEngine::TransferParameters(int first, int end) {
  std::shared_ptr<Countdown> countdown;
  std::vector<const float*> params;
  {
    MutexLock lock(&mutex_);
    const int64_t chunks = AwaitParameters(first, end);
    settling_ = false;
    // Rank 0 waits for each chunk's acknowledgement and release, the others for the chunk.
    countdown = Begin("the broadcast of parameters", options_.rank == 0 ? 2 * chunks : chunks);
    transfer_ = countdown;
    for (const Bucket& bucket : buckets_) params.push_back(bucket.memory.param);
    if (!failure_.ok()) return countdown->handle();
  }
  if (options_.rank != 0) return countdown->handle();
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PARAMETERS);
  for (const auto& server : servers_) {
    for (size_t q = server->begin[first]; q < server->begin[end]; ++q) {
      const ChunkId id = server->order[q];
      const float* const from = params[id.bucket] + Range(id).begin;
      QueueChunk(*server, q, header,
                 absl::MakeConstSpan(reinterpret_cast<const char*>(from),
                                     Range(id).size() * sizeof(float)),
                 countdown);
    }
  }
  return countdown->handle();
}

SyncHandle PsEngine::Leave() {
  std::shared_ptr<Countdown> countdown;
  {
    MutexLock lock(&mutex_);
    countdown = Begin(
        "the servers' goodbye",
        std::accumulate(options_.connections.begin(), options_.connections.end(), int64_t{0}));
    farewell_ = countdown;
    if (!lost_.ok()) countdown->Fail(lost_);
    if (!failure_.ok()) return countdown->handle();
  }
  for (const auto& server : servers_) server->connection->Leave();
  return countdown->handle();
}

void PsEngine::LeaveWith(const absl::Status& error, bool at_once) {
  for (const auto& server : servers_) server->connection->LeaveWith(error, at_once);
}

void PsEngine::Cancel(const absl::Status& reason) {
  for (const auto& server : servers_) server->connection->Cancel(reason);
}

void PsEngine::FailAll(const absl::Status& status) {
  const bool begun = Welcomed().done();
  std::vector<std::weak_ptr<Countdown>> pending;
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
    pending.swap(pending_);
    for (const Bucket& bucket : buckets_) pending.push_back(bucket.countdown);
  }
  welcome_.Fail(status);
  for (const auto& weak : pending) {
    if (const auto countdown = weak.lock()) countdown->Fail(status);
  }
  // Of a stream that only ends a server that cannot reach the job's store, or cannot any more, could
  // say no more than that this worker was lost. Close() waits no longer than kHearing for it.
  LeaveWith(status, /*at_once=*/begun);
}

bool PsEngine::WaitClosed(Deadline deadline) {
  PatientDeadline patience(deadline);
  MutexLock lock(&mutex_);
  while (open_ > 0) {
    const bool late = changed_.WaitWithDeadline(&mutex_, patience.next_look());
    if (late && open_ > 0 && patience.Passed()) return false;
  }
  return true;
}

std::string PsEngine::UnansweredServers() const {
  std::vector<std::string> names;
  for (const auto& server : servers_) {
    if (server->unanswered > 0) names.push_back(server->connection->Name());
  }
  return absl::StrJoin(names, ", ");
}

WireStats PsEngine::wire_stats() const {
  WireStats stats = received_.stats();
  for (const auto& server : servers_) {
    const WireStats sent = server->connection->sent();
    stats.tx_bytes += sent.tx_bytes;
    stats.tx_messages += sent.tx_messages;
  }
  return stats;
}

Staleness PsEngine::staleness() const {
  MutexLock lock(&mutex_);
  Staleness staleness = past_staleness_;
  if (steps_ > 0) staleness.Count(step_staleness_);
  return staleness;
}

}  // namespace gradsync
