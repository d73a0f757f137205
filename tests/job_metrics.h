// A job of real processes that must succeed, and what its workers measured.

#ifndef GRADSYNC_TESTS_JOB_METRICS_H_
#define GRADSYNC_TESTS_JOB_METRICS_H_

#include <string>
#include <vector>

#include "proto/run_record.pb.h"
#include "tools/local_job.h"

namespace gradsync {

// A small job: an MLP on synthetic data, 4 samples per worker and step, unless `flags` say
// otherwise. Metrics are collected.
LocalJobOptions SmallJob(int workers, int servers, const std::vector<std::string>& flags);

// Of each worker, by rank, of a job that must succeed; empty, and a failure of the running test, if
// it does not.
std::vector<proto::WorkerMetrics> MetricsOf(const LocalJobOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_JOB_METRICS_H_
