#include "simulator/ps_exchange.h"

#include <algorithm>
#include <utility>

#include "core/plan/shard_map.h"
#include "core/plan/stripes.h"

namespace gradsync {

PsExchange::PsExchange(const Plan& plan, ShardMap shards, const Cluster& cluster,
                       double owner_update, EventQueue* queue, ExchangePlace place,
                       Resolved resolved)
    : SimulatedExchange(plan, cluster, std::move(place), std::move(resolved)),
      shards_(std::move(shards)),
      consistency_(cluster.consistency),
      urgent_notices_(cluster.urgent_notices),
      connections_(
          StreamsByServer(ServerWeights(cluster, plan.world_size()), cluster.ps_connections)),
      leads_(PushLeads(plan, shards_, connections_, cluster.lead)),
      owner_work_(shards_.servers(), owner_update, queue,
                  [this](int work) {
                    if (consistency_.bulk()) return SendResult(work);
                    Applied(work % world_size_, work / world_size_);
                  }),
      pairs_(static_cast<size_t>(world_size_) * shards_.servers()),
      folds_(chunks_.count()),
      results_(shards_.servers(), 0),
      open_(world_size_, std::vector<int>(plan.buckets().size(), 0)),
      gathering_(open_) {
  for (int rank = 0; rank < world_size_; ++rank) {
    for (int server = 0; server < shards_.servers(); ++server) {
      pair(rank, server).credit = CreditFor(leads_[server]);
      pair(rank, server).lead = leads_[server];
    }
  }
  for (Chunk& chunk : folds_) {
    chunk.arrived.assign(world_size_, false);
    if (consistency_.bulk()) continue;
    chunk.clocks.assign(world_size_, 0);
    chunk.waiting.assign(world_size_, false);
    chunk.deferred.assign(world_size_, false);
  }
}

void PsExchange::Launch(int rank, int step, int bucket) {
  (void)step;  // a chunk's next fold begins only when all have the result of the last
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  int& open = open_[rank][bucket];
  for (int stripe = 0; stripe < layout.stripes(); ++stripe) {
    for (int position = 0; position < world_size_; ++position) {
      const int slot = layout.slot(stripe, SendChunk(rank, position, world_size_));
      if (layout.range(slot).empty()) continue;
      ++open;
      pair(rank, shards_.server({bucket, slot})).queued.push_back(chunks_.number(bucket, slot));
    }
  }
  if (open == 0) return resolved_(rank, bucket);
  for (int server = 0; server < shards_.servers(); ++server) {
    if (bucket == 0) pair(rank, server).number = 0;
    Pump(rank, server);
  }
}

void PsExchange::Gather(int rank, int bucket) {
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  std::vector<bool> asked(shards_.servers(), false);
  int& open = gathering_[rank][bucket];
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (layout.range(slot).empty()) continue;
    ++open;
    asked[shards_.server({bucket, slot})] = true;
  }
  if (open == 0) return gathered_(rank, bucket);
  for (int server = 0; server < shards_.servers(); ++server) {
    if (!asked[server]) continue;
    SimulatedMessage message;
    message.from = rank;
    message.to = world_size_ + server;
    message.urgent = urgent_notices_;
    message.kind = kAsk;
    message.bucket = bucket;
    SendMessage(message);
  }
}

void PsExchange::OnAsk(int rank, int server, int bucket) {
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (layout.range(slot).empty() || shards_.server({bucket, slot}) != server) continue;
    const int chunk = chunks_.number(bucket, slot);
    SimulatedMessage message = PullOf(chunk, &pair(rank, server).answers);
    message.to = rank;
    message.bytes = chunks_.parameter_bytes(chunk);
    message.kind = kShard;
    SendMessage(message);
  }
}

void PsExchange::ObserveUpdates(UpdateObserver updates) {
  if (updates == nullptr) return;
  owner_work_.Observe(
      [this, updates = std::move(updates)](int owner, int work, double begin, double end) {
        updates(owner, chunks_.id(consistency_.bulk() ? work : work / world_size_), begin, end);
      });
}

void PsExchange::Pump(int rank, int server) {
  Pair& state = pair(rank, server);
  while (state.credit > 0 && state.lead > 0 && !state.queued.empty()) {
    const int chunk = state.queued.front();
    const ChunkId id = chunks_.id(chunk);
    state.queued.pop_front();
    --state.credit;
    --state.lead;
    SimulatedMessage message;
    message.from = rank;
    message.to = world_size_ + server;
    message.connection = state.number++ % connections_[server];
    message.bytes = chunks_.gradient_bytes(chunk);
    message.kind = kPush;
    message.bucket = id.bucket;
    message.slot = id.slot;
    SendMessage(message);
  }
}

