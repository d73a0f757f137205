// One process of a measurement of bare gRPC streams (bare_stream.h): the same processes,
// connections and directions as ring/grpc or ps/grpc, and the same bytes, but nobody adds, copies
// or checks anything. Started by a benchmark through RunLocalJob(), not by people.
//
//   ring   rank r sends 2(n-1)/n of --bytes to rank r+1, over --connections streams that r opened
//   ps     (when --servers are given) each rank sends --bytes to the servers, an equal part to
//          each, and each server as much to each rank, over --connections streams per pair
//   server (when --listen is given) the other end of ps; ends when all streams have closed
//
// A step begins for all ranks at the start line and ends for a rank when it has received all bytes
// that are for it and gRPC has taken all that it sends.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/flag_error.h"
#include "base/flags.h"
#include "base/keep_memory.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/write_file.h"
#include "benchmarks/network/bare_stream.h"
#include "benchmarks/ranks/clocks.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/proto_json.h"
#include "proto/run_record.pb.h"

// Set by RunLocalJob().
ABSL_FLAG(std::vector<std::string>, servers, {}, "of ps, host:port,...");
ABSL_FLAG(std::string, listen, "", "be a server here, host:port");
ABSL_FLAG(std::string, topology, "", "ignored: it is ps when there are servers");

ABSL_FLAG(int, connections, 4, "per pair of peers, and per direction in the ring");
ABSL_FLAG(int64_t, bytes, 0, "of one exchange, as sync_bench_rank has it");
ABSL_FLAG(int64_t, message_bytes, 1 << 20, "of a message");
ABSL_FLAG(int, iterations, 1, "measured exchanges");
ABSL_FLAG(int, warmup, 0, "exchanges before them");

namespace gradsync {
namespace {

// Counts to a number that only grows. Thread-safe.
class Counter {
 public:
  void Add() {
    MutexLock lock(&mutex_);
    ++count_;
    changed_.SignalAll();
  }

  absl::Status WaitFor(int64_t count, absl::string_view what) {
    const Deadline deadline = Deadline::In(absl::GetFlag(FLAGS_timeout));
    MutexLock lock(&mutex_);
    while (count_ < count) {
      if (changed_.WaitWithDeadline(&mutex_, deadline) && count_ < count) {
        return absl::DeadlineExceededError(
            absl::StrCat(what, ": expected ", count, ", found ", count_, " in time"));
      }
    }
    return absl::OkStatus();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct Counters {
  Counter open, steps, closed;
  const BareStreamEvents events = {[this] { open.Add(); }, [this] { steps.Add(); },
                                   [this](const absl::Status&) { closed.Add(); }};
};

absl::Status CheckFlags() {
  const int connections = absl::GetFlag(FLAGS_connections);
  if (connections < 1) return FlagError("connections", "at least 1", absl::StrCat(connections));
  if (absl::GetFlag(FLAGS_message_bytes) < 1) return FlagError("message_bytes", "at least 1", "0");
  return absl::OkStatus();
}

absl::Status RunServer() {
  Counters counters;
  GS_ASSIGN_OR_RETURN(const auto server,
                      StartBareServer(absl::GetFlag(FLAGS_listen), counters.events));
  GS_RETURN_IF_ERROR(WriteFileAtomically(absl::GetFlag(FLAGS_port_file), server->address() + "\n"));
  const int64_t streams = absl::GetFlag(FLAGS_world_size) * absl::GetFlag(FLAGS_connections);
  GS_RETURN_IF_ERROR(counters.open.WaitFor(streams, "streams opened"));
  GS_RETURN_IF_ERROR(counters.closed.WaitFor(streams, "streams closed"));
  const std::string path = absl::GetFlag(FLAGS_metrics_json);
  return path.empty() ? absl::OkStatus() : WriteFileAtomically(path, "{}");
}

// A rank's streams.
class Rank {
 public:
  explicit Rank(const WorkerGroup& group)
      : group_(group),
        servers_(absl::GetFlag(FLAGS_servers)),
        connections_(absl::GetFlag(FLAGS_connections)) {}

  absl::Status Connect() {
    const bool is_ring = servers_.empty();
    std::vector<std::string> targets = servers_;
    if (is_ring) {
      GS_ASSIGN_OR_RETURN(server_,
                          StartBareServer(absl::StrCat(group_.address, ":0"), incoming_.events));
      GS_ASSIGN_OR_RETURN(
          const std::vector<std::string> addresses,
          group_.store->AllGather(group_.Key("addresses"), group_.rank, group_.world_size,
                                  server_->address(), Deadline::In(group_.timeout)));
      targets = {addresses[(group_.rank + 1) % group_.world_size]};
    }
    const int64_t bytes = absl::GetFlag(FLAGS_bytes);
    const int64_t sent = is_ring ? 2 * (group_.world_size - 1) * bytes / group_.world_size : bytes;
    const int64_t streams = static_cast<int64_t>(targets.size()) * connections_;
    if (sent < streams) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--bytes=", bytes, ": expected at least 1 for each of ", streams, " streams"));
    }
    source_.assign(sent, 'x');
    for (int64_t s = 0; s < streams; ++s) {
      const int64_t begin = s * sent / streams, end = (s + 1) * sent / streams;
      BareStreamBytes stream;
      stream.to_server = end - begin;
      stream.to_client = is_ring ? 0 : end - begin;
      stream.message = absl::GetFlag(FLAGS_message_bytes);
      clients_.push_back(OpenBareStream(
          targets[s / connections_], static_cast<int>(s % connections_), stream,
          {source_.data() + begin, static_cast<size_t>(end - begin)}, outgoing_.events));
    }
    GS_RETURN_IF_ERROR(outgoing_.open.WaitFor(streams, "streams opened"));
    if (is_ring) GS_RETURN_IF_ERROR(incoming_.open.WaitFor(streams, "streams from the peer"));
    return absl::OkStatus();
  }

  // `number` counts from 1.
  absl::Status Step(int64_t number) {
    const int64_t streams = static_cast<int64_t>(clients_.size());
    for (const auto& client : clients_) client->SendStep();
    if (!servers_.empty()) return outgoing_.steps.WaitFor(2 * streams * number, "steps ended");
    GS_RETURN_IF_ERROR(outgoing_.steps.WaitFor(streams * number, "steps sent"));
    return incoming_.steps.WaitFor(streams * number, "steps received");
  }

  absl::Status Finish() {
    const int64_t streams = static_cast<int64_t>(clients_.size());
    for (const auto& client : clients_) client->Finish();
    GS_RETURN_IF_ERROR(outgoing_.closed.WaitFor(streams, "streams closed"));
    if (servers_.empty()) return incoming_.closed.WaitFor(streams, "streams from the peer closed");
    return absl::OkStatus();
  }

  int64_t sent_per_step() const { return static_cast<int64_t>(source_.size()); }

 private:
  const WorkerGroup& group_;
  const std::vector<std::string> servers_;
  const int connections_;
  Counters incoming_, outgoing_;
  std::vector<char> source_;
  std::unique_ptr<BareServer> server_;
  std::vector<std::unique_ptr<BareClient>> clients_;
};

absl::Status RunRank() {
  const MeetOptions meet = MeetFromFlags("grpc_stream");
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<StartLine> line,
                      StartLine::Open(absl::GetFlag(FLAGS_start_line), meet.world_size));
  GS_ASSIGN_OR_RETURN(const Meeting meeting, Meet(meet));
  const WorkerGroup& group = meeting.group();
  Rank rank(group);
  GS_RETURN_IF_ERROR(rank.Connect());
  const auto start = [&] { return line->Wait(Deadline::In(group.timeout)); };

