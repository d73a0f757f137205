// From nothing to a rank that can train, in one call: Join() gives it the group, the backend and
// the side channel. //worker, the ranks of all benchmarks and programs of users start like this:
//
//   absl::StatusOr<gradsync::JoinOptions> options = gradsync::JoinOptionsFromEnvironment();
//   options->sync.job.topology = gradsync::Topology::kRing;
//   options->sync.adapters = gradsync::TorchAdapters();  // of a program that links LibTorch
//   absl::StatusOr<std::unique_ptr<gradsync::Member>> member = gradsync::Join(*options);
//   ... DdpEngine::Create(module, &(*member)->sync(), &(*member)->side_channel(),
//                                       ddp_options)

#ifndef GRADSYNC_GRADSYNC_JOIN_JOIN_H_
#define GRADSYNC_GRADSYNC_JOIN_JOIN_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/group/mesh.h"
#include "gradsync/join/agree_on_flags.h"
#include "gradsync/join/meet.h"
#include "gradsync/join/member.h"
#include "gradsync/join/open_device.h"
#include "gradsync/join/sync_factory.h"

namespace gradsync {

// What a process is told before it knows anybody: by flags, by the environment
// (gradsync/join/environment_main.h), or by the program itself.
struct JoinOptions {
  MeetOptions meet;
  SyncOptions sync;  // its gpu and nccl are opened by OpenDevices(), unless they are there
  Mesh mesh;         // of the ranks, where it cuts the model; else looked at by nobody
  // Servers that register in the store, when sync.servers is empty. Without any, with Topology::kPs,
  // the first sync.job.owners workers have one each; in a mesh that cuts the model, the first so many
  // replicas of each part.
  int num_servers = 0;
  DeviceOptions device;
  int ranks_on_host = 0;      // with this one, servers of its launcher too; 0: nobody said
  std::string launcher;       // that said who this process is, for records: "Slurm"
  std::string nccl_settings;  // what NCCL was told by its environment, for records

  // What must be the same on all ranks besides `sync.job`, which is compared too.
  FlagTexts same_on_all_ranks;
};

// Everything that can be known alone: who this is, where the others are, what goes together.
// Opens nothing. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::Status CheckJoin(const JoinOptions& options);

// Opens the GPU that options->device names, and NCCL where that is the link; for programs that need
// them before they meet the others. Join() does it where it has not been done.
// Errors: those of OpenDevice(), CheckLinkDevice() and OpenNccl().
absl::Status OpenDevices(JoinOptions* options);

// Collective. Checks, opens devices, meets the others, compares with them what must be the same,
// finds servers and hosts, and creates the backend. Blocks for each of these for at most
// options.meet.timeout. Where a rank fails after it has reached the store, all others fail too, at
// once.
// Errors: those of CheckJoin() and OpenDevices(), before anybody is met; of Meet(), AgreeOnFlags(),
// ResolveByHosts() and CreateGradientSync(); DEADLINE_EXCEEDED for a server that did not register.
absl::StatusOr<std::unique_ptr<Member>> Join(JoinOptions options);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_JOIN_H_
