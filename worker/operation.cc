#include "worker/operation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/program/program_main.h"
#include "core/program/version.h"

ABSL_FLAG(
    int, metrics_port, -1,
    "port of a page for Prometheus, http://127.0.0.1:PORT/metrics; the worker of local rank r "
    "takes PORT + r; 0: any free one, see --metrics_port_file; -1: there is none");
ABSL_FLAG(std::string, metrics_host, "127.0.0.1",
          "address at which --metrics_port listens, such as 0.0.0.0 for all of this host; anybody "
          "who reaches it can read the page");
ABSL_FLAG(std::string, metrics_port_file, "",
          "file to which the page's host:port is written; {rank} in it stands for the rank");
ABSL_FLAG(std::string, log_format, "text",
          "how errors and notices are written to stderr: text, or json, an object per line");
ABSL_FLAG(bool, reflection, false,
          "where this process listens by gRPC it describes itself to whoever asks (gRPC "
          "reflection), and reads what strangers send for it; for finding errors");

namespace gradsync {
namespace {

// A step that waited for its buckets for longer has stalled.
constexpr absl::Duration kStall = absl::Seconds(1);

constexpr double kStaleness[] = {0, 1, 2, 4, 8, 16};
constexpr const char* kParts[] = {"data", "forward", "backward", "exposed", "update"};
constexpr const char* kDirections[] = {"sent", "received"};

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

absl::StatusOr<std::unique_ptr<LiveMetrics>> LiveMetrics::Start(const LiveMetricsOptions& options,
                                                                int rank,
                                                                const std::string& run_id) {
  auto metrics = absl::WrapUnique(new LiveMetrics());
  metrics->rank_ = rank;
  metrics->run_id_ = run_id;
  MetricsServerOptions server;
  server.host = options.host;
  server.port = options.port;
  server.collect = [page = metrics.get()] { return page->Collect(); };
  absl::StatusOr<std::unique_ptr<MetricsServer>> started = MetricsServer::Start(server);
  if (!started.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics_port: ", started.status().message()));
  }
  metrics->server_ = *std::move(started);
  if (!options.port_file.empty()) {
    GS_RETURN_IF_ERROR(WriteFileAtomically(options.port_file, metrics->address() + "\n"));
  }
  return metrics;
}

void LiveMetrics::Begin(const GradientSync& sync) {
  const SyncIdentity identity = sync.identity();
  const BackendTrait& trait = TraitOf(identity.backend);
  topology_ = TopologyName(trait.topology);
  link_ = LinkName(trait.link);
  update_ = UpdateSiteName(sync.update_site());
  consistency_ = ConsistencyName(identity.consistency);
  before_ = sync.wire_stats();
  begun_.store(true, std::memory_order_release);
}

void LiveMetrics::OnStep(const StepReport& report, const GradientSync& sync) {
  Numbers& own = own_;
  const StepTimes& times = report.times;
  const double seconds = absl::ToDoubleSeconds(times.total);
  own.step = static_cast<double>(report.step);
  own.steps = static_cast<double>(report.steps);
  own.trained += 1;
  own.epoch = static_cast<double>(report.epoch);
  own.samples += static_cast<double>(report.samples);
  own.samples_per_second = seconds > 0 ? static_cast<double>(report.samples) / seconds : 0;
  own.loss = report.loss;
  own.lr = report.lr;
  const absl::Duration parts[] = {times.data, times.forward, times.backward, times.exposed,
                                  times.update};
  for (int i = 0; i < 5; ++i) own.seconds[i] += absl::ToDoubleSeconds(parts[i]);
  own.stalls += times.exposed > kStall ? 1 : 0;
  own.finished_at = UnixSeconds(absl::Now());
  const WireStats wire = sync.wire_stats() - before_;
  own.bytes[0] = static_cast<double>(wire.tx_bytes);
  own.bytes[1] = static_cast<double>(wire.rx_bytes);
  own.messages[0] = static_cast<double>(wire.tx_messages);
  own.messages[1] = static_cast<double>(wire.rx_messages);
  const std::vector<int64_t> steps_by_staleness = sync.staleness().histogram;
  own.staleness_sum = 0;
  for (double& count : own.staleness) count = 0;
  for (size_t missed = 0; missed < steps_by_staleness.size(); ++missed) {
    const double steps = static_cast<double>(steps_by_staleness[missed]);
    own.staleness_sum += steps * static_cast<double>(missed);
    for (int i = 0; i < kBounds; ++i) {
      if (static_cast<double>(missed) <= kStaleness[i]) own.staleness[i] += steps;
    }
    own.staleness[kBounds] += steps;
  }
  shown_.Set(own);
}

std::vector<Metric> LiveMetrics::Collect() const {
  const std::string rank = absl::StrCat(rank_);
  std::vector<Metric> page;
  const auto add = [&page](std::string name, std::string help, Metric::Kind kind) -> Metric& {
    Metric& metric = page.emplace_back();
    metric.name = std::move(name);
    metric.help = std::move(help);
    metric.kind = kind;
    return metric;
  };
  const auto one = [&](std::string name, std::string help, Metric::Kind kind, double value) {
    add(std::move(name), std::move(help), kind).samples = {{{{"rank", rank}}, value}};
  };
  constexpr Metric::Kind kCounter = Metric::Kind::kCounter;
  constexpr Metric::Kind kGauge = Metric::Kind::kGauge;

  add("gradsync_build_info", "1; the labels say which program this is", kGauge).samples = {
      {{{"program", "worker"}, {"version", VersionName()}, {"rank", rank}}, 1}};
  if (begun_.load(std::memory_order_acquire)) {
    const Numbers numbers = shown_.Get();
    add("gradsync_job_info", "1; the labels say how gradients are exchanged", kGauge).samples = {
        {{{"rank", rank},
          {"run_id", run_id_},
          {"topology", topology_},
          {"link", link_},
          {"update", update_},
          {"consistency", consistency_}},
         1}};
    one("gradsync_step_total", "Steps that this process has trained", kCounter, numbers.trained);
    one("gradsync_current_step", "Number of the newest step, from 1 for the job's first", kGauge,
        numbers.step);
    one("gradsync_job_steps", "Steps of the whole job", kGauge, numbers.steps);
    one("gradsync_epoch", "Epoch of the newest step's samples, from 1", kGauge, numbers.epoch);
    one("gradsync_samples_total", "Samples of this rank's batches", kCounter, numbers.samples);
    one("gradsync_samples_per_second", "This rank's samples per second in the newest step", kGauge,
        numbers.samples_per_second);
    one("gradsync_loss", "Mean loss over this rank's batch in the newest step", kGauge,
        numbers.loss);
    one("gradsync_learning_rate", "Learning rate of the newest step", kGauge, numbers.lr);
    Metric& parts = add("gradsync_step_seconds_total",
                        "Time that steps took, in seconds, by what it was spent on; exposed is "
                        "waiting for buckets after backward",
                        kCounter);
    for (int i = 0; i < 5; ++i) {
      parts.samples.push_back({{{"rank", rank}, {"part", kParts[i]}}, numbers.seconds[i]});
    }
    one("gradsync_stall_total", "Steps that waited for their buckets for more than a second",
        kCounter, numbers.stalls);
    one("gradsync_last_step_timestamp_seconds", "When the newest step ended, as Unix time", kGauge,
        numbers.finished_at);
    Metric& bytes =
        add("gradsync_wire_bytes_total",
            "Payload of gradients and parameters in steps and checkpoints, in bytes", kCounter);
    for (int i = 0; i < 2; ++i) {
      bytes.samples.push_back(
          {{{"rank", rank}, {"link", link_}, {"direction", kDirections[i]}}, numbers.bytes[i]});
    }
    Metric& messages = add("gradsync_wire_messages_total", "Messages with such payload", kCounter);
    for (int i = 0; i < 2; ++i) {
      messages.samples.push_back(
          {{{"rank", rank}, {"link", link_}, {"direction", kDirections[i]}}, numbers.messages[i]});
    }
    Metric& staleness =
        add("gradsync_staleness_steps",
            "Steps of the slowest worker that a step's parameters lacked, under ssp and asp",
            Metric::Kind::kHistogram);
    staleness.labels = {{"rank", rank}};
    staleness.bounds.assign(kStaleness, kStaleness + kBounds);
    for (const double count : numbers.staleness) {
      staleness.counts.push_back(static_cast<uint64_t>(count));
    }
    staleness.sum = numbers.staleness_sum;
  }
  for (Metric& metric : ProcessMetrics()) page.push_back(std::move(metric));
  return page;
}

absl::StatusOr<OperationOptions> OperationsFromFlags(int rank, int local_rank) {
  OperationOptions options;
  GS_ASSIGN_OR_RETURN(options.log_format, ParseLogFormat(absl::GetFlag(FLAGS_log_format)));
  options.reflection = absl::GetFlag(FLAGS_reflection);
  LiveMetricsOptions& metrics = options.metrics;
  metrics.port = absl::GetFlag(FLAGS_metrics_port);
  metrics.host = absl::GetFlag(FLAGS_metrics_host);
  metrics.port_file = UserPath(absl::StrReplaceAll(absl::GetFlag(FLAGS_metrics_port_file),
                                                   {{"{rank}", absl::StrCat(rank)}}));
  const int port = metrics.port;
  if (port > 0) metrics.port += std::max(0, local_rank);
  if (port < -1 || metrics.port > 65535) {
    return FlagError("metrics_port", "a port up to 65535, with the local rank added, 0 or -1",
                     absl::StrCat(port));
  }
  return options;
}

}  // namespace gradsync
