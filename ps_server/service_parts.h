// What service.cc and service_frames.cc share: who is connected, and the run once all are.

#ifndef GRADSYNC_PS_SERVER_SERVICE_PARTS_H_
#define GRADSYNC_PS_SERVER_SERVICE_PARTS_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "core/base/trace_recorder.h"
#include "core/plan/shard_map.h"
#include "ps_server/service.h"
#include "ps_server/shard.h"
#include "ps_server/step_progress.h"

namespace gradsync {

// One stream. Its fields belong to the stream's callbacks, which come one at a time; but `stream`
// is read by all.
class Service::Session : public FrameSink {
 public:
  Session(Service* service, std::shared_ptr<FrameStream> stream)
      : stream(std::move(stream)), service_(service) {}

  void OnFrame(const proto::FrameHeader& header, Payload payload) override {
    service_->OnFrame(*this, header, std::move(payload));
  }
  void OnPeerFinished() override { service_->OnPeerFinished(*this); }
  void OnClosed(absl::Status status) override { service_->OnClosed(*this, status); }

  const std::shared_ptr<FrameStream> stream;
  bool member = false;  // said a hello that was not turned away alone
  int rank = -1;        // until the run has admitted it
  int connection = 0;
  bool left = false;  // goodbye said, or turned away
  int ignored = 0;    // frames after that
  absl::optional<PushSequence> sequence;
  std::weak_ptr<Session> self;

 private:
  Service* const service_;
};

struct Service::Group {
  proto::Terms terms;
  std::string welcome;  // the payload of the answer to HELLO on connection 0
  std::unique_ptr<Shard> shard;
  std::shared_ptr<TraceRecorder> recorder;  // null: nothing is recorded
  ServerPushOrder order;
  std::vector<std::vector<std::shared_ptr<FrameStream>>> streams;  // by rank and connection
  std::vector<std::atomic<int>> on_their_way;                      // by rank: pushed, not credited
  std::vector<std::atomic<uint64_t>> folded;                       // by rank: chunks, ever
  uint32_t credit_batch = 1;
  bool keeps_parameters = false;  // alone: results are notices without payload
  int64_t shard_bytes = 0;
  std::atomic<size_t> results{0};              // sent to all; spreads them over connections
  std::vector<std::atomic<uint32_t>> answers;  // by rank, under ssp and asp: sent; likewise
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SERVICE_PARTS_H_
