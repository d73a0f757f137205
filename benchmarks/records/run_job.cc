#include "benchmarks/records/run_job.h"

#include <algorithm>

namespace gradsync {

JobSpec SpecOfWords(absl::string_view topology, absl::string_view link, absl::string_view update,
                    absl::string_view consistency, absl::string_view compression) {
  JobSpec spec;
  spec.topology = ParseTopology(topology).value_or(Topology::kRing);
  spec.link = ParseLink(link).value_or(Link::kNone);
  spec.update = ParseUpdateSite(update).value_or(UpdateSite::kWorker);
  spec.consistency = ParseConsistency(consistency).value_or(Consistency());
  spec.codec = ParseCodec(compression).value_or(Codec());
  return spec;
}

PlacedJob JobOf(const proto::Run& run) {
  PlacedJob job;
  job.spec = SpecOf(run);
  job.workers = run.workers();
  job.servers = run.servers();
  if (job.servers > 0) {
    job.placement = ParsePlacement(run.placement()).value_or(Placement::kDedicated);
  }
  job.bandwidth = run.bandwidth();
  job.zero = run.zero();
  job.arrangement.mesh = run.mesh();
  job.arrangement.schedule = run.pipeline_schedule();
  job.arrangement.micro_batches = run.micro_batches();
  job.arrangement.data_parallel = std::max(1, run.data_parallel());
  return job;
}

Precision PrecisionOf(const proto::Run& run) {
  return ParsePrecision(run.precision()).value_or(Precision::kFp32);
}

void SetArrangement(const Arrangement& arrangement, proto::Run* run) {
  run->set_mesh(arrangement.mesh);
  run->set_pipeline_schedule(arrangement.schedule);
  run->set_micro_batches(arrangement.micro_batches);
  run->set_data_parallel(arrangement.data_parallel > 1 ? arrangement.data_parallel : 0);
}

void SetPlaced(const PlacedJob& job, proto::Run* run) {
  run->set_workers(job.workers);
  run->set_servers(job.servers);
  run->set_placement(PlacementName(job.placement));
  run->set_bandwidth(job.bandwidth);
  run->set_zero(job.zero);
}

}  // namespace gradsync
