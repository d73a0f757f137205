#include "benchmarks/exchange/exchange_runner.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "benchmarks/exchange/exact_input.h"
#include "benchmarks/exchange/rounded_input.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/machine_info.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"

namespace gradsync {
namespace {

constexpr double kLearningRate = 1.0 / 128;
// The machine's load is counted in hundredths of a second, and asking for it takes 30 us in the kernel,
// after which caches are cold: for shorter exchanges it says nothing, and makes them longer.
constexpr double kAsksFromMicroseconds = 100;
constexpr int64_t kBlock = 4096;  // elements generated at a time: they stay in the L1 cache

class Runner {
 public:
  Runner(const ExchangeOptions& options, const std::function<absl::Status()>& start,
         GradientSync* sync)
      : options_(options), start_(start), sync_(sync), gpu_(sync->gpu()) {}

  absl::StatusOr<proto::ExchangeMetrics> Run() {
    GS_RETURN_IF_ERROR(Bind());
    GS_RETURN_IF_ERROR(PrepareGpu());
    GS_RETURN_IF_ERROR(Broadcast());
    SpreadOverCores();
    for (int64_t step = 1; step <= options_.warmup; ++step) GS_RETURN_IF_ERROR(Step(step, false));
    const WireStats before = sync_->wire_stats();
    for (int i = 1; i <= options_.iterations; ++i) {
      GS_RETURN_IF_ERROR(Step(options_.warmup + i, true));
    }
    const WireStats wire = sync_->wire_stats() - before;
    GS_RETURN_IF_ERROR(sync_->Shutdown(NewDeadline()));
    metrics_.set_rank(options_.rank);
    metrics_.set_wrong(static_cast<double>(wrong_));
    metrics_.set_wire_tx_bytes_per_step(static_cast<double>(wire.tx_bytes) / options_.iterations);
    metrics_.set_wire_rx_bytes_per_step(static_cast<double>(wire.rx_bytes) / options_.iterations);
    metrics_.set_cpu_seconds(cpu_seconds_);
    return std::move(metrics_);
  }

 private:
  struct Bucket {
    float* grad;
    float* param;
    int64_t size;                 // elements of the tensor, padding not included
    int64_t first;                // index of its first element in the whole input
    std::vector<float> expected;  // parameters, under kOwner
  };

  Deadline NewDeadline() const { return Deadline::In(options_.timeout); }

  absl::Status Bind() {
    GS_ASSIGN_OR_RETURN(const Plan plan, ExchangePlan(options_));
    GS_ASSIGN_OR_RETURN(memory_, sync_->Bind(plan, NewDeadline()));
    int64_t first = 0;
    for (const BucketPlan& bucket : plan.buckets()) layouts_.push_back(bucket.layout);
    for (size_t b = 0; b < memory_.size(); ++b) {
      const int64_t size = plan.tensors()[b].numel();
      buckets_.push_back({memory_[b].grad.floats(), memory_[b].param.floats(), size, first, {}});
      first += size;
      const BucketPlan& bucket = plan.buckets()[b];
      metrics_.set_bucket_bytes(
          std::max(metrics_.bucket_bytes(), static_cast<double>(bucket.bytes())));
      const double chunk = 4.0 * std::min(bucket.layout.chunk_elements(), bucket.numel);
      metrics_.set_chunk_bytes(std::max(metrics_.chunk_bytes(), chunk));
    }
    metrics_.set_bytes(static_cast<double>(plan.total_bytes()));
    metrics_.set_buckets(static_cast<int>(plan.buckets().size()));
    return absl::OkStatus();
  }

  absl::Status PrepareGpu() {
    if (gpu_ == nullptr) return absl::OkStatus();
    int64_t most = 0;
    for (const Bucket& bucket : buckets_) most = std::max(most, bucket.size);
    GS_ASSIGN_OR_RETURN(staging_, GpuMemory::Pinned(gpu_, most * sizeof(float)));
    GS_ASSIGN_OR_RETURN(idle_, ScopedEvent::Create(gpu_));
    return absl::OkStatus();
  }

  // Until the GPU has done all that was queued so far on the stream of this thread.
  absl::Status AwaitGpu() {
    if (gpu_ == nullptr) return absl::OkStatus();
    GS_RETURN_IF_ERROR(gpu_->Record(idle_.get(), gpu_->ComputeStream()));
    return gpu_->Synchronize(idle_.get());
  }

  // Where the host sees `memory` of a bucket: there, or in a copy that the next call overwrites.
  float* HostView(float* memory) const { return gpu_ == nullptr ? memory : staging_->floats(); }

  absl::Status ToBucket(float* memory, int64_t size) {
    if (gpu_ == nullptr) return absl::OkStatus();
    GS_RETURN_IF_ERROR(
        gpu_->Copy(memory, staging_->data(), size * sizeof(float), gpu_->ComputeStream()));
    return AwaitGpu();
  }

  absl::Status FromBucket(const float* memory, int64_t size) {
    if (gpu_ == nullptr) return absl::OkStatus();
    GS_RETURN_IF_ERROR(
        gpu_->Copy(staging_->data(), memory, size * sizeof(float), gpu_->ComputeStream()));
    return AwaitGpu();
  }

