#include "ps_server/metrics.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/process_resources.h"
#include "core/base/write_file.h"
#include "core/program/version.h"
#include "google/protobuf/util/json_util.h"
#include "proto/run_record.pb.h"

namespace gradsync {

absl::Status WriteServerMetrics(const ServerStats& stats, const std::string& address,
                                const std::string& path) {
  const double steps = static_cast<double>(std::max<int64_t>(stats.steps, 1));
  proto::ServerMetrics metrics;
  metrics.set_server(stats.server);
  metrics.set_address(address);
  metrics.set_shard_bytes(static_cast<double>(stats.shard_bytes));
  metrics.set_wire_tx_bytes(static_cast<double>(stats.tx_bytes));
  metrics.set_wire_rx_bytes(static_cast<double>(stats.rx_bytes));
  metrics.set_steps(static_cast<double>(stats.steps));
  metrics.set_cpu_seconds(absl::ToDoubleSeconds(ProcessCpuTime()));
  metrics.set_wire_tx_bytes_per_step(static_cast<double>(stats.step_tx_bytes) / steps);
  metrics.set_wire_rx_bytes_per_step(static_cast<double>(stats.step_rx_bytes) / steps);
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto converted = google::protobuf::util::MessageToJsonString(metrics, &json, options);
  if (!converted.ok()) {
    return absl::InternalError(absl::StrCat("metrics as JSON: ", converted.ToString()));
  }
  return WriteFileAtomically(path, json);
}

namespace {

constexpr Metric::Kind kCounter = Metric::Kind::kCounter;
constexpr Metric::Kind kGauge = Metric::Kind::kGauge;

Metric Number(std::string name, std::string help, Metric::Kind kind,
              std::vector<Metric::Sample> samples) {
  Metric metric;
  metric.name = std::move(name);
  metric.help = std::move(help);
  metric.kind = kind;
  metric.samples = std::move(samples);
  return metric;
}

std::vector<Metric::Sample> BothWays(const Metric::Labels& labels, int64_t sent, int64_t received) {
  std::vector<Metric::Sample> samples = {{labels, static_cast<double>(sent)},
                                         {labels, static_cast<double>(received)}};
  samples[0].labels.push_back({"direction", "sent"});
  samples[1].labels.push_back({"direction", "received"});
  return samples;
}

}  // namespace

std::vector<Metric> MetricsOf(const ServerStats& stats, const std::string& run_id) {
  std::vector<Metric> page;
  page.push_back(Number("gradsync_build_info", "1; the labels say which program this is", kGauge,
                        {{{{"program", "ps_server"}, {"version", VersionName()}}, 1}}));
  page.push_back(Number("gradsync_job_workers", "Workers of the job; 0 until all have come", kGauge,
                        {{{{"run_id", run_id}}, static_cast<double>(stats.workers)}}));
  if (stats.workers > 0) {
    const Metric::Labels server = {{"server", absl::StrCat(stats.server)}};
    page.push_back(Number("gradsync_step_total", "Steps that were begun", kCounter,
                          {{server, static_cast<double>(stats.steps)}}));
    page.push_back(Number("gradsync_shard_bytes",
                          "This server's part of the gradient, in bytes as fp32", kGauge,
                          {{server, static_cast<double>(stats.shard_bytes)}}));
    page.push_back(Number("gradsync_wire_bytes_total",
                          "Payload of gradients and parameters in steps and broadcasts, in bytes",
                          kCounter, BothWays(server, stats.tx_bytes, stats.rx_bytes)));
    page.push_back(Number("gradsync_wire_messages_total", "Messages with such payload", kCounter,
                          BothWays(server, stats.tx_messages, stats.rx_messages)));
  }
  for (Metric& metric : ProcessMetrics()) page.push_back(std::move(metric));
  return page;
}

}  // namespace gradsync
