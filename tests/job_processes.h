// Jobs of real processes.

#ifndef GRADSYNC_TESTS_JOB_PROCESSES_H_
#define GRADSYNC_TESTS_JOB_PROCESSES_H_

#include <memory>
#include <string>
#include <vector>

#include "proto/run_record.pb.h"
#include "tools/local_job.h"
#include "tools/test_program.h"

namespace gradsync {

// The workers of one job as processes under test, each with flags of its own.

// Starts worker/worker (of the test's runfiles) for each rank, rank 0 first, which holds the store
// on a free port; the others once it listens, or not at all if it ends before. What goes wrong on
// the way is a failure of the running test. Not thread-safe.
class WorkerProcesses {
 public:
  // `flags` by rank. `world_size`: 0 for as many; with more, the last ranks never come.
  // `environment`: by rank, a variable that is set, as "NAME=value"; empty, and beyond its end:
  // none.
  explicit WorkerProcesses(const std::vector<std::vector<std::string>>& flags, int world_size = 0,
                           const std::vector<std::string>& environment = {});

  int size() const { return static_cast<int>(ranks_.size()); }
  TestProgram& operator[](int rank) { return *ranks_[rank]; }

 private:
  std::vector<std::unique_ptr<TestProgram>> ranks_;
};

// `flags` with `more` behind them, so that they win.
std::vector<std::string> With(std::vector<std::string> flags, const std::vector<std::string>& more);

// A job of real processes that must succeed, and what its workers measured.

// A small job: an MLP on synthetic data, 4 samples per worker and step, unless `flags` say
// otherwise. Metrics are collected.
LocalJobOptions SmallJob(int workers, int servers, const std::vector<std::string>& flags);

// Of each worker, by rank, of a job that must succeed; empty, and a failure of the running test, if
// it does not.
std::vector<proto::WorkerMetrics> MetricsOf(const LocalJobOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_JOB_PROCESSES_H_
