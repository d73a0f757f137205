#include "ps_server/metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/process_resources.h"
#include "core/base/write_file.h"
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

}  // namespace gradsync