  // Rank 0's parameters are the mean of step 0, for want of a better pattern.
  absl::Status Broadcast() {
    for (Bucket& bucket : buckets_) {
      bucket.expected.resize(bucket.size);
      FillMean(options_.world_size, 0, bucket.first, absl::MakeSpan(bucket.expected));
      if (options_.rank != 0) continue;
      std::copy(bucket.expected.begin(), bucket.expected.end(), HostView(bucket.param));
      GS_RETURN_IF_ERROR(ToBucket(bucket.param, bucket.size));
    }
    GS_RETURN_IF_ERROR(sync_->BroadcastParameters(NewDeadline()));
    for (const Bucket& bucket : buckets_) {
      GS_RETURN_IF_ERROR(FromBucket(bucket.param, bucket.size));
      wrong_ += CountWrong({HostView(bucket.param), SizeOf(bucket)}, bucket.expected);
    }
    return absl::OkStatus();
  }

  absl::Status Step(int64_t number, bool measured) {
    for (const Bucket& bucket : buckets_) {
      FillContribution(options_.rank, number, bucket.first,
                       {HostView(bucket.grad), SizeOf(bucket)});
      GS_RETURN_IF_ERROR(ToBucket(bucket.grad, bucket.size));
    }
    StepOptions step;
    step.step = number;
    step.lr = kLearningRate;
    handles_.clear();
    GS_RETURN_IF_ERROR(start_());
    absl::optional<MachineLoad> load;
    if (last_microseconds_ >= kAsksFromMicroseconds) load.emplace();
    // Who was early at the first has slept, and reading took ranks some 30 us, one after the other: they
    // must leave together.
    GS_RETURN_IF_ERROR(start_());
    const Deadline deadline = NewDeadline();
    const double cpu = CpuSeconds();
    const double begin = MonotonicMicroseconds();
    for (size_t b = 0; b < buckets_.size(); ++b) {
      handles_.push_back(sync_->Launch(step, static_cast<int>(b)));
    }
    absl::Status status;
    for (const SyncHandle& handle : handles_) status.Update(handle.Wait(deadline));
    if (status.ok()) status = AwaitGpu();
    const double end = MonotonicMicroseconds();
    GS_RETURN_IF_ERROR(status);
    // On a GPU an exchange whose handle is resolved can still fail.
    GS_RETURN_IF_ERROR(sync_->status());
    const double cpu_used = CpuSeconds() - cpu;
    // What follows takes cores, which ranks that are still at it need.
    GS_RETURN_IF_ERROR(start_());
    const double busy = load.has_value() ? load->BusyCoreSeconds() : 0;
    const double all = load.has_value() ? load->CoreSeconds() : 0;
    last_microseconds_ = end - begin;
    if (measured) {
      cpu_seconds_ += cpu_used;
      metrics_.add_begin_us(begin);
      metrics_.add_end_us(end);
      metrics_.set_busy_core_seconds(metrics_.busy_core_seconds() + busy);
      metrics_.set_core_seconds(metrics_.core_seconds() + all);
    }
    for (size_t b = 0; b < buckets_.size(); ++b) {
      GS_RETURN_IF_ERROR(FromBucket(Result(buckets_[b]), buckets_[b].size));
      for (int slot = 0; slot < layouts_[b].slots(); ++slot) wrong_ += Verify(number, b, slot);
    }
    return absl::OkStatus();
  }

  float* Result(const Bucket& bucket) const {
    return sync_->update_site() == UpdateSite::kWorker ? bucket.grad : bucket.param;
  }

  // Of a bucket whose result the host sees.
  int64_t Verify(int64_t step, size_t index, int slot) {
    Bucket* const bucket = &buckets_[index];
    const float* const result = HostView(Result(*bucket));
    const ElementRange chunk = layouts_[index].range(slot);
    const int64_t end = std::min(chunk.end, bucket->size);
    int64_t wrong = 0;
    std::vector<float> mean(kBlock);
    for (int64_t at = chunk.begin; at < end; at += kBlock) {
      const size_t size = static_cast<size_t>(std::min(kBlock, end - at));
      const absl::Span<float> block(mean.data(), size);
      if (options_.codec.compresses()) {
        FillRoundedMean(options_.world_size, layouts_[index].chunk_of(slot), step,
                        bucket->first + at, options_.codec, options_.rounds_at_each_hop, block);
      } else {
        FillMean(options_.world_size, step, bucket->first + at, block);
      }
      if (sync_->update_site() == UpdateSite::kWorker) {
        wrong += CountWrong({result + at, size}, block);
        continue;
      }
      float* const expected = bucket->expected.data() + at;
      for (size_t i = 0; i < size; ++i) expected[i] -= static_cast<float>(kLearningRate) * block[i];
      wrong += CountWrong({result + at, size}, {expected, size});
    }
    return wrong;
  }

  static size_t SizeOf(const Bucket& bucket) { return static_cast<size_t>(bucket.size); }

  const ExchangeOptions& options_;
  const std::function<absl::Status()>& start_;
  GradientSync* const sync_;
  const std::shared_ptr<GpuApi> gpu_;   // that has the buckets; null: the host
  std::shared_ptr<GpuMemory> staging_;  // pinned, as large as the largest bucket
  ScopedEvent idle_;
  std::vector<GradBucket> memory_;
  std::vector<Bucket> buckets_;
  std::vector<StripeLayout> layouts_;  // as buckets_
  std::vector<SyncHandle> handles_;
  int64_t wrong_ = 0;
  double cpu_seconds_ = 0;
  double last_microseconds_ =
      kAsksFromMicroseconds;  // of the exchange before; the first is asked for
  proto::ExchangeMetrics metrics_;
};

}  // namespace

absl::StatusOr<proto::ExchangeMetrics> RunExchanges(const ExchangeOptions& options,
                                                    const std::function<absl::Status()>& start,
                                                    GradientSync* sync) {
  return Runner(options, start, sync).Run();
}

}  // namespace gradsync
