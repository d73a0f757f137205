#include "simulator/pipeline.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/status_macros.h"
#include "core/plan/kinds.h"
#include "core/plan/wire_traffic.h"
#include "simulator/event_queue.h"
#include "simulator/exchange.h"
#include "simulator/network.h"

namespace gradsync {
namespace {

// By how much sums of times may be off.
constexpr double kRounding = 1e-9;

absl::Status Refuse(absl::string_view what, absl::string_view expected, absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("pipeline: ", what, ": expected ", expected, ", found ", found));
}

absl::Status CheckTime(absl::string_view what, double time) {
  if (time >= 0 && std::isfinite(time)) return absl::OkStatus();
  return Refuse(what, "at least 0", absl::StrCat(time));
}

absl::Status CheckMeetings(const std::vector<PassMeeting>& meetings, size_t expected, double pass) {
  if (meetings.size() != expected) {
    return Refuse("meetings of slices", absl::StrCat(expected), absl::StrCat(meetings.size()));
  }
  double before = 0;
  for (const PassMeeting& meeting : meetings) {
    if (!(meeting.after >= before * (1 - kRounding) && meeting.after <= pass * (1 + kRounding))) {
      return Refuse("a meeting of slices", absl::StrCat("between ", before, " and ", pass),
                    absl::StrCat(meeting.after));
    }
    before = meeting.after;
  }
  return absl::OkStatus();
}

// `like`: of the first slice.
absl::Status CheckPass(const StagePass& pass, const StagePass& like, bool slices) {
  GS_RETURN_IF_ERROR(CheckTime("forward", pass.forward));
  GS_RETURN_IF_ERROR(CheckTime("backward", pass.backward));
  GS_RETURN_IF_ERROR(CheckMeetings(pass.forward_meetings, slices ? like.forward_meetings.size() : 0,
                                   pass.forward));
  GS_RETURN_IF_ERROR(CheckMeetings(pass.backward_meetings,
                                   slices ? like.backward_meetings.size() : 0, pass.backward));
  return CheckTime("bytes of output", static_cast<double>(pass.output_bytes));
}

absl::Status CheckStage(const SimulatedStage& stage, int replicas,
                        const SimulatedPipeline& pipeline) {
  const SimulatedStage& first = pipeline.stages[0];
  GS_RETURN_IF_ERROR(CheckPass(stage.each, first.each, pipeline.slices));
  GS_RETURN_IF_ERROR(CheckPass(stage.last, first.last, pipeline.slices));
  GS_RETURN_IF_ERROR(CheckTime("update", stage.update));
  if (stage.plan.world_size() != replicas) {
    return Refuse("a stage's plan", absl::StrCat("one for ", replicas, " workers"),
                  absl::StrCat(stage.plan.world_size()));
  }
  if (stage.bucket_ready.size() != stage.plan.buckets().size()) {
    return Refuse("ready times", absl::StrCat(stage.plan.buckets().size(), ", one per bucket"),
                  absl::StrCat(stage.bucket_ready.size()));
  }
  double before = 0;
  for (double time : stage.bucket_ready) {
    if (!(time >= before && time <= stage.last.backward * (1 + kRounding))) {
      return Refuse("ready times", absl::StrCat("between ", before, " and ", stage.last.backward),
                    absl::StrCat(time));
    }
    before = time;
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const SimulatedPipeline& pipeline) {
  const size_t replicas = pipeline.ranks.empty() ? 0 : pipeline.ranks[0].size();
  std::vector<int> all;
  for (const std::vector<int>& ranks : pipeline.ranks) {
    if (ranks.size() != replicas) {
      return Refuse("replicas", absl::StrCat(replicas, " of each stage"),
                    absl::StrCat(ranks.size()));
    }
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != static_cast<int>(i)) return Refuse("ranks", "each once", absl::StrCat(all[i]));
  }
  if (!all.empty() && pipeline.ranks.size() == pipeline.stages.size()) return absl::OkStatus();
  return Refuse("ranks", absl::StrCat("some of each of ", pipeline.stages.size(), " stages"),
                absl::StrCat("those of ", pipeline.ranks.size()));
}

absl::Status Check(const SimulatedPipeline& pipeline, const Cluster& cluster) {
  GS_RETURN_IF_ERROR(CheckRanks(pipeline));
  const int stages = static_cast<int>(pipeline.stages.size());
  const int replicas = static_cast<int>(pipeline.ranks[0].size());
  GS_RETURN_IF_ERROR(CheckCluster(cluster, stages * replicas));
  if (!cluster.consistency.bulk()) return Refuse("consistency", "bsp", "another");
  if (!cluster.ring && cluster.placement == Placement::kMixed) {
    return Refuse("placement", "dedicated or colocated servers", "mixed");
  }
  if (!cluster.ring && cluster.servers < stages) {
    return Refuse("servers", absl::StrCat("at least ", stages, ", one per stage"),
                  absl::StrCat(cluster.servers));
  }
  if (pipeline.steps < 1) return Refuse("steps", "at least 1", absl::StrCat(pipeline.steps));
  if (pipeline.micro_batches < 1) {
    return Refuse("micro-batches", "at least 1", absl::StrCat(pipeline.micro_batches));
  }
  for (const SimulatedStage& stage : pipeline.stages) {
    GS_RETURN_IF_ERROR(CheckStage(stage, replicas, pipeline));
  }
  return absl::OkStatus();
}

enum MessageKind { kActivation, kGradient, kOfSlice };

class PipelineRun : private MessageReceiver, private EventHandler {
 public:
  PipelineRun(const SimulatedPipeline& pipeline, const Cluster& cluster)
      : pipeline_(pipeline),
        cluster_(cluster),
        stages_(static_cast<int>(pipeline.stages.size())),
        replicas_(static_cast<int>(pipeline.ranks[0].size())),
        network_(NetworkOptions(cluster), ProcessHosts(cluster, stages_ * replicas_), &queue_,
                 this),
        ranks_(static_cast<size_t>(stages_) * replicas_),
        ends_(pipeline.steps, 0) {
    for (int s = 0; s < stages_; ++s) {
      for (int r = 0; r < replicas_; ++r) {
        Rank& rank = ranks_[pipeline.ranks[s][r]];
        rank.stage = s;
        rank.replica = r;
        rank.heard.assign(stages_, 0);
      }
    }
  }

