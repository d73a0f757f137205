#include "benchmarks/ranks/rank_spec.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/records/proto_json.h"

namespace gradsync {

void SetJob(const JobSpec& job, proto::RankSpec* spec) {
  proto::RankSpec::Job& told = *spec->mutable_job();
  told.set_topology(TopologyName(job.topology));
  told.set_link(LinkName(job.link));
  told.set_update(UpdateSiteName(job.update));
  told.set_consistency(ConsistencyName(job.consistency));
  told.set_compression(CodecName(job.codec));
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
  std::error_code error;
  std::string folder = std::filesystem::temp_directory_path(error) / "gradsync-ranks-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a folder like ", folder));
  }
  std::unique_ptr<RankFiles> files(new RankFiles(std::move(folder)));
  spec.set_start_line(absl::StrCat(files->folder_, "/start_line"));
  spec.set_timeout_seconds(absl::ToDoubleSeconds(timeout));
  GS_RETURN_IF_ERROR(WriteJson(files->spec_path(), spec));
  return files;
}

RankFiles::~RankFiles() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace gradsync
