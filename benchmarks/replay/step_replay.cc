#include "benchmarks/replay/step_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/straggler.h"
#include "benchmarks/exchange/exact_input.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/ranks/clocks.h"
#include "benchmarks/records/machine_load.h"
#include "benchmarks/replay/replay_cases.h"

namespace gradsync {
namespace {

// A power of two, so that the verified update rounds only once.
constexpr double kLearningRate = 1.0 / 128;

// Others may have many steps to go, but they live: a lost one ends the wait.
constexpr absl::Duration kSettleTimeout = absl::Hours(24);

absl::Status Check(const proto::RankSpec::Replay& spec) {
  if (spec.steps() < 1 || spec.warmup_steps() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected at least 1 measured step and 1 warm-up step, found ", spec.steps(),
                     " and ", spec.warmup_steps()));
  }
  if (!std::isfinite(spec.compute_scale()) || spec.compute_scale() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale of compute times: expected at least 0, found ", spec.compute_scale()));
  }
  return absl::OkStatus();
}

class Replay {
 public:
  Replay(const ReplayOptions& options, const Straggler& straggler, const Plan& plan,
         ReplayClock* clock, GradientSync* sync)
      : options_(options),
        spec_(options.spec),
        profile_(spec_.profile()),
        straggler_(straggler),
        plan_(plan),
        stage_(options.stage),
        ready_us_(stage_ != nullptr ? std::vector<double>() : BucketReadyUs(profile_, plan)),
        update_us_(stage_ != nullptr ? stage_->update_us() : profile_.update_us()),
        clock_(*clock),
        sync_(*sync) {}

  absl::StatusOr<proto::WorkerMetrics> Run(const std::function<absl::Status()>& start) {
    GS_ASSIGN_OR_RETURN(memory_, sync_.Bind(plan_, NewDeadline()));
    GS_RETURN_IF_ERROR(sync_.BroadcastParameters(NewDeadline()));
    if (stage_ != nullptr)
      GS_RETURN_IF_ERROR(stage_->Connect(absl::StrCat("replay of ", DescribeMesh(spec_))));
    GS_RETURN_IF_ERROR(start());
    GS_RETURN_IF_ERROR(VerifiedStep(1));
    for (int64_t step = 2; step <= spec_.warmup_steps(); ++step) {
      GS_RETURN_IF_ERROR(Step(step, nullptr));
    }
    GS_RETURN_IF_ERROR(start());
    const WireStats wire_before = sync_.wire_stats();
    const Passed passed_before = PassedSoFar();
    const double cpu_before = CpuSeconds();
    const MachineLoad load;
    const double begin = clock_.Now();
    for (int64_t i = 1; i <= spec_.steps(); ++i) {
      GS_RETURN_IF_ERROR(Step(spec_.warmup_steps() + i, &metrics_));
      metrics_.add_step_end_seconds((clock_.Now() - begin) * 1e-6);
    }
    metrics_.set_measured_seconds((clock_.Now() - begin) * 1e-6);
    if (load.CoreSeconds() > 0) {
      metrics_.set_cpu_share(load.BusyCoreSeconds() / load.CoreSeconds());
    }
    metrics_.set_cpu_seconds(CpuSeconds() - cpu_before);
    const WireStats wire = sync_.wire_stats() - wire_before;
    const double steps = static_cast<double>(spec_.steps());
    metrics_.set_wire_tx_bytes_per_step(static_cast<double>(wire.tx_bytes) / steps);
    metrics_.set_wire_rx_bytes_per_step(static_cast<double>(wire.rx_bytes) / steps);
    const Passed passed = PassedSoFar();
    metrics_.set_stage_tx_bytes_per_step((passed.sent - passed_before.sent) / steps);
    metrics_.set_stage_rx_bytes_per_step((passed.received - passed_before.received) / steps);
    DescribeStaleness();
    GS_RETURN_IF_ERROR(sync_.Settle(Deadline::In(kSettleTimeout)));
    Describe();
    if (stage_ != nullptr) GS_RETURN_IF_ERROR(stage_->Finish());
    GS_RETURN_IF_ERROR(sync_.Shutdown(NewDeadline()));
    return std::move(metrics_);
  }

