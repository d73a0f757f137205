#ifndef GRADSYNC_PS_SERVER_METRICS_H_
#define GRADSYNC_PS_SERVER_METRICS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/program/metrics_server.h"
#include "ps_server/shard.h"

namespace gradsync {

// Writes ServerMetrics (proto/run_record.proto) of a server of this process as JSON, whole or not
// at all. Errors: those of the file system, naming the path.
absl::Status WriteServerMetrics(const ServerStats& stats, const std::string& address,
                                const std::string& path);

// What a server of this process shows to Prometheus (docs/operate/operations.md lists the names).
std::vector<Metric> MetricsOf(const ServerStats& stats, const std::string& run_id);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_METRICS_H_
