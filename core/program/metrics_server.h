// What a process shows of itself to Prometheus: a page of numbers over HTTP.

#ifndef GRADSYNC_CORE_PROGRAM_METRICS_SERVER_H_
#define GRADSYNC_CORE_PROGRAM_METRICS_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace gradsync {

// One name on the page, with a value for each set of labels.
struct Metric {
  // A counter only grows, and its name ends with _total; a gauge goes up and down. A histogram's
  // samples are the counts of what is at most as large as `bounds` says, each with those before, and
  // one more for all; `sum` is that of what was counted.
  enum class Kind { kCounter, kGauge, kHistogram };
  using Labels = std::vector<std::pair<std::string, std::string>>;
  struct Sample {
    Labels labels;
    double value = 0;
  };

  std::string name;
  std::string help;  // a sentence without its full stop, with the unit
  Kind kind = Kind::kGauge;
  std::vector<Sample> samples;  // of a histogram: none
  std::vector<double> bounds;   // this and the next three: of a histogram
  std::vector<uint64_t> counts;
  double sum = 0;
  Labels labels;
};

struct MetricsServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any free one
  // The page, made anew each time that it is asked for, on a thread of the server.
  std::function<std::vector<Metric>()> collect;
};

// Serves http://HOST:PORT/metrics, to anybody who can reach it, until it is destroyed: one after the
// other, and none for more than two seconds. Thread-safe.
class MetricsServer {
 public:
  // Errors: UNAVAILABLE, naming the address, when the port is taken or the host is not this one;
  // RESOURCE_EXHAUSTED when this process has no file descriptors left; FAILED_PRECONDITION in a
  // build without the library (third_party/README.md).
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const MetricsServerOptions& options);

  // After this nobody asks `collect` any more. Waits for no peer.
  virtual ~MetricsServer() = default;

  virtual std::string address() const = 0;  // host:port
};

// Of this process: CPU time, resident memory, open files, by the names that Prometheus's own
// libraries have for them.
std::vector<Metric> ProcessMetrics();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_METRICS_SERVER_H_
