#include "benchmarks/replay/step_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "benchmarks/exchange/exact_input.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/replay/replay_cases.h"
#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/base/straggler.h"
#include "core/plan/step_order.h"
#include "gradsync/ddp/parameter_gathers.h"

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
  // `computed`: of the whole step, unless a stage computes.
  Replay(const ReplayOptions& options, const Straggler& straggler, const Plan& plan,
         const ComputedStep& computed, ReplayClock* clock, GradientSync* sync)
      : options_(options),
        spec_(options.spec),
        profile_(spec_.profile()),
        straggler_(straggler),
        plan_(plan),
        stage_(options.stage),
        marks_(stage_ != nullptr ? std::vector<StepMark>() : MarksOfStep(plan, computed)),
        turns_(TurnsOfStep(static_cast<int>(computed.units.size()))),
        update_us_(stage_ != nullptr ? stage_->update_us() : profile_.update_us()),
        clock_(*clock),
        sync_(*sync) {
    int64_t elements = 0;
    for (const BucketPlan& bucket : plan_.buckets()) {
      first_elements_.push_back(elements);
      for (const PlacedTensor& placed : bucket.tensors) {
        elements += plan_.tensors()[placed.tensor].numel();
      }
    }
    if (plan_.slots().parameters == 0) return;
    gathers_.emplace(&sync_, static_cast<int>(plan_.buckets().size()), plan_.slots().parameters,
                     computed.units);
  }

  absl::StatusOr<proto::WorkerMetrics> Run(const std::function<absl::Status()>& start) {
    GS_ASSIGN_OR_RETURN(memory_, sync_.Bind(plan_, NewDeadline()));
    GS_RETURN_IF_ERROR(SetParameters());
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
    SetPassed((passed.sent - passed_before.sent) / steps,
              (passed.received - passed_before.received) / steps);
    DescribeStaleness();
    GS_RETURN_IF_ERROR(sync_.Settle(Deadline::In(kSettleTimeout)));
    GS_RETURN_IF_ERROR(Describe());
    if (stage_ != nullptr) GS_RETURN_IF_ERROR(stage_->Finish());
    GS_RETURN_IF_ERROR(sync_.Shutdown(NewDeadline()));
    return std::move(metrics_);
  }

 private:
  Deadline NewDeadline() const { return Deadline::In(options_.timeout); }

  // Between stages or slices, bytes.
  struct Passed {
    double sent = 0;
    double received = 0;
  };
  Passed PassedSoFar() const {
    if (stage_ == nullptr) return {};
    return {static_cast<double>(stage_->bytes_sent()),
            static_cast<double>(stage_->bytes_received())};
  }

  // Of a step.
  void SetPassed(double sent, double received) {
    if (stage_ != nullptr && stage_->is_slice()) {
      metrics_.set_slice_tx_bytes_per_step(sent);
      metrics_.set_slice_rx_bytes_per_step(received);
    } else {
      metrics_.set_stage_tx_bytes_per_step(sent);
      metrics_.set_stage_rx_bytes_per_step(received);
    }
  }

  // All zero, as buckets are at first.
  absl::Status SetParameters() {
    if (!gathers_.has_value()) return sync_.BroadcastParameters(NewDeadline());
    for (int b = 0; b < buckets(); ++b) {
      GS_RETURN_IF_ERROR(sync_.StoreParameters(b, NewDeadline()));
    }
    return absl::OkStatus();
  }

  int buckets() const { return static_cast<int>(memory_.size()); }

  bool updates_here() const { return sync_.update_site() == UpdateSite::kWorker; }

  StepOptions OptionsOf(int64_t number) const {
    StepOptions step;
    step.step = number;
    step.lr = kLearningRate;
    return step;
  }

  void Launch(int64_t number, int bucket) {
    if (gathers_.has_value()) gathers_->Forget(bucket);
    if (plan_.slots().gradients > 0) ClearPadding(bucket);
    handles_.push_back(sync_.Launch(OptionsOf(number), bucket));
  }

  // Another bucket's gradients may lie there.
  void ClearPadding(int bucket) {
    float* const grad = memory_[bucket].grad.floats();
    const BucketPlan& placed = plan_.buckets()[bucket];
    int64_t end = 0;
    for (const PlacedTensor& tensor : placed.tensors) {
      std::fill(grad + end, grad + tensor.offset, 0.0f);
      end = tensor.offset + plan_.tensors()[tensor.tensor].numel();
    }
    std::fill(grad + end, grad + placed.numel, 0.0f);
  }

  absl::Status Step(int64_t number, proto::WorkerMetrics* metrics) {
    const double factor = spec_.compute_scale() * straggler_.Factor(options_.rank, number);
    const double begin = clock_.Now();
    handles_.clear();
    ReplayedParts parts;
    const auto launch = [&](int bucket) { Launch(number, bucket); };
    if (stage_ != nullptr) {
      GS_RETURN_IF_ERROR(stage_->Run(number, factor, launch, &parts));
    } else {
      GS_RETURN_IF_ERROR(Compute(begin, factor, launch, &parts));
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
    metrics->add_backward_ms(1e-3 *
                             (backward_end - begin - parts.forward - parts.waited - parts.stalled));
    metrics->add_exposed_ms(1e-3 * (end - backward_end - update + parts.stalled));
    metrics->add_update_ms(1e-3 * update);
    metrics->add_late_ms(1e-3 * parts.late);
    return absl::OkStatus();
  }

  // The whole model's forward and backward, which began at `begin`.
  absl::Status Compute(double begin, double factor, const std::function<void(int)>& launch,
                       ReplayedParts* parts) {
    for (const StepMark& mark : marks_) {
      // What the launch before took, an exchange may well take; only waking up late is the clock's.
      const double due = std::max(begin + factor * mark.at + parts->stalled, clock_.Now());
      clock_.SleepUntil(due);
      const double now = clock_.Now();
      if (mark.kind == StepMark::Kind::kLaunch) {
        parts->late = std::max(parts->late, now - due);
        launch(mark.number);
        continue;
      }
      GS_RETURN_IF_ERROR(mark.kind == StepMark::Kind::kTurn
                             ? gathers_->Need(turns_[mark.number], NewDeadline())
                             : RoomFor(mark.number));
      parts->stalled += clock_.Now() - now;
    }
    const double computed = factor * (profile_.forward_us() + profile_.backward_us());
    clock_.SleepUntil(begin + computed + parts->stalled);
    parts->forward = factor * profile_.forward_us();
    return absl::OkStatus();
  }

  absl::Status RoomFor(int bucket) {
    return handles_[bucket - plan_.slots().gradients].Wait(NewDeadline());
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
    handles_.clear();
    const auto launch = [&](int bucket) {
      ForEachTensor(bucket, [&](int64_t first, absl::Span<float> grad, absl::Span<float>) {
        FillContribution(contributor, number, first, grad);
      });
      Launch(number, bucket);
    };
    if (plan_.slots().gradients > 0 || plan_.slots().parameters > 0) {
      ReplayedParts parts;
      GS_RETURN_IF_ERROR(Compute(clock_.Now(), /*factor=*/0, launch, &parts));
    } else {
      for (int b = 0; b < buckets(); ++b) launch(b);
    }
    for (const SyncHandle& handle : handles_) GS_RETURN_IF_ERROR(handle.Wait(NewDeadline()));
    GS_RETURN_IF_ERROR(sync_.Settle(NewDeadline()));
    if (plan_.codec().compresses()) return absl::OkStatus();
    int64_t wrong = 0;
    std::vector<float> expected;
    const auto verify = [&](int64_t first, absl::Span<float> grad, absl::Span<float> param) {
      expected.resize(grad.size());
      FillMean(plan_.world_size(), number, first, absl::MakeSpan(expected));
      if (updates_here()) {
        wrong += CountWrong(grad, expected);
        return;
      }
      for (float& value : expected) value = 0 - static_cast<float>(kLearningRate) * value;
      wrong += CountWrong(param, expected, Tolerance());
    };
    GS_RETURN_IF_ERROR(ForEachResult(verify));
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
  using Visit = std::function<void(int64_t first, absl::Span<float> grad, absl::Span<float> param)>;

  void ForEachTensor(int bucket, const Visit& visit) {
    int64_t first = first_elements_[bucket];
    for (const PlacedTensor& placed : plan_.buckets()[bucket].tensors) {
      const int64_t numel = plan_.tensors()[placed.tensor].numel();
      const size_t size = static_cast<size_t>(numel);
      visit(first, {memory_[bucket].grad.floats() + placed.offset, size},
            {memory_[bucket].param.floats() + placed.offset, size});
      first += numel;
    }
  }

  // Between steps; gathers what is not here.
  absl::Status ForEachResult(const Visit& visit) {
    for (int b = 0; b < buckets(); ++b) {
      if (gathers_.has_value()) {
        GS_RETURN_IF_ERROR(gathers_->NeedBucket(b, NewDeadline()));
        gathers_->Forget(b);  // a step begins with nothing there
      }
      ForEachTensor(b, visit);
    }
    return absl::OkStatus();
  }

  void DescribeStaleness() {
    const Staleness staleness = sync_.staleness();
    metrics_.set_max_staleness(static_cast<int32_t>(staleness.max()));
    for (int64_t steps : staleness.histogram) {
      metrics_.add_staleness_histogram(static_cast<double>(steps));
    }
  }

  absl::Status Describe() {
    Sha256 hash;
    int64_t parameters = 0;
    const auto add = [&](int64_t, absl::Span<float> grad, absl::Span<float> param) {
      const absl::Span<float> result = updates_here() ? grad : param;
      hash.Update(result.data(), result.size() * sizeof(float));
      parameters += static_cast<int64_t>(result.size());
    };
    GS_RETURN_IF_ERROR(ForEachResult(add));
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
    return absl::OkStatus();
  }

  const ReplayOptions& options_;
  const proto::RankSpec::Replay& spec_;
  const proto::StepProfile& profile_;
  const Straggler& straggler_;
  const Plan& plan_;
  StageReplay* const stage_;           // null: the whole step
  const std::vector<StepMark> marks_;  // of the whole step, microseconds
  const std::vector<UnitTurn> turns_;
  const double update_us_;
  ReplayClock& clock_;
  GradientSync& sync_;
  std::vector<int64_t> first_elements_;       // by bucket
  absl::optional<ParameterGathers> gathers_;  // where owners alone keep parameters
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
  ComputedStep computed;
  if (options.stage == nullptr) {
    GS_ASSIGN_OR_RETURN(computed, ComputedStepUs(options.spec.profile(), plan));
  }
  return Replay(options, straggler, plan, computed, clock, sync).Run(start);
}

}  // namespace gradsync
