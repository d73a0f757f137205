#include "benchmarks/ranks/rank_main.h"

#include <cstdio>

#include "absl/flags/flag.h"

ABSL_FLAG(int, rank, 0, "of this process");
ABSL_FLAG(int, world_size, 1, "number of ranks; servers, where there are any, need it, too");
ABSL_FLAG(std::string, master, "127.0.0.1:0", "host:port of the store, which rank 0 holds");
ABSL_FLAG(std::string, port_file, "", "rank 0 writes the store's host:port here; servers, theirs");
ABSL_FLAG(std::string, metrics_json, "", "where to write what this rank measured");
ABSL_FLAG(std::string, start_line, "", "file of the start line");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60), "a peer that is silent for longer is lost");

namespace gradsync {

MeetOptions MeetFromFlags(absl::string_view run_id) {
  MeetOptions options;
  options.rank = absl::GetFlag(FLAGS_rank);
  options.world_size = absl::GetFlag(FLAGS_world_size);
  options.master = absl::GetFlag(FLAGS_master);
  options.run_id = std::string(run_id);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.on_store = WriteAddressTo(absl::GetFlag(FLAGS_port_file));
  return options;
}

int RankExitCode(absl::string_view benchmark, const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: rank %d: %s\n", std::string(benchmark).c_str(),
               absl::GetFlag(FLAGS_rank), status.ToString().c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace gradsync
