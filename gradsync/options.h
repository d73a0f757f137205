// How a process joins a job, and what exchanges gradients there.

#ifndef GRADSYNC_GRADSYNC_OPTIONS_H_
#define GRADSYNC_GRADSYNC_OPTIONS_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "gradsync/status.h"

namespace gradsync {

// The defaults are those of a rank that torchrun, Slurm, MPI or tools/launch has started, and that
// averages gradients by ring-allreduce. Names, values and rules are those of the flags of
// //worker, which docs/use/running.md explains.
struct Options {
  // Who this process is. -1 and "": as the launcher's environment says; without a launcher, the one
  // process of a job. Where all three are given, no environment is read for them.
  int rank = -1;
  int world_size = -1;
  std::string master;  // host:port of rank 0, which listens there

  // Called on rank 0 once it listens, before it waits for anybody, with the host:port at which it does:
  // where master has port 0, any free one, that is what the other ranks are to have as their master.
  // An error ends Join(). Not called where no master is given. May be empty.
  std::function<Status(const std::string& address)> on_listening;

  std::string run_id;     // the same for all processes of a job; "": the launcher's
  std::string interface;  // of this host's network; "": that of the route to master

  std::string topology = "ring";  // ring, ps (parameter servers), or local: no exchange at all
  std::string update = "worker";  // or owner, where DdpOptions::optimizer updates: servers or ranks
  std::string link = "auto";      // auto, grpc, tcp, shm; with LibTorch also gloo, nccl, cuda_ipc
  std::string compression = "none";  // on the wire: none, fp16, bf16; topk:R with ps

  // With ps: addresses, host:port; or how many register with rank 0 (tools/launch --servers). Without
  // either, the first `owners` workers are the servers, 0: all of them.
  std::vector<std::string> servers;
  int num_servers = 0;
  int owners = 0;
  int connections = 0;  // of grpc or tcp, per pair of peers; 0: the default

  std::string device = "cpu";  // with LibTorch built for CUDA: cuda, cuda:N, auto

  // Longest wait for another process, and how long one may give no sign of life before the job ends
  // and names it; less where `timeout` is short.
  std::chrono::milliseconds timeout{60000};
  std::chrono::milliseconds failure_timeout{10000};

  // Who may take part: those who have the same secret. "": that of the launcher's GRADSYNC_JOB_KEY,
  // if it is set. Without either, and without `insecure`, a process listens for its own host alone.
  std::string secret;
  bool insecure = false;

  // Sets the member called `name`, but for on_listening, from text: "topology" "ps"; "servers" "a:1,b:1"; "timeout" "30s";
  // "insecure" "true". Errors: kInvalidArgument naming the option, what was expected and what came.
  Status Set(const std::string& name, const std::string& value);

  // The defaults, but for what `count` words say, such as a program's arguments: each is NAME=VALUE, as
  // for Set(). None where `count` is below 1. Errors: those of Set(); kInvalidArgument for a word
  // without a "=".
  static Result<Options> Parse(int count, const char* const* words);
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_OPTIONS_H_