 private:
  Deadline NewDeadline() const { return Deadline::In(options_.timeout); }

  // Between stages, bytes.
  struct Passed {
    double sent = 0;
    double received = 0;
  };
  Passed PassedSoFar() const {
    if (stage_ == nullptr) return {};
    return {static_cast<double>(stage_->bytes_sent()),
            static_cast<double>(stage_->bytes_received())};
  }

  bool updates_here() const { return sync_.update_site() == UpdateSite::kWorker; }

  StepOptions OptionsOf(int64_t number) const {
    StepOptions step;
    step.step = number;
    step.lr = kLearningRate;
    return step;
  }

  absl::Status Step(int64_t number, proto::WorkerMetrics* metrics) {
    const double factor = spec_.compute_scale() * straggler_.Factor(options_.rank, number);
    const double begin = clock_.Now();
    handles_.clear();
    ReplayedParts parts;
    const auto launch = [&](int bucket) {
      handles_.push_back(sync_.Launch(OptionsOf(number), bucket));
    };
    if (stage_ != nullptr) {
      GS_RETURN_IF_ERROR(stage_->Run(number, factor, launch, &parts));
    } else {
      Compute(begin, factor, launch, &parts);
    }
    const double backward_end = clock_.Now();
    double update = 0;
    for (size_t b = 0; b < handles_.size(); ++b) {
      GS_RETURN_IF_ERROR(handles_[b].Wait(NewDeadline()));
      if (updates_here()) update += Update(factor, b);
    }
    if (metrics == nullptr) return absl::OkStatus();
    const double end = clock_.Now();
    metrics->add_step_ms(1e-3 * (end - begin));
    metrics->add_data_ms(1e-3 * parts.waited);
    metrics->add_forward_ms(1e-3 * parts.forward);
    metrics->add_backward_ms(1e-3 * (backward_end - begin - parts.forward - parts.waited));
    metrics->add_exposed_ms(1e-3 * (end - backward_end - update));
    metrics->add_update_ms(1e-3 * update);
    metrics->add_late_ms(1e-3 * parts.late);
    return absl::OkStatus();
  }

  // The whole model's forward and backward, which began at `begin`.
  void Compute(double begin, double factor, const std::function<void(int)>& launch,
               ReplayedParts* parts) {
    for (size_t b = 0; b < memory_.size(); ++b) {
      // What the launch before took, an exchange may well take; only waking up late is the clock's.
      const double due = std::max(begin + factor * ready_us_[b], clock_.Now());
      clock_.SleepUntil(due);
      parts->late = std::max(parts->late, clock_.Now() - due);
      launch(static_cast<int>(b));
    }
    clock_.SleepUntil(begin + factor * (profile_.forward_us() + profile_.backward_us()));
    parts->forward = factor * profile_.forward_us();
  }

  // The time that it took.
  double Update(double factor, size_t bucket) {
    const double share = static_cast<double>(plan_.buckets()[bucket].bytes()) /
                         static_cast<double>(plan_.total_bytes());
    const double begin = clock_.Now();
    clock_.SleepUntil(begin + factor * update_us_ * share);
    return clock_.Now() - begin;
  }

  absl::Status VerifiedStep(int64_t number) {
    // A worker alone (topology local) gets its own gradients back.
    const int own = options_.replica >= 0 ? options_.replica : options_.rank;
    const int contributor = plan_.world_size() == 1 ? 0 : own;
    ForEachTensor([&](int64_t first, absl::Span<float> grad, absl::Span<float>) {
      FillContribution(contributor, number, first, grad);
    });
    handles_.clear();
    for (size_t b = 0; b < memory_.size(); ++b) {
      handles_.push_back(sync_.Launch(OptionsOf(number), static_cast<int>(b)));
    }
    for (const SyncHandle& handle : handles_) GS_RETURN_IF_ERROR(handle.Wait(NewDeadline()));
    GS_RETURN_IF_ERROR(sync_.Settle(NewDeadline()));
    if (plan_.codec().compresses()) return absl::OkStatus();
    int64_t wrong = 0;
    std::vector<float> expected;
    ForEachTensor([&](int64_t first, absl::Span<float> grad, absl::Span<float> param) {
      expected.resize(grad.size());
      FillMean(plan_.world_size(), number, first, absl::MakeSpan(expected));
      if (updates_here()) {
        wrong += CountWrong(grad, expected);
        return;
      }
      for (float& value : expected) value = 0 - static_cast<float>(kLearningRate) * value;
      wrong += CountWrong(param, expected, Tolerance());
    });
    metrics_.set_wrong(static_cast<double>(wrong));
    return absl::OkStatus();
  }

