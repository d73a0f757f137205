#include "worker/operation_flags.h"

#include <algorithm>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/errors.h"
#include "core/base/program_main.h"
#include "core/base/status_macros.h"

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
