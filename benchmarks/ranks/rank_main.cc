#include "benchmarks/ranks/rank_main.h"

#include <memory>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"

ABSL_FLAG(int, rank, 0, "of this process");
ABSL_FLAG(int, world_size, 1, "number of ranks; servers, where there are any, need it, too");
ABSL_FLAG(std::string, master, "127.0.0.1:0", "host:port of the store, which rank 0 holds");
ABSL_FLAG(std::string, port_file, "", "rank 0 writes the store's host:port here; servers, theirs");
ABSL_FLAG(std::string, metrics_json, "", "where to write what this rank measured");
ABSL_FLAG(std::vector<std::string>, servers, {}, "of this job, host:port,...");
ABSL_FLAG(std::string, topology, "", "set by RunLocalJob() and ignored: --spec says it");
ABSL_FLAG(std::string, spec, "", "file of what to do (proto/rank_spec.proto)");

namespace gradsync {

absl::StatusOr<proto::RankSpec> SpecFromFlags(proto::RankSpec::PartCase part) {
  const std::string path = absl::GetFlag(FLAGS_spec);
  proto::RankSpec spec;
  GS_RETURN_IF_ERROR(ReadJson(path, &spec));
  if (spec.part_case() == part) return spec;
  const std::string& name = proto::RankSpec::descriptor()->FindFieldByNumber(part)->name();
  return FlagError("spec", absl::StrCat("a file with \"", name, "\""), path);
}

MeetOptions MeetFromFlags(absl::string_view run_id, const proto::RankSpec& spec) {
  MeetOptions options;
  options.rank = absl::GetFlag(FLAGS_rank);
  options.world_size = absl::GetFlag(FLAGS_world_size);
  options.master = absl::GetFlag(FLAGS_master);
  options.run_id = std::string(run_id);
  options.credentials.secret = EnvironmentVariable(kJobKeyVariable).value_or("");
  options.timeout = absl::Seconds(spec.timeout_seconds());
  options.on_store = WriteAddressTo(absl::GetFlag(FLAGS_port_file));
  return options;
}

absl::StatusOr<std::function<absl::Status()>> OpenStartLine(const proto::RankSpec& spec) {
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<StartLine> line,
                      StartLine::Open(spec.start_line(), absl::GetFlag(FLAGS_world_size)));
  const absl::Duration timeout = absl::Seconds(spec.timeout_seconds());
  return std::function<absl::Status()>(
      [line, timeout] { return line->Wait(Deadline::In(timeout)); });
}

int RankExitCode(absl::string_view benchmark, const absl::Status& status) {
  if (status.ok()) return 0;
  PrintError(benchmark, absl::StrCat("rank ", absl::GetFlag(FLAGS_rank), ": ", status.ToString()));
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace gradsync
