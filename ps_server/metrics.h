#ifndef GRADSYNC_PS_SERVER_METRICS_H_
#define GRADSYNC_PS_SERVER_METRICS_H_

#include <string>

#include "absl/status/status.h"
#include "ps_server/server_stats.h"

namespace gradsync {

// Writes ServerMetrics (proto/run_record.proto) of a server of this process as JSON, whole or not
// at all. Errors: those of the file system, naming the path.
absl::Status WriteServerMetrics(const ServerStats& stats, const std::string& address,
                                const std::string& path);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_METRICS_H_
