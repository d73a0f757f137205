#include "worker/trace/predicted_step.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/plan/codec.h"
#include "simulator/simulate.h"
#include "simulator/step_clock.h"
#include "worker/trace/perfetto_file.h"

namespace gradsync {
namespace {

// What one worker did in a step, seconds.
struct Measured {
  int64_t forward_begin_ns = 0;
  double forward = 0;
  double backward = 0;
  double update = 0;
  std::vector<double> ready;  // by bucket, since forward began; below 0 where it is not known
};

Measured MeasuredOf(const proto::ProcessTrace& trace, int64_t step, size_t buckets) {
  Measured measured;
  measured.ready.assign(buckets, -1);
  for (int i = 0; i < EventsOf(trace); ++i) {
    if (trace.step(i) != step) continue;
    const double seconds = 1e-9 * static_cast<double>(trace.length_ns(i));
    switch (static_cast<TraceSpan>(trace.what(i))) {
      case TraceSpan::kForward:
        measured.forward = seconds;
        measured.forward_begin_ns = trace.begin_ns(i);
        break;
      case TraceSpan::kBackward:
        measured.backward = seconds;
        break;
      case TraceSpan::kGather:
      case TraceSpan::kReduce:  // after backward, and buckets leave in it
        measured.backward += seconds;
        break;
      case TraceSpan::kUpdate:
      case TraceSpan::kOptimize:
        measured.update += seconds;
        break;
      default:
        break;
    }
  }
  for (int i = 0; i < EventsOf(trace); ++i) {
    if (trace.step(i) != step || trace.what(i) != static_cast<int>(TraceSpan::kReady)) continue;
    const int bucket = trace.bucket(i);
    if (bucket < 0 || bucket >= static_cast<int>(buckets)) continue;
    measured.ready[bucket] =
        1e-9 * static_cast<double>(trace.begin_ns(i) - measured.forward_begin_ns);
  }
  return measured;
}

absl::StatusOr<ComputeTimes> TimesOf(const Measured& first, double update) {
  ComputeTimes times;
  times.forward = first.forward;
  times.backward = first.backward;
  times.update = update;
  const double end = times.forward + times.backward;
  double before = 0;
  for (double ready : first.ready) {
    if (ready < 0) {
      return absl::InvalidArgumentError("a predicted step: expected all of rank 0's buckets");
    }
    // The last ones may be launched when backward has ended.
    before = std::min(end, std::max(before, ready));
    times.bucket_ready.push_back(before);
  }
  if (end <= 0) return absl::InvalidArgumentError("a predicted step: expected rank 0's backward");
  return times;
}

class Drawing {
 public:
  Drawing(int workers, int processes, int64_t begin_ns, int64_t step)
      : begin_ns_(begin_ns), step_(step), traces_(processes) {
    for (int i = 0; i < processes; ++i) {
      const bool server = i >= workers;
      traces_[i].set_name(
          absl::StrCat("predicted: ", server ? "server " : "worker ", server ? i - workers : i));
      traces_[i].set_process(i);
      traces_[i].set_predicted(true);
      traces_[i].set_server(server);
    }
  }

  void Add(int process, TraceSpan what, double begin, double end, int bucket = -1, int slot = -1,
           int peer = -1, ChunkWay way = ChunkWay::kNone, int64_t bytes = 0) {
    proto::ProcessTrace& trace = traces_[process];
    trace.add_what(static_cast<int>(what));
    trace.add_way(static_cast<int>(way));
    trace.add_bucket(bucket);
    trace.add_slot(slot);
    trace.add_peer(peer);
    trace.add_step(step_);
    trace.add_begin_ns(begin_ns_ + std::llround(1e9 * begin));
    trace.add_length_ns(std::llround(1e9 * (end - begin)));
    trace.add_bytes(bytes);
  }

  void AddWorker(int rank, const SimulatedStep::Rank& worker) {
    Add(rank, TraceSpan::kStep, 0, worker.end);
    Add(rank, TraceSpan::kForward, 0, worker.forward);
    Add(rank, TraceSpan::kBackward, worker.forward, worker.backward);
    double time = worker.backward;
    for (size_t b = 0; b < worker.ready.size(); ++b) {
      const int bucket = static_cast<int>(b);
      Add(rank, TraceSpan::kReady, worker.ready[b], worker.ready[b], bucket);
      Add(rank, TraceSpan::kBucket, worker.ready[b], worker.resolved[b], bucket);
      if (worker.resolved[b] > time) {
        Add(rank, TraceSpan::kExposed, time, worker.resolved[b], bucket);
        time = worker.resolved[b];
      }
      if (worker.updates[b] > 0) {
        Add(rank, TraceSpan::kUpdate, time, time + worker.updates[b], bucket);
        time += worker.updates[b];
      }
    }
  }

  void AddTransfer(const SimulatedStep::Transfer& transfer) {
    const ChunkWay way = transfer.back ? ChunkWay::kBack : ChunkWay::kThere;
    Add(transfer.from, TraceSpan::kSend, transfer.begin, transfer.end, transfer.chunk.bucket,
        transfer.chunk.slot, transfer.to, way, transfer.bytes);
    Add(transfer.to, TraceSpan::kReceive, transfer.end, transfer.end, transfer.chunk.bucket,
        transfer.chunk.slot, transfer.from, way, transfer.bytes);
  }

  std::vector<proto::ProcessTrace> Take() { return std::move(traces_); }

 private:
  const int64_t begin_ns_;
  const int64_t step_;
  std::vector<proto::ProcessTrace> traces_;
};

}  // namespace

absl::StatusOr<std::vector<proto::ProcessTrace>> PredictStep(
    const Plan& plan, Cluster cluster, const std::vector<proto::ProcessTrace>& measured,
    int64_t step) {
  const int workers = plan.world_size();
  std::vector<Measured> ranks(workers);
  double owners_update = 0;
  for (const proto::ProcessTrace& trace : measured) {
    const Measured process = MeasuredOf(trace, step, plan.buckets().size());
    owners_update += process.update;
    if (trace.process() >= 0 && trace.process() < workers) ranks[trace.process()] = process;
  }
  const bool at_owner = cluster.returned == Returned::kParameters;
  GS_ASSIGN_OR_RETURN(const ComputeTimes times,
                      TimesOf(ranks[0], at_owner ? owners_update : ranks[0].update));
  cluster.slowness.clear();
  for (const Measured& rank : ranks) {
    const double factor = (rank.forward + rank.backward) / (times.forward + times.backward);
    cluster.slowness.push_back(factor > 0 ? factor : 1);
  }
  GS_ASSIGN_OR_RETURN(const SimulatedStep simulated, SimulateStepInFull(plan, cluster, times));
  Drawing drawing(workers, workers + (cluster.ring ? 0 : ServerProcesses(cluster, workers)),
                  ranks[0].forward_begin_ns, step);
  for (int rank = 0; rank < workers; ++rank) drawing.AddWorker(rank, simulated.ranks[rank]);
  for (const SimulatedStep::Transfer& transfer : simulated.transfers) {
    drawing.AddTransfer(transfer);
  }
  for (const SimulatedStep::Update& update : simulated.updates) {
    drawing.Add(update.owner, TraceSpan::kOptimize, update.begin, update.end, update.chunk.bucket,
                update.chunk.slot);
  }
  return drawing.Take();
}

}  // namespace gradsync
