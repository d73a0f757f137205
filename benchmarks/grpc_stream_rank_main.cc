// One process of a measurement of bare gRPC streams (bare_stream.h): the same processes,
// connections and directions as ring/grpc or ps/grpc, and the same bytes, but nobody adds, copies
// or checks anything. Started by a benchmark through RunLocalJob(), not by people.
//
//   ring   rank r sends 2(n-1)/n of the bytes to rank r+1, over a stream per connection
//   ps     (when --servers are given) each rank sends the bytes to the servers, an equal part to
//          each, and each server as much to each rank, over a stream per connection of a pair
//   server (when --listen is given) the other end of ps; ends when all streams have closed
//
// A step begins for all ranks at the start line and ends for a rank when it has received all bytes
// that are for it and gRPC has taken all that it sends.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "benchmarks/network/bare_stream.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/program/flags.h"
#include "proto/run_record.pb.h"

ABSL_FLAG(std::string, listen, "", "set by RunLocalJob(): be a server here, host:port");

namespace gradsync {
namespace {

// Counts to a number that only grows. Thread-safe.
class Counter {
 public:
  explicit Counter(absl::Duration timeout) : timeout_(timeout) {}

  void Add() {
    MutexLock lock(&mutex_);
    ++count_;
    changed_.SignalAll();
  }

  absl::Status WaitFor(int64_t count, absl::string_view what) {
    const Deadline deadline = Deadline::In(timeout_);
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
  const absl::Duration timeout_;
  Mutex mutex_;
  CondVar changed_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct Counters {
  explicit Counters(absl::Duration timeout) : open(timeout), steps(timeout), closed(timeout) {}

  Counter open, steps, closed;
  const BareStreamEvents events = {[this] { open.Add(); }, [this] { steps.Add(); },
                                   [this](const absl::Status&) { closed.Add(); }};
};

absl::Status RunServer(const proto::RankSpec& spec) {
  Counters counters(absl::Seconds(spec.timeout_seconds()));
  GS_ASSIGN_OR_RETURN(const auto server,
                      StartBareServer(absl::GetFlag(FLAGS_listen), counters.events));
  GS_RETURN_IF_ERROR(WriteFileAtomically(absl::GetFlag(FLAGS_port_file), server->address() + "\n"));
  const int64_t streams =
      int64_t{absl::GetFlag(FLAGS_world_size)} * spec.grpc_streams().connections();
  GS_RETURN_IF_ERROR(counters.open.WaitFor(streams, "streams opened"));
  GS_RETURN_IF_ERROR(counters.closed.WaitFor(streams, "streams closed"));
  const std::string path = absl::GetFlag(FLAGS_metrics_json);
  return path.empty() ? absl::OkStatus() : WriteFileAtomically(path, "{}");
}

// A rank's streams.
class Rank {
 public:
  Rank(const WorkerGroup& group, const proto::RankSpec::GrpcStreams& told)
      : group_(group),
        told_(told),
        servers_(absl::GetFlag(FLAGS_servers)),
        incoming_(group.timeout),
        outgoing_(group.timeout) {}

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
    const int64_t bytes = told_.bytes();
    const int connections = told_.connections();
    const int64_t sent = is_ring ? 2 * (group_.world_size - 1) * bytes / group_.world_size : bytes;
    const int64_t streams = static_cast<int64_t>(targets.size()) * connections;
    if (sent < streams) {
      return absl::InvalidArgumentError(
          absl::StrCat(bytes, " bytes: expected at least 1 for each of ", streams, " streams"));
    }
    source_.assign(sent, 'x');
    for (int64_t s = 0; s < streams; ++s) {
      const int64_t begin = s * sent / streams, end = (s + 1) * sent / streams;
      BareStreamBytes stream;
      stream.to_server = end - begin;
      stream.to_client = is_ring ? 0 : end - begin;
      stream.message = told_.message_bytes();
      clients_.push_back(OpenBareStream(
          targets[s / connections], static_cast<int>(s % connections), stream,
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
  const proto::RankSpec::GrpcStreams& told_;
  const std::vector<std::string> servers_;
  Counters incoming_, outgoing_;
  std::vector<char> source_;
  std::unique_ptr<BareServer> server_;
  std::vector<std::unique_ptr<BareClient>> clients_;
};

absl::Status RunRank(const proto::RankSpec& spec) {
  const proto::RankSpec::GrpcStreams& told = spec.grpc_streams();
  GS_ASSIGN_OR_RETURN(const std::function<absl::Status()> start, OpenStartLine(spec));
  GS_ASSIGN_OR_RETURN(const Meeting meeting, Meet(MeetFromFlags("grpc_stream", spec)));
  const WorkerGroup& group = meeting.group();
  Rank rank(group, told);
  GS_RETURN_IF_ERROR(rank.Connect());

  proto::ExchangeMetrics metrics;
  double cpu_seconds = 0;
  GS_RETURN_IF_ERROR(start());
  SpreadOverCores();
  for (int step = 1; step <= told.warmup() + told.iterations(); ++step) {
    // Twice, as in exchange_runner.cc: who was early at the first has slept, and would be late.
    GS_RETURN_IF_ERROR(start());
    GS_RETURN_IF_ERROR(start());
    const double cpu = CpuSeconds();
    const double begin = MonotonicMicroseconds();
    GS_RETURN_IF_ERROR(rank.Step(step));
    const double end = MonotonicMicroseconds();
    if (step <= told.warmup()) continue;
    cpu_seconds += CpuSeconds() - cpu;
    metrics.add_begin_us(begin);
    metrics.add_end_us(end);
  }
  GS_RETURN_IF_ERROR(start());  // all have received what they wait for
  GS_RETURN_IF_ERROR(rank.Finish());
  metrics.set_rank(group.rank);
  metrics.set_bytes(static_cast<double>(told.bytes()));
  metrics.set_bucket_bytes(metrics.bytes());
  metrics.set_chunk_bytes(static_cast<double>(told.message_bytes()));
  metrics.set_buckets(1);
  metrics.set_connections(told.connections());
  metrics.set_link("grpc");
  metrics.set_wire_tx_bytes_per_step(static_cast<double>(rank.sent_per_step()));
  metrics.set_wire_rx_bytes_per_step(static_cast<double>(rank.sent_per_step()));
  metrics.set_cpu_seconds(cpu_seconds);
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), metrics));
  return start();  // the store goes with rank 0
}

absl::Status Run() {
  GS_ASSIGN_OR_RETURN(const proto::RankSpec spec, SpecFromFlags(proto::RankSpec::kGrpcStreams));
  const proto::RankSpec::GrpcStreams& told = spec.grpc_streams();
  if (told.connections() < 1 || told.message_bytes() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected at least 1 connection and 1 byte in a message, found ",
                     told.connections(), " and ", told.message_bytes()));
  }
  return absl::GetFlag(FLAGS_listen).empty() ? RunRank(spec) : RunServer(spec);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();
  gradsync::ParseFlagsOrExit(argc, argv, {"grpc_stream_rank: started by a benchmark."});
  return gradsync::RankExitCode("grpc_stream", gradsync::Run());
}
