#include "core/plan/ring_schedule.h"

namespace gradsync {
namespace {

void CountSent(int64_t bytes, RingTraffic* traffic) {
  traffic->tx_bytes += bytes;
  ++traffic->tx_messages;
}

void CountReceived(int64_t bytes, RingTraffic* traffic) {
  traffic->rx_bytes += bytes;
  ++traffic->rx_messages;
}

}  // namespace

RingTraffic BucketTraffic(const StripeLayout& layout, int rank, Codec codec, Returned returned) {
  const int n = layout.world_size();
  RingTraffic traffic;
  for (int slot = 0; slot < layout.slots(); ++slot) {
    const int64_t elements = layout.range(slot).size();
    if (elements == 0) continue;
    const int64_t reduce = GradientForm(codec, elements).bytes();
    const int64_t gather = ReturnedForm(codec, elements, n, returned).bytes();
    const int chunk = layout.chunk_of(slot);
    if (SendsReduce(chunk, rank)) CountSent(reduce, &traffic);
    if (SendsGather(chunk, rank, n)) CountSent(gather, &traffic);
    if (ReduceHop(chunk, rank, n) != 0) CountReceived(reduce, &traffic);
    if (GatherHop(chunk, rank, n) != 0) CountReceived(gather, &traffic);
  }
  return traffic;
}

RingTraffic StepTraffic(const Plan& plan, int rank, Returned returned) {
  RingTraffic sum;
  for (const BucketPlan& bucket : plan.buckets()) {
    const RingTraffic traffic = BucketTraffic(bucket.layout, rank, plan.codec(), returned);
    sum.tx_bytes += traffic.tx_bytes;
    sum.rx_bytes += traffic.rx_bytes;
    sum.tx_messages += traffic.tx_messages;
    sum.rx_messages += traffic.rx_messages;
  }
  return sum;
}

RingTraffic BroadcastTraffic(const Plan& plan, int rank) {
  RingTraffic traffic;
  for (const BucketPlan& bucket : plan.buckets()) {
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      const int64_t bytes = bucket.layout.range(slot).size() * 4;
      if (bytes == 0) continue;
      if (RingNext(rank, plan.world_size()) != 0) CountSent(bytes, &traffic);
      if (rank != 0) CountReceived(bytes, &traffic);
    }
  }
  return traffic;
}

}  // namespace gradsync
