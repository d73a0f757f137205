#include "benchmarks/ranks/rank_spec.h"

#include "absl/strings/str_cat.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/records/run_job.h"
#include "core/base/status_macros.h"

namespace gradsync {

void SetJob(const JobSpec& job, proto::RankSpec* spec) {
  proto::RankSpec::Job& told = *spec->mutable_job();
  SetKind(job, &told);
  told.set_owners(job.owners);
  told.set_connections(job.connections);
  told.set_device("cpu");
  told.set_weights_by_host(true);
}

absl::StatusOr<JobSpec> JobOfSpec(const proto::RankSpec& spec) {
  const proto::RankSpec::Job& told = spec.job();
  GS_ASSIGN_OR_RETURN(JobSpec job, ParseJobSpec({told.topology(), told.link(), told.update(),
                                                 told.consistency(), told.compression()}));
  job.owners = told.owners();
  job.connections = told.connections();
  return job;
}

absl::StatusOr<std::unique_ptr<RankFiles>> RankFiles::Create(proto::RankSpec spec,
                                                             absl::Duration timeout) {
  GS_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Create("gradsync-ranks-"));
  std::unique_ptr<RankFiles> files(new RankFiles(std::move(folder)));
  spec.set_start_line(absl::StrCat(files->folder_.path(), "/start_line"));
  spec.set_timeout_seconds(absl::ToDoubleSeconds(timeout));
  GS_RETURN_IF_ERROR(WriteJson(files->spec_path(), spec));
  return files;
}

}  // namespace gradsync
