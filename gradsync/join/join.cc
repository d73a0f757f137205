#include "gradsync/join/join.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/host_port.h"
#include "core/base/status_macros.h"
#include "core/group/group_error.h"
#include "core/group/store_run.h"
#include "core/plan/codec.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "gradsync/join/own_server.h"

namespace gradsync {
namespace {

// What ranks compare. A program that has flags of these names has them as its users wrote them.
FlagTexts SameOnAllRanks(const JoinOptions& options) {
  FlagTexts texts = options.same_on_all_ranks;
  const JobSpec& job = options.sync.job;
  texts.emplace("topology", TopologyName(job.topology));
  texts.emplace("link", LinkName(job.link));
  texts.emplace("update", UpdateSiteName(job.update));
  texts.emplace("consistency", ConsistencyName(job.consistency));
  texts.emplace("compression", CodecName(job.codec));
  texts.emplace("owners", absl::StrCat(job.owners));
  texts.emplace("connections", absl::StrCat(job.connections));
  texts.emplace("servers", absl::StrJoin(options.sync.servers, ","));
  texts.emplace("num_servers", absl::StrCat(options.num_servers));
  return texts;
}

// One worker without servers has no peers, whatever its launcher says of a master: an interactive
// shell of Slurm or torchrun says that to each program. A port file asks for a store all the same.
bool NeedsNoStore(const JoinOptions& options) {
  return options.meet.world_size == 1 && options.num_servers == 0 && options.sync.servers.empty() &&
         options.meet.on_store == nullptr;
}

// Where server `number` of the job registers its address.
std::string ServerKey(const WorkerGroup& group, int number) {
  if (!group.part.empty()) return group.Key(absl::StrCat("server/", number));
  return RegisteredKey({group.run_id, group.attempt}, number);
}

// Each stage, or slice, has servers of its own, which know nothing of the others: server i is stage
// i's, modulo the number of stages. `what`: "stage"; `parts`: the stages of one pipeline.
absl::Status TakeServers(absl::string_view what, const WorkerGroup& parts, SyncOptions* options) {
  if (options->servers.empty() || options->servers_in_workers) return absl::OkStatus();
  const int stage = parts.rank;
  const int stages = parts.world_size;
  const int count = static_cast<int>(options->servers.size());
  if (count < stages) {
    return FlagError("servers",
                     absl::StrCat("at least ", stages, ", one for each ", what, " of --mesh"),
                     absl::StrJoin(options->servers, ","));
  }
  std::vector<std::string> servers;
  std::vector<double> weights;
  for (int i = stage; i < count; i += stages) {
    servers.push_back(options->servers[i]);
    options->server_numbers.push_back(i);
    if (!options->weights.empty()) weights.push_back(options->weights[i]);
  }
  options->servers = std::move(servers);
  options->weights = std::move(weights);
  return absl::OkStatus();
}

// Not left to those who do not know: their gradients would travel in the clear.
absl::Status CheckEncryption(const JoinOptions& options) {
  const Link link = options.sync.job.link;
  if (!options.meet.credentials.encrypted || (link != Link::kGloo && link != Link::kNccl)) {
    return absl::OkStatus();
  }
  return FlagError("link",
                   "one that can encrypt, as --tls_cert asks (grpc, tcp; shm within a host)",
                   LinkName(link));
}

GpuOpener OpenerOf(const Adapters& adapters) {
  if (adapters.open_gpu != nullptr) return adapters.open_gpu;
  return [](int) -> absl::StatusOr<std::shared_ptr<GpuApi>> {
    return absl::FailedPreconditionError("this program links no GPU, which comes with LibTorch");
  };
}

}  // namespace

absl::Status CheckJoin(const JoinOptions& options) {
  GS_RETURN_IF_ERROR(CheckMeeting(options.meet));
  if (options.meet.master.empty() && options.num_servers > 0) {
    return absl::InvalidArgumentError(
        "--master: expected host:port of rank 0, where servers register, found nothing");
  }
  for (const std::string& server : options.sync.servers) {
    if (!ParseHostPort(server).ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--servers: expected host:port,..., found \"", server, "\""));
    }
  }
  GS_RETURN_IF_ERROR(CheckEncryption(options));
  GS_RETURN_IF_ERROR(ValidateDevice(options.device));
  GS_RETURN_IF_ERROR(CheckOwners(options.sync.job, options.mesh.cuts_model()
                                                       ? options.mesh.replicas()
                                                       : options.meet.world_size));
  SyncOptions sync = options.sync;
  sync.job.servers = options.num_servers;
  return ValidateSyncOptions(sync);
}

