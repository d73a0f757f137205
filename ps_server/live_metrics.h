#ifndef GRADSYNC_PS_SERVER_LIVE_METRICS_H_
#define GRADSYNC_PS_SERVER_LIVE_METRICS_H_

#include <string>
#include <vector>

#include "core/base/metrics_server.h"
#include "ps_server/server_stats.h"

namespace gradsync {

// What a server of this process shows to Prometheus (docs/operations.md lists the names).
std::vector<Metric> MetricsOf(const ServerStats& stats, const std::string& run_id);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_LIVE_METRICS_H_