  proto::ExchangeMetrics metrics;
  const int warmup = absl::GetFlag(FLAGS_warmup);
  double cpu_seconds = 0;
  for (int step = 1; step <= warmup + absl::GetFlag(FLAGS_iterations); ++step) {
    GS_RETURN_IF_ERROR(start());
    const double cpu = CpuSeconds();
    const double begin = MonotonicMicroseconds();
    GS_RETURN_IF_ERROR(rank.Step(step));
    const double end = MonotonicMicroseconds();
    if (step <= warmup) continue;
    cpu_seconds += CpuSeconds() - cpu;
    metrics.add_begin_us(begin);
    metrics.add_end_us(end);
  }
  GS_RETURN_IF_ERROR(start());  // all have received what they wait for
  GS_RETURN_IF_ERROR(rank.Finish());
  metrics.set_rank(group.rank);
  metrics.set_bytes(static_cast<double>(absl::GetFlag(FLAGS_bytes)));
  metrics.set_bucket_bytes(metrics.bytes());
  metrics.set_chunk_bytes(static_cast<double>(absl::GetFlag(FLAGS_message_bytes)));
  metrics.set_buckets(1);
  metrics.set_connections(absl::GetFlag(FLAGS_connections));
  metrics.set_link("grpc");
  metrics.set_wire_tx_bytes_per_step(static_cast<double>(rank.sent_per_step()));
  metrics.set_wire_rx_bytes_per_step(static_cast<double>(rank.sent_per_step()));
  metrics.set_cpu_seconds(cpu_seconds);
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), metrics));
  return start();  // the store goes with rank 0
}

absl::Status Run() {
  GS_RETURN_IF_ERROR(CheckFlags());
  return absl::GetFlag(FLAGS_listen).empty() ? RunRank() : RunServer();
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();
  gradsync::ParseFlagsOrExit(argc, argv, {"grpc_stream_rank: started by a benchmark."});
  return gradsync::RankExitCode("grpc_stream", gradsync::Run());
}