  absl::StatusOr<PipelinePrediction> Run() {
    const int world_size = stages_ * replicas_;
    for (int s = 0; s < stages_; ++s) {
      Cluster own = cluster_;
      own.slowness.clear();
      own.servers = 0;
      ExchangePlace place;
      place.network = &network_;
      place.processes = pipeline_.ranks[s];
      for (int i = s; !own.ring && i < cluster_.servers; i += stages_) {
        place.processes.push_back(world_size + i);
        ++own.servers;
      }
      const SimulatedStage& stage = pipeline_.stages[s];
      const double owner_update = cluster_.returned == Returned::kParameters ? stage.update : 0;
      GS_ASSIGN_OR_RETURN(
          exchanges_.emplace_back(),
          MakeExchange(stage.plan, own, owner_update, &queue_, std::move(place),
                       [this, s](int replica, int bucket) { Resolved(s, replica, bucket); }));
    }
    for (int rank = 0; rank < world_size; ++rank) Begin(rank);
    queue_.Run();
    return Describe();
  }

 private:
  struct Rank {
    int stage = 0;
    int replica = 0;
    int step = 0;
    StageOrder order = StageOrder(PipelineSchedule::kNaive, 1, 0, 1);
    StageAction action;  // under way
    bool computing = false;
    double passed = 0;           // of that action's time
    size_t meeting = 0;          // its next, or the one in which the rank is
    int round = 0;               // of that meeting
    bool waits = false;          // for messages of that round
    int64_t rounds = 0;          // of all meetings, begun so far
    std::vector<int64_t> heard;  // by slice: in how many of these a message came
    int64_t inputs = 0;          // received so far, in all steps
    int64_t gradients = 0;
    size_t scheduled = 0;  // buckets whose launch is
    int next_bucket = 0;   // to launch
    int open = 0;          // not resolved
    std::vector<double> resolved;
    double idle_from = 0;
    PipelinePrediction::Stage times;  // of the step
    double busy = 0;                  // in the first step
  };

  // Tags of events: 4 * rank + one of these.
  enum { kComputed, kBucketReady, kStepEnded };

  // What the rank does.
  struct Pass {
    double time = 0;
    bool forward = false;
    bool last = false;  // of the step's micro-batches
    const std::vector<PassMeeting>* meetings = nullptr;
  };

  Pass PassOf(const Rank& rank) const {
    Pass pass;
    pass.forward = rank.action.kind == StageAction::kForward;
    pass.last = rank.action.micro_batch + 1 == pipeline_.micro_batches;
    const StagePass& times = pass.last ? StageOf(rank).last : StageOf(rank).each;
    pass.time = pass.forward ? times.forward : times.backward;
    pass.meetings = pass.forward ? &times.forward_meetings : &times.backward_meetings;
    return pass;
  }