absl::Status OpenDevices(JoinOptions* options) {
  SyncOptions& sync = options->sync;
  if (sync.gpu == nullptr) {
    GS_ASSIGN_OR_RETURN(
        sync.gpu, OpenDevice(options->device, options->meet.world_size, OpenerOf(sync.adapters)));
  }
  GS_RETURN_IF_ERROR(CheckLinkDevice(sync.job.link, sync.gpu.get()));
  if (sync.job.link != Link::kNccl || sync.nccl != nullptr) return absl::OkStatus();
  GS_RETURN_IF_ERROR(CheckNccl(sync));
  GS_ASSIGN_OR_RETURN(sync.nccl,
                      sync.adapters.open_nccl(sync.gpu->device(), options->nccl_settings));
  return absl::OkStatus();
}

Member::Member(std::shared_ptr<Meeting> meeting, WorkerGroup group)
    : meeting_(std::move(meeting)), group_(std::move(group)) {}
Member::~Member() = default;

absl::Status Member::Explain(const absl::Status& status) const { return meeting_->Explain(status); }

absl::Status Member::Fail(const absl::Status& reason) {
  sync_->Abort(reason);
  const absl::Status agreed = sync_->status();
  const absl::Status cause = agreed.ok() ? reason : agreed;
  // For ranks that wait in the store and not in the backend, which may not be bound yet.
  const absl::Status published = PublishFailure(group(), Certain(cause));
  return agreed.ok() ? published : Certain(cause);
}

absl::Status Member::Leave() {
  if (IsAlone()) return absl::OkStatus();
  if (own_server_ != nullptr) GS_RETURN_IF_ERROR(own_server_->Wait());
  own_server_.reset();
  return group().part.empty() ? meeting_->Leave() : absl::OkStatus();
}

absl::Status Member::CheckNewGroup(const std::string& name) const {
  const auto refuse = [&name](absl::string_view expected, absl::string_view found) {
    return absl::InvalidArgumentError(
        absl::StrCat("group \"", name, "\": expected ", expected, ", found ", found));
  };
  if (name.empty() || name.find('/') != std::string::npos) {
    return refuse("a name without slashes", name.empty() ? "none" : "one");
  }
  if (new_groups_.count(name) > 0) return refuse("a name of its own", "one that was taken before");
  if (mesh_.cuts_model()) return refuse("ranks that have all of a model", mesh_.ToString());
  if (options_.servers.empty() || options_.servers_in_workers) return absl::OkStatus();
  return refuse("a ring, or servers in the workers",
                "servers with processes of their own, which serve one group");
}

absl::StatusOr<std::unique_ptr<Member>> Member::NewGroup(const std::string& name) {
  GS_RETURN_IF_ERROR(CheckNewGroup(name));
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      side_channel_->AllGather(name, Deadline::In(group().timeout)));
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (names[rank] == names[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("a new group: expected the same name on all ranks, found \"", names[0],
                     "\" on ", side_channel_->Name(0), ", \"", names[rank], "\" on ",
                     side_channel_->Name(static_cast<int>(rank))));
  }
  new_groups_.insert(name);
  WorkerGroup own = group();
  own.part = absl::StrCat(own.part, own.part.empty() ? "" : "/", "group/", name);
  std::unique_ptr<Member> member(new Member(meeting_, std::move(own)));
  member->options_ = options_;
  member->mesh_ = mesh_;
  member->activity_ = activity_;
  if (options_.servers_in_workers) {
    member->options_.servers.clear();
    member->options_.server_numbers.clear();
    GS_RETURN_IF_ERROR(member->BecomeServers(member->group()));
  }
  GS_RETURN_IF_ERROR(member->CreateSync(member->group()));
  return member;
}

