// What a worker in operation shows to those who watch it, and the flags for that.

#ifndef GRADSYNC_WORKER_OPERATION_H_
#define GRADSYNC_WORKER_OPERATION_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/log_line.h"
#include "core/base/snapshot.h"
#include "core/group/wire_stats.h"
#include "core/program/metrics_server.h"
#include "core/sync/gradient_sync.h"
#include "worker/train/trainer.h"

namespace gradsync {

// What a worker shows to Prometheus while it trains (docs/operate/operations.md lists the names).
struct LiveMetricsOptions {
  std::string host = "127.0.0.1";
  int port = -1;          // 0: any; -1: there is no page
  std::string port_file;  // gets "host:port" and a newline; empty: none

  bool wanted() const { return port >= 0; }
};

// A rank's page. Steps write their numbers to memory of their own, without waiting for who reads
// them; the page is made on a thread of the server's.
class LiveMetrics {
 public:
  // Listens from here on; there are no numbers of the job before Begin(). Errors: INVALID_ARGUMENT
  // naming the flag --metrics_port; those of WriteFileAtomically().
  static absl::StatusOr<std::unique_ptr<LiveMetrics>> Start(const LiveMetricsOptions& options,
                                                            int rank, const std::string& run_id);

  std::string address() const { return server_->address(); }

  // This and OnStep() are for one thread. The backend is bound and the first step begins.
  void Begin(const GradientSync& sync);
  void OnStep(const StepReport& report, const GradientSync& sync);

 private:
  static constexpr int kBounds = 6;

  // Of the steps since Begin(); doubles, as the page has them.
  struct Numbers {
    double step = 0;   // the newest
    double steps = 0;  // of the job
    double trained = 0;
    double epoch = 0;
    double samples = 0;
    double samples_per_second = 0;
    double loss = 0;
    double lr = 0;
    double seconds[5] = {};  // data, forward, backward, exposed, update
    double stalls = 0;
    double finished_at = 0;  // Unix time
    double bytes[2] = {};    // sent, received
    double messages[2] = {};
    double staleness[kBounds + 1] = {};
    double staleness_sum = 0;
  };

  LiveMetrics() = default;
  std::vector<Metric> Collect() const;

  int rank_ = 0;
  std::string run_id_;
  WireStats before_;  // the first step
  Numbers own_;       // of the thread that trains
  Snapshot<Numbers> shown_;
  // Set once, by Begin(), before `begun_`.
  std::string topology_, link_, update_, consistency_;
  std::atomic<bool> begun_{false};
  std::unique_ptr<MetricsServer> server_;  // last: its threads use all of the above
};

// The flags of who runs jobs and watches them (docs/operate/operations.md).
struct OperationOptions {
  LiveMetricsOptions metrics;
  LogFormat log_format = LogFormat::kText;
  bool reflection = false;
};

// What the flags say, for the worker `rank`, which is number `local_rank` on its host; -1 where
// that is not known. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<OperationOptions> OperationsFromFlags(int rank, int local_rank);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_OPERATION_H_