  // Under ssp and asp each contribution, and each sum so far, is rounded.
  float Tolerance() const {
    if (options_.consistency.bulk()) return 0;
    const float largest = static_cast<float>(kLearningRate) * kLargestContribution;
    const float roundings = static_cast<float>(plan_.world_size() + 2);
    return roundings * largest * std::numeric_limits<float>::epsilon();
  }

  // `first` counts elements of the plan's tensors, in the order of their places.
  void ForEachTensor(
      const std::function<void(int64_t first, absl::Span<float>, absl::Span<float>)>& visit) {
    int64_t first = 0;
    for (size_t b = 0; b < memory_.size(); ++b) {
      for (const PlacedTensor& placed : plan_.buckets()[b].tensors) {
        const int64_t numel = plan_.tensors()[placed.tensor].numel();
        const size_t size = static_cast<size_t>(numel);
        visit(first, {memory_[b].grad.data_ptr<float>() + placed.offset, size},
              {memory_[b].param.data_ptr<float>() + placed.offset, size});
        first += numel;
      }
    }
  }

  void DescribeStaleness() {
    const Staleness staleness = sync_.staleness();
    metrics_.set_max_staleness(static_cast<int32_t>(staleness.max()));
    for (int64_t steps : staleness.histogram) {
      metrics_.add_staleness_histogram(static_cast<double>(steps));
    }
  }

  void Describe() {
    Sha256 hash;
    int64_t parameters = 0;
    ForEachTensor([&](int64_t, absl::Span<float> grad, absl::Span<float> param) {
      const absl::Span<float> result = updates_here() ? grad : param;
      hash.Update(result.data(), result.size() * sizeof(float));
      parameters += static_cast<int64_t>(result.size());
    });
    metrics_.set_params_sha256(hash.HexDigest());
    metrics_.set_parameters(static_cast<double>(parameters));
    metrics_.set_rank(options_.rank);
    metrics_.set_model(profile_.model());
    metrics_.set_batch_size(profile_.batch_size());
    metrics_.set_threads(profile_.threads());
    metrics_.set_straggler(straggler_.text());
    metrics_.set_consistency(ConsistencyName(options_.consistency));
    metrics_.set_warmup_steps(static_cast<int32_t>(spec_.warmup_steps()));
    metrics_.set_gradient_bytes(static_cast<double>(plan_.total_bytes()));
    metrics_.set_chunk_bytes(static_cast<double>(plan_.chunk_bytes()));
    metrics_.set_buckets(static_cast<int32_t>(plan_.buckets().size()));
  }

  const ReplayOptions& options_;
  const proto::RankSpec::Replay& spec_;
  const proto::StepProfile& profile_;
  const Straggler& straggler_;
  const Plan& plan_;
  StageReplay* const stage_;            // null: the whole step
  const std::vector<double> ready_us_;  // by bucket; of the whole step
  const double update_us_;
  ReplayClock& clock_;
  GradientSync& sync_;
  std::vector<GradBucket> memory_;
  std::vector<SyncHandle> handles_;  // of this step, by bucket
  proto::WorkerMetrics metrics_;
};

}  // namespace

absl::StatusOr<proto::WorkerMetrics> ReplaySteps(const ReplayOptions& options, const Plan& plan,
                                                 const std::function<absl::Status()>& start,
                                                 ReplayClock* clock, GradientSync* sync) {
  GS_RETURN_IF_ERROR(Check(options.spec));
  GS_ASSIGN_OR_RETURN(const Straggler straggler, Straggler::Parse(options.spec.straggler()));
  return Replay(options, straggler, plan, clock, sync).Run(start);
}

}  // namespace gradsync