absl::Status Member::Complete(const JoinOptions& options) {
  GS_RETURN_IF_ERROR(AgreeOnFlags(group(), SameOnAllRanks(options)));
  const WorkerGroup replicas =
      mesh_.cuts_model() ? SubGroup(group(), mesh_, mesh_.samples()) : group();
  for (const std::string& server : options_.servers) meeting_->AddServer(server);
  if (options.num_servers > 0) {
    GS_RETURN_IF_ERROR(FindServers(options.num_servers));
  } else if (options_.servers.empty() && ServersInWorkers(options_.job)) {
    GS_RETURN_IF_ERROR(BecomeServers(replicas));
  }
  GS_RETURN_IF_ERROR(ResolveByHosts(group(), &options_));
  if (mesh_.has_pipeline()) {
    GS_RETURN_IF_ERROR(
        TakeServers("stage", SubGroup(group(), mesh_, MeshDimension::kPipeline), &options_));
  }
  if (mesh_.has_slices()) {
    GS_RETURN_IF_ERROR(
        TakeServers("slice", SubGroup(group(), mesh_, MeshDimension::kTensor), &options_));
  }
  GS_RETURN_IF_ERROR(CreateSync(replicas));
  if (IsAlone()) meeting_->Unwatch();
  return absl::OkStatus();
}

absl::Status Member::CreateSync(const WorkerGroup& replicas) {
  GS_ASSIGN_OR_RETURN(sync_, CreateGradientSync(options_, replicas));
  // Workers that train by themselves need not wait for the slowest, nor it for them.
  side_channel_ = std::make_unique<SideChannel>(IsAlone() ? WorkerGroup() : group(), "job");
  return absl::OkStatus();
}

// All replicas of this worker, or the first so many, are the servers of their part of the model.
// Rank 0 watches them as workers.
absl::Status Member::BecomeServers(const WorkerGroup& replicas) {
  const int owners = options_.job.owners;
  const int servers = owners == 0 ? replicas.world_size : owners;
  if (replicas.rank < servers) {
    options_.server_link = OwnServerLinkOf(options_.job.link, group());
    GS_ASSIGN_OR_RETURN(own_server_, OwnServer::Start(group(), options_.server_link));
    GS_RETURN_IF_ERROR(group().store->Set(ServerKey(group(), group().rank), own_server_->address(),
                                          Deadline::In(group().timeout)));
  }
  for (int member = 0; member < servers; ++member) {
    const int rank = replicas.RankOfJob(member);
    GS_ASSIGN_OR_RETURN(std::string address,
                        AwaitServer(rank, absl::StrCat("rank ", rank, ": its server")));
    options_.servers.push_back(std::move(address));
    options_.server_numbers.push_back(rank);
  }
  options_.servers_in_workers = options_.servers_run = true;
  return absl::OkStatus();
}

// Its address. `name`: what it is called where it does not come.
absl::StatusOr<std::string> Member::AwaitServer(int number, absl::string_view name) {
  absl::StatusOr<std::string> address =
      group().store->Get(ServerKey(group(), number), Deadline::In(group().timeout));
  if (!absl::IsDeadlineExceeded(address.status())) return address;
  return absl::DeadlineExceededError(
      absl::StrCat(name, " has not come within ", absl::FormatDuration(group().timeout)));
}

// Those that registered themselves, in the order of their numbers. One that is lost before the last has
// come ends the wait for that.
absl::Status Member::FindServers(int count) {
  for (int i = 0; i < count; ++i) {
    GS_ASSIGN_OR_RETURN(std::string address,
                        AwaitServer(i, absl::StrCat("server ", i, " (of ", count, ")")));
    meeting_->AddServer(address);
    options_.servers.push_back(std::move(address));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Member>> Join(JoinOptions options) {
  GS_RETURN_IF_ERROR(CheckJoin(options));
  GS_RETURN_IF_ERROR(OpenDevices(&options));
  // Those that are given by address do not come by themselves.
  options.meet.servers = options.num_servers;
  if (NeedsNoStore(options)) options.meet.master.clear();
  GS_ASSIGN_OR_RETURN(Meeting meeting, Meet(options.meet));
  const WorkerGroup group = meeting.group();
  std::unique_ptr<Member> member(new Member(std::make_shared<Meeting>(std::move(meeting)), group));
  member->options_ = options.sync;
  member->mesh_ = options.mesh;
  member->activity_ = options.meet.activity;
  const absl::Status complete = member->Explain(member->Complete(options));
  if (complete.ok()) return member;
  return PublishFailure(member->group(), complete);
}

}  // namespace gradsync