void PsExchange::OnExchanged(const SimulatedMessage& message) {
  if (message.kind == kPush) {
    return OnPush(message.from, message.to - world_size_,
                  chunks_.number(message.bucket, message.slot));
  }
  if (message.kind == kAsk) {
    return OnAsk(message.from, message.to - world_size_, message.bucket);
  }
  const int rank = message.to;
  const int server = message.from - world_size_;
  if (message.kind == kShard) {
    if (--gathering_[rank][message.bucket] == 0) gathered_(rank, message.bucket);
    return;
  }
  if (message.kind == kCredit) {
    pair(rank, server).credit += message.count;
    return Pump(rank, server);
  }
  if (message.kind == kDeferred) {
    ++pair(rank, server).lead;
    return Pump(rank, server);
  }
  // An answer that was deferred has been counted.
  if (message.count == 0) ++pair(rank, server).lead;
  Pump(rank, server);
  if (--open_[rank][message.bucket] == 0) resolved_(rank, message.bucket);
}

void PsExchange::OnPush(int rank, int server, int chunk) {
  if (!consistency_.bulk()) {
    return owner_work_.Update(server, chunk * world_size_ + rank, chunks_.share(chunk));
  }
  Chunk& fold = folds_[chunk];
  const int place = chunks_.id(chunk).slot % world_size_;
  fold.arrived[FoldPosition(place, rank, world_size_)] = true;
  const bool holds_first = world_size_ > 1;
  while (fold.next < world_size_ && fold.arrived[fold.next]) {
    const int position = fold.next++;
    if (holds_first && position == 0) continue;
    if (holds_first && position == 1) OnFolded(FoldRank(place, 0, world_size_), server);
    OnFolded(FoldRank(place, position, world_size_), server);
  }
  if (fold.next < world_size_) return;
  fold.next = 0;
  fold.arrived.assign(world_size_, false);
  owner_work_.Update(server, chunk, chunks_.share(chunk));
}

void PsExchange::OnFolded(int rank, int server) {
  const int batch = CreditBatch(CreditFor(leads_[server]));
  Pair& state = pair(rank, server);
  if (++state.folded % batch != 0) return;
  SimulatedMessage message;
  message.from = world_size_ + server;
  message.to = rank;
  message.urgent = true;
  message.kind = kCredit;
  message.count = batch;
  SendMessage(message);
}

SimulatedMessage PsExchange::PullOf(int chunk, int* sent) {
  const ChunkId id = chunks_.id(chunk);
  const int server = shards_.server(id);
  SimulatedMessage message;
  message.from = world_size_ + server;
  message.connection = (*sent)++ % connections_[server];
  message.bytes = chunks_.returned_bytes(chunk);
  message.kind = kPull;
  message.bucket = id.bucket;
  message.slot = id.slot;
  return message;
}

void PsExchange::SendResult(int chunk) {
  SimulatedMessage message = PullOf(chunk, &results_[shards_.server(chunks_.id(chunk))]);
  message.urgent = keeps_parameters_ && urgent_notices_;
  for (int rank = 0; rank < world_size_; ++rank) {
    message.to = rank;
    SendMessage(message);
  }
}

void PsExchange::SendDeferred(int rank, int server) {
  SimulatedMessage message;
  message.from = world_size_ + server;
  message.to = rank;
  message.urgent = true;
  message.kind = kDeferred;
  SendMessage(message);
}

void PsExchange::Applied(int rank, int chunk) {
  Chunk& state = folds_[chunk];
  ++state.clocks[rank];
  state.waiting[rank] = true;
  const int server = shards_.server(chunks_.id(chunk));
  OnFolded(rank, server);
  const int slowest = *std::min_element(state.clocks.begin(), state.clocks.end());
  for (int other = 0; other < world_size_; ++other) {
    if (!state.waiting[other]) continue;
    const int64_t ahead = state.clocks[other] - slowest;
    if (!consistency_.Allows(ahead)) {
      if (!state.deferred[other]) SendDeferred(other, server);
      state.deferred[other] = true;
      continue;
    }
    SimulatedMessage message = PullOf(chunk, &pair(other, server).answers);
    message.to = other;
    message.count = state.deferred[other];
    SendMessage(message);
    max_staleness_ = std::max(max_staleness_, ahead);
    state.waiting[other] = state.deferred[other] = false;
  }
}

}  // namespace gradsync