  const SimulatedStage& StageOf(const Rank& rank) const { return pipeline_.stages[rank.stage]; }
  double Slowness(int rank) const {
    return cluster_.slowness.empty() ? 1 : cluster_.slowness[rank];
  }

  void Begin(int number) {
    Rank& rank = ranks_[number];
    if (rank.step == pipeline_.steps) return;
    const size_t buckets = StageOf(rank).plan.buckets().size();
    // A slice passes nothing to the others.
    rank.order = StageOrder(pipeline_.schedule, pipeline_.slices ? 1 : stages_,
                            pipeline_.slices ? 0 : rank.stage, pipeline_.micro_batches);
    rank.scheduled = 0;
    rank.next_bucket = 0;
    rank.open = static_cast<int>(buckets);
    rank.resolved.assign(buckets, 0);
    rank.idle_from = queue_.now();
    rank.times = PipelinePrediction::Stage();
    Advance(number);
  }

  // Begins the rank's next forward or backward, if it can.
  void Advance(int number) {
    Rank& rank = ranks_[number];
    if (rank.computing || rank.step == pipeline_.steps || rank.order.done()) return;
    const int64_t before = rank.step * pipeline_.micro_batches;
    const absl::optional<StageAction> next =
        rank.order.Next(pipeline_.slices || rank.stage == 0 ||
                            rank.inputs > before + rank.order.forward().micro_batch,
                        pipeline_.slices || rank.stage + 1 == stages_ ||
                            rank.gradients > before + rank.order.backward().micro_batch);
    if (!next.has_value()) return;
    rank.action = *next;
    rank.computing = true;
    rank.passed = 0;
    rank.meeting = 0;
    Compute(number);
  }

  // Goes on with the pass, to its next meeting or its end.
  void Compute(int number) {
    Rank& rank = ranks_[number];
    const Pass pass = PassOf(rank);
    const bool to_end = rank.meeting == pass.meetings->size();
    const double from = rank.passed;
    const double until = to_end ? pass.time : (*pass.meetings)[rank.meeting].after;
    rank.passed = std::max(from, std::min(until, pass.time));
    rank.times.waited += queue_.now() - rank.idle_from;
    rank.times.computed += Slowness(number) * (rank.passed - from);
    if (pass.last && !pass.forward) {
      const std::vector<double>& ready = StageOf(rank).bucket_ready;
      while (rank.scheduled < ready.size() && (to_end || ready[rank.scheduled] <= rank.passed)) {
        const double in = std::max(0.0, ready[rank.scheduled++] - from);
        queue_.At(queue_.now() + Slowness(number) * in, this, 4 * int64_t{number} + kBucketReady);
      }
    }
    queue_.At(queue_.now() + Slowness(number) * (rank.passed - from), this,
              4 * int64_t{number} + kComputed);
  }

  // The pass is at its next meeting, or at its end.
  void Computed(int number) {
    Rank& rank = ranks_[number];
    rank.idle_from = queue_.now();
    if (rank.meeting == PassOf(rank).meetings->size()) return EndPass(number);
    rank.round = 0;
    BeginRound(number);
  }

  void BeginRound(int number) {
    Rank& rank = ranks_[number];
    const SliceMeeting& meeting = (*PassOf(rank).meetings)[rank.meeting].meeting;
    if (rank.round == SliceRounds(meeting.call, stages_)) {
      ++rank.meeting;
      return Compute(number);
    }
    ++rank.rounds;
    rank.heard[rank.stage] = rank.rounds;
    rank.waits = true;
    for (int other = 0; other < stages_; ++other) {
      if (other == rank.stage) continue;
      SimulatedMessage message;
      message.from = number;
      message.to = pipeline_.ranks[other][rank.replica];
      message.bytes = SliceMessageBytes(meeting, stages_, rank.round, rank.stage, other);
      message.kind = kOfSlice;
      network_.Send(message);
    }
    EndRound(number);
  }

  // Once all slices' messages are there. Some may be in the next round already.
  void EndRound(int number) {
    Rank& rank = ranks_[number];
    if (!rank.waits || *std::min_element(rank.heard.begin(), rank.heard.end()) < rank.rounds) {
      return;
    }
    rank.waits = false;
    ++rank.round;
    BeginRound(number);
  }

