#include "simulator/ring_exchange.h"

#include <algorithm>
#include <utility>

#include "core/plan/ring_schedule.h"

namespace gradsync {

RingExchange::RingExchange(const Plan& plan, const Cluster& cluster, double owner_update,
                           EventQueue* queue, ExchangePlace place, Resolved resolved)
    : SimulatedExchange(plan, cluster, std::move(place), std::move(resolved)),
      lead_(cluster.ring_lead),
      connections_(cluster.ring_connections),
      owner_work_(plan.world_size(), owner_update, queue,
                  [this](int chunk) {
                    const ChunkId id = chunks_.id(chunk);
                    PassOnFinal(plan_.buckets()[id.bucket].layout.chunk_of(id.slot), chunk);
                  }),
      ranks_(plan.world_size()) {
  for (Rank& rank : ranks_) {
    rank.step.assign(plan.buckets().size(), -1);
    rank.open.assign(plan.buckets().size(), 0);
    rank.gathers.resize(plan.buckets().size());
  }
}

void RingExchange::Launch(int rank, int step, int bucket) {
  Rank& state = ranks_[rank];
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  state.step[bucket] = step;
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (!layout.range(slot).empty()) ++state.open[bucket];
  }
  if (state.open[bucket] == 0) return resolved_(rank, bucket);
  const int own = InitiatedChunk(rank, world_size_);
  for (int stripe = 0; stripe < layout.stripes(); ++stripe) {
    const int slot = layout.slot(stripe, own);
    if (!layout.range(slot).empty()) state.own.push_back(chunks_.number(bucket, slot));
  }
  InitiateOwn(rank);
  std::vector<SimulatedMessage> still_held;
  for (const SimulatedMessage& message : std::exchange(state.held, {})) {
    if (message.bucket == bucket) {
      Fold(rank, chunks_.number(bucket, message.slot));
    } else {
      still_held.push_back(message);
    }
  }
  state.held = std::move(still_held);
}

void RingExchange::ObserveUpdates(UpdateObserver updates) {
  if (updates == nullptr) return;
  owner_work_.Observe(
      [this, updates = std::move(updates)](int owner, int chunk, double begin, double end) {
        updates(owner, chunks_.id(chunk), begin, end);
      });
}

void RingExchange::InitiateOwn(int rank) {
  Rank& state = ranks_[rank];
  while (state.under_way < lead_ && !state.own.empty()) {
    const int chunk = state.own.front();
    state.own.pop_front();
    if (world_size_ == 1) {
      Fold(rank, chunk);
      continue;
    }
    ++state.under_way;
    Send(kReduce, rank, chunk, /*urgent=*/false);
  }
}

void RingExchange::Send(Kind kind, int rank, int chunk, bool urgent) {
  const ChunkId id = chunks_.id(chunk);
  SimulatedMessage message;
  message.from = rank;
  message.to = RingNext(rank, world_size_);
  message.connection = chunk % connections_;
  message.urgent = urgent;
  message.bytes = kind == kReduce   ? chunks_.gradient_bytes(chunk)
                  : kind == kGather ? chunks_.returned_bytes(chunk)
                  : kind == kShard  ? chunks_.parameter_bytes(chunk)
                                    : 0;
  message.kind = kind;
  message.step =
      kind == kShard ? ranks_[rank].gathers[id.bucket].number : ranks_[rank].step[id.bucket];
  message.bucket = id.bucket;
  message.slot = id.slot;
  SendMessage(message);
}

void RingExchange::OnExchanged(const SimulatedMessage& message) {
  const int rank = message.to;
  const int chunk = chunks_.number(message.bucket, message.slot);
  if (message.kind == kCredit) return OnCredit(rank, chunk);
  if (message.kind == kShard) {
    OnShard(message);
    return CloseShard(message.from, message.bucket);
  }
  if (message.kind == kReduce) {
    if (keeps_parameters_) OnSumReceived(message.from, chunk);
    if (ranks_[rank].step[message.bucket] < message.step) {
      ranks_[rank].held.push_back(message);
    } else {
      Fold(rank, chunk);
    }
    return;
  }
  PassOnFinal(rank, chunk);
  if (message.slot % world_size_ != InitiatedChunk(rank, world_size_)) return;
  --ranks_[rank].under_way;
  InitiateOwn(rank);
}

void RingExchange::Fold(int rank, int chunk) {
  if (SendsReduce(chunks_.id(chunk).slot % world_size_, rank)) {
    Send(kReduce, rank, chunk, /*urgent=*/true);
  } else {
    owner_work_.Update(rank, chunk, chunks_.share(chunk));
  }
}

void RingExchange::PassOnFinal(int rank, int chunk) {
  const ChunkId id = chunks_.id(chunk);
  if (keeps_parameters_) {
    if (world_size_ > 1) Send(kCredit, rank, chunk, /*urgent=*/true);
    return EndToken(rank, chunk);
  }
  if (SendsGather(id.slot % world_size_, rank, world_size_)) {
    Send(kGather, rank, chunk, /*urgent=*/true);
  }
  EndToken(rank, chunk);
}

void RingExchange::EndToken(int rank, int chunk) {
  const int bucket = chunks_.id(chunk).bucket;
  if (--ranks_[rank].open[bucket] == 0) resolved_(rank, bucket);
}

// Its memory is free, but an initiator waits for the owner.
void RingExchange::OnSumReceived(int sender, int chunk) {
  if (chunks_.id(chunk).slot % world_size_ != InitiatedChunk(sender, world_size_)) {
    EndToken(sender, chunk);
  }
}

void RingExchange::OnCredit(int rank, int chunk) {
  --ranks_[rank].under_way;
  EndToken(rank, chunk);
  InitiateOwn(rank);
}

void RingExchange::Gather(int rank, int bucket) {
  Gathering& gather = ranks_[rank].gathers[bucket];
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  ++gather.number;
  gather.open = 1;  // until the own chunks are sent
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (layout.chunk_of(slot) != rank && !layout.range(slot).empty()) ++gather.open;
  }
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (layout.chunk_of(slot) != rank || layout.range(slot).empty()) continue;
    SendShard(rank, chunks_.number(bucket, slot));
  }
  for (const SimulatedMessage& message : std::exchange(gather.held, {})) OnShard(message);
  CloseShard(rank, bucket);
}

void RingExchange::OnShard(const SimulatedMessage& message) {
  Gathering& gather = ranks_[message.to].gathers[message.bucket];
  if (message.step > gather.number) {
    gather.held.push_back(message);
    return;
  }
  SendShard(message.to, chunks_.number(message.bucket, message.slot));
  CloseShard(message.to, message.bucket);
}

void RingExchange::SendShard(int rank, int chunk) {
  const ChunkId id = chunks_.id(chunk);
  if (!SendsGather(id.slot % world_size_, rank, world_size_)) return;
  ++ranks_[rank].gathers[id.bucket].open;
  Send(kShard, rank, chunk, /*urgent=*/true);
}

void RingExchange::CloseShard(int rank, int bucket) {
  if (--ranks_[rank].gathers[bucket].open == 0) gathered_(rank, bucket);
}

}  // namespace gradsync
