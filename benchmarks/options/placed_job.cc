#include "benchmarks/options/placed_job.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/errors.h"
#include "core/plan/cost_model.h"
#include "core/plan/sharding.h"
#include "core/plan/stripes.h"
#include "core/plan/wire_traffic.h"

namespace gradsync {
namespace {

bool Fits(const PlacedJob& job) {
  switch (job.placement) {
    case Placement::kNone:
    case Placement::kDedicated:
      return true;
    case Placement::kColocated:
      return job.servers <= job.workers;
    case Placement::kMixed:
      return job.servers >= 1 && job.servers < job.workers;
  }
  return false;
}

// Whether or not each is a process of its own.
int Servers(const PlacedJob& job) {
  return job.placement == Placement::kMixed ? job.workers + job.servers : job.servers;
}

}  // namespace

bool Arrangement::operator==(const Arrangement& other) const {
  return std::tie(mesh, schedule, micro_batches, data_parallel) ==
         std::tie(other.mesh, other.schedule, other.micro_batches, other.data_parallel);
}

std::string Describe(const Arrangement& arrangement) {
  std::vector<std::string> parts;
  if (!arrangement.mesh.empty()) parts.push_back(arrangement.mesh);
  if (!arrangement.schedule.empty()) parts.push_back(arrangement.schedule);
  if (const int count = arrangement.micro_batches; count > 0) {
    parts.push_back(absl::StrCat(count, count == 1 ? " micro-batch" : " micro-batches"));
  }
  if (arrangement.data_parallel > 1) {
    parts.push_back(absl::StrCat(arrangement.data_parallel, " replicas in each"));
  }
  return absl::StrJoin(parts, ", ");
}

bool SameJob(const PlacedJob& a, const PlacedJob& b) {
  const auto key = [](const PlacedJob& job) {
    return std::make_tuple(job.spec.topology, job.spec.link, job.spec.update, job.workers,
                           job.servers, job.placement, job.bandwidth, job.zero);
  };
  return key(a) == key(b) && a.spec.codec == b.spec.codec &&
         a.spec.consistency == b.spec.consistency && a.arrangement == b.arrangement;
}

std::string DescribeKind(const JobSpec& spec) {
  std::string text = TopologyName(spec.topology);
  if (spec.link != Link::kAuto && spec.link != Link::kNone) {
    absl::StrAppend(&text, " over ", LinkName(spec.link));
  }
  if (spec.update != UpdateSite::kWorker) {
    absl::StrAppend(&text, ", update at ", UpdateSiteName(spec.update));
  }
  if (spec.codec.compresses()) absl::StrAppend(&text, ", ", CodecName(spec.codec));
  if (!spec.consistency.bulk()) absl::StrAppend(&text, ", ", ConsistencyName(spec.consistency));
  return text;
}

std::string DescribeServers(const PlacedJob& job) {
  if (job.servers == 0) return "";
  const std::string servers = absl::StrCat(", servers ", job.servers);
  return job.placement == Placement::kDedicated
             ? servers
             : absl::StrCat(servers, " ", PlacementName(job.placement));
}

absl::Status CheckJob(PlacedJob* job) {
  job->spec.servers = ServerProcesses(*job);
  job->spec.owners = OwnersAreRanks(job->spec) ? job->servers : 0;
  if (!Fits(*job)) {
    return FlagError("placement",
                     "at most as many --servers as --workers for colocated, fewer for mixed",
                     PlacementName(job->placement));
  }
  const absl::Status kind = CheckJobSpec(job->spec);
  return kind.ok() ? CheckZero(job->zero, job->spec) : kind;
}

int ServerProcesses(const PlacedJob& job) { return OwnersAreRanks(job.spec) ? 0 : Servers(job); }

std::vector<int> HostsOf(const PlacedJob& job) {
  switch (job.placement) {
    case Placement::kNone:
    case Placement::kDedicated:
      break;
    case Placement::kColocated:
      return ColocatedHosts(job.workers, Servers(job));
    case Placement::kMixed:
      return MixedHosts(job.workers, Servers(job));
  }
  return DedicatedHosts(job.workers, Servers(job));
}

int HostCount(const PlacedJob& job) {
  const std::vector<int> hosts = HostsOf(job);
  return *std::max_element(hosts.begin(), hosts.end()) + 1;
}

int64_t ChunkBytesOf(const PlacedJob& job, int64_t asked) {
  return asked == 0 && !job.bandwidth.empty() ? kNetworkChunks : asked;
}

std::vector<double> PlacedWeights(const PlacedJob& job) {
  if (job.placement == Placement::kMixed) return MixedWeights(job.workers, job.servers);
  return std::vector<double>(Servers(job), 1.0);
}

double TurnsOnCores(int workers, int threads, int cores) {
  if (cores == 0) return 1;
  return std::max(1.0, static_cast<double>(workers) * threads / cores);
}

absl::Status CheckRanksPerGpu(int ranks_per_gpu, const std::string& device) {
  if (ranks_per_gpu < 1) {
    return FlagError("ranks_per_gpu", "at least 1", absl::StrCat(ranks_per_gpu));
  }
  if (ranks_per_gpu == 1 || device == "cuda") return absl::OkStatus();
  return FlagError("ranks_per_gpu",
                   absl::StrCat("1 with --device=", device.empty() ? "cpu" : device,
                                ", more only with --device=cuda"),
                   absl::StrCat(ranks_per_gpu));
}

std::vector<std::string> SharedGpuEnvironment(int rank) {
  return {absl::StrCat("NCCL_HOSTID=gradsync-test-", rank), "NCCL_ALGO=Ring", "NCCL_PROTO=Simple",
          "NCCL_SOCKET_IFNAME==lo", "NCCL_IB_DISABLE=1"};
}

std::string SharedGpuNote(int ranks_per_gpu) {
  return absl::StrCat("test mode: ", ranks_per_gpu,
                      " ranks share a GPU and take turns on it, and NCCL goes over sockets: its "
                      "results are right, its times mean nothing");
}

}  // namespace gradsync