  void EndPass(int number) {
    Rank& rank = ranks_[number];
    const Pass pass = PassOf(rank);
    const int to = rank.stage + (pass.forward ? 1 : -1);
    rank.order.Did(rank.action.kind);
    rank.computing = false;
    if (!pipeline_.slices && to >= 0 && to < stages_) {
      const SimulatedStage& sender = pipeline_.stages[std::min(rank.stage, to)];
      SimulatedMessage message;
      message.from = number;
      message.to = pipeline_.ranks[to][rank.replica];
      message.bytes = (pass.last ? sender.last : sender.each).output_bytes;
      message.kind = pass.forward ? kActivation : kGradient;
      network_.Send(message);
    }
    if (rank.order.done() && rank.open == 0) EndStep(number);
    Advance(number);
  }

  void OnMessage(const SimulatedMessage& message) override {
    Rank& rank = ranks_[message.to];
    if (message.kind == kOfSlice) {
      ++rank.heard[ranks_[message.from].stage];
      return EndRound(message.to);
    }
    ++(message.kind == kActivation ? rank.inputs : rank.gradients);
    Advance(message.to);
  }

  void LaunchNext(int number) {
    Rank& rank = ranks_[number];
    const int bucket = rank.next_bucket++;
    exchanges_[rank.stage]->Launch(rank.replica, rank.step, bucket);
  }

  void Resolved(int stage, int replica, int bucket) {
    const int number = pipeline_.ranks[stage][replica];
    Rank& rank = ranks_[number];
    rank.resolved[bucket] = queue_.now();
    if (--rank.open == 0 && rank.order.done()) EndStep(number);
  }

  // After the last backward and the last result: the worker waits for each bucket and updates it.
  void EndStep(int number) {
    Rank& rank = ranks_[number];
    const SimulatedStage& stage = StageOf(rank);
    const bool updates = cluster_.returned == Returned::kMean;
    const double all = static_cast<double>(stage.plan.total_bytes());
    double time = rank.idle_from;
    for (size_t b = 0; b < rank.resolved.size(); ++b) {
      rank.times.exposed += std::max(0.0, rank.resolved[b] - time);
      time = std::max(time, rank.resolved[b]);
      if (!updates) continue;
      const double update = Slowness(number) * stage.update *
                            static_cast<double>(stage.plan.buckets()[b].bytes()) / all;
      rank.times.update += update;
      time += update;
    }
    rank.times.exposed += cluster_.constants.seconds_per_step;
    time += cluster_.constants.seconds_per_step;
    if (rank.step == 0) rank.busy = rank.times.computed + rank.times.update;
    ends_[rank.step] = std::max(ends_[rank.step], time);
    ++rank.step;
    queue_.At(time, this, 4 * int64_t{number} + kStepEnded);
  }

  void OnEvent(int64_t tag) override {
    const int number = static_cast<int>(tag / 4);
    if (tag % 4 == kComputed) return Computed(number);
    if (tag % 4 == kBucketReady) return LaunchNext(number);
    Begin(number);
  }

  PipelinePrediction Describe() const {
    PipelinePrediction prediction;
    prediction.first_step = ends_[0];
    const auto later = static_cast<double>(pipeline_.steps - 1);
    prediction.step = later > 0 ? (ends_.back() - ends_[0]) / later : ends_[0];
    double busy = 0;
    for (const Rank& rank : ranks_) busy += rank.busy;
    for (const std::vector<int>& ranks : pipeline_.ranks) {
      prediction.stages.push_back(ranks_[ranks[0]].times);
    }
    const double all = static_cast<double>(ranks_.size()) * prediction.first_step;
    if (all > 0) prediction.bubble_share = 1 - busy / all;
    for (const NodeTraffic& host : network_.traffic()) {
      prediction.tx_bytes_max_host = std::max(prediction.tx_bytes_max_host,
                                              static_cast<double>(host.tx_bytes) / pipeline_.steps);
      prediction.rx_bytes_max_host = std::max(prediction.rx_bytes_max_host,
                                              static_cast<double>(host.rx_bytes) / pipeline_.steps);
    }
    return prediction;
  }

  const SimulatedPipeline& pipeline_;
  const Cluster& cluster_;
  const int stages_;
  const int replicas_;
  EventQueue queue_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<SimulatedExchange>> exchanges_;  // by stage
  std::vector<Rank> ranks_;
  std::vector<double> ends_;  // by step: of the last rank
};

}  // namespace

absl::StatusOr<PipelinePrediction> SimulatePipeline(const SimulatedPipeline& pipeline,
                                                    const Cluster& cluster) {
  GS_RETURN_IF_ERROR(Check(pipeline, cluster));
  return PipelineRun(pipeline, cluster).Run();
}

}  // namespace gradsync
