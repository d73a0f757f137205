#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/group/store_map.h"
#include "core/links/frame_stream.h"
#include "core/plan/plan.h"
#include "core/plan/plan_proto.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/raw_worker.h"
#include "ps_server/service.h"
#include "tests/fuzz/targets.h"

namespace gradsync {
namespace {

void Promise(bool kept) {
  if (!kept) std::abort();
}

// Calls to the store, each of one byte and what it needs. Every callback runs once, no more; an
// exchange gives its parts to all ranks or to none; after a failure nobody waits for its keys.
class StoreRun {
 public:
  void Step(FuzzInput& input) {
    const int what = input.Below(8);
    const std::string key = Key(input);
    switch (what) {
      case 0:
        if (map_.Set(key, "value").ok()) Promise(true);
        return;
      case 1: {
        const absl::StatusOr<StoreMap::Value> first = map_.SetIfAbsent(key, "first");
        Promise(!first.ok() || *first != nullptr);
        return;
      }
      case 2: {
        const size_t number = NewWait();
        tickets_.push_back(map_.Get(key, [this, number](absl::StatusOr<StoreMap::Value> value) {
          End(number);
          Promise(!value.ok() || *value != nullptr);
        }));
        return;
      }
      case 3: {
        const int world = static_cast<int>(input.Integer(4));
        const int rank = static_cast<int8_t>(input.Byte());
        Gather(key, rank, input.Below(2) == 0 ? world : 3);
        return;
      }
      case 4:
        Gather(key, input.Below(4), 3);
        return;
      case 5:
        map_.Fail(key.substr(0, input.Below(4)), "reason").status().IgnoreError();
        return;
      case 6:
        if (tickets_.empty()) return;
        map_.Expire(tickets_[input.Below(256) % tickets_.size()]);
        return;
      default:
        if (tickets_.empty()) return;
        map_.Cancel(tickets_[input.Below(256) % tickets_.size()]);
        return;
    }
  }

  void Finish() {
    map_.Close(absl::UnavailableError("closed"));
    for (const auto& [number, ended] : ended_) Promise(ended);
  }

 private:
  static std::string Key(FuzzInput& input) {
    static const char* const kKeys[] = {"a", "a/b", "a/bc", "b", ""};
    const int which = input.Below(6);
    return which < 5 ? kKeys[which] : input.Text();
  }

  size_t NewWait() {
    ended_[++waits_] = false;
    return waits_;
  }
  void End(size_t number) {
    Promise(!ended_[number]);
    ended_[number] = true;
  }

  void Gather(const std::string& key, int rank, int world) {
    const size_t number = NewWait();
    tickets_.push_back(map_.AllGather(key, rank, world, absl::StrCat(rank),
                                      [this, number, rank](absl::StatusOr<StoreMap::Values> parts) {
                                        End(number);
                                        if (!parts.ok()) return;
                                        Promise((**parts)[rank] == absl::StrCat(rank));
                                      }));
  }

  StoreMap map_;
  std::vector<StoreMap::Ticket> tickets_;
  size_t waits_ = 0;
  std::map<size_t, bool> ended_;
};

void RunStore(const uint8_t* bytes, size_t size) {
  FuzzInput input(bytes, size);
  StoreRun run;
  while (!input.empty()) run.Step(input);
  run.Finish();
}

std::vector<std::string> StoreSeeds() {
  return {std::string("\2\0\0\0\2\1\5\1\1", 9), std::string("\4\1\0\4\1\1\4\1\2", 9),
          std::string("\4\0\0\4\0\0\6\0\0\7\0\1", 12), std::string("\3\2\xff\xff\xff\x7f\1\0", 8)};
}

// A stream whose other end is the fuzzer.
class FuzzStream : public FrameStream {
 public:
  explicit FuzzStream(StreamProof proof) : proof_(std::move(proof)) {}
  void Send(OutgoingFrame frame) override { frame.released.Run(); }
  void Finish() override {}
  void Cancel(absl::Status) override { cancelled_ = true; }
  StreamProof proof() const override { return proof_; }
  bool cancelled() const { return cancelled_; }

 private:
  const StreamProof proof_;
  bool cancelled_ = false;
};

Plan FuzzPlan() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  return *Plan::FromBuckets({{"a", {200}, {1}, 0}}, {{0}}, optimizer, 2, /*chunk_bytes=*/64);
}

// Streams that open, say anything in any order, and end, to a server of two workers.
class ServiceRun {
 public:
  ServiceRun() : service_("fuzz", 0, absl::Seconds(30), {}, Limits()) {}

  ~ServiceRun() {
    service_.Fail(absl::UnavailableError("the end"));
    for (Opened& opened : streams_) {
      if (opened.sink != nullptr) opened.sink->OnClosed(absl::UnavailableError("the end"));
    }
  }

  void Step(FuzzInput& input) {
    const int what = input.Below(8);
    if (what == 0) return Open(input);
    if (streams_.empty()) return;
    Opened& opened = streams_[input.Byte() % streams_.size()];
    if (opened.sink == nullptr) return;
    if (what == 1) return Hello(input, opened);
    if (what == 2) {
      if (!std::exchange(opened.finished, true)) opened.sink->OnPeerFinished();
      return;
    }
    if (what == 3) {
      std::exchange(opened.sink, nullptr)
          ->OnClosed(input.Below(2) == 0 ? absl::OkStatus() : absl::UnavailableError("lost"));
      return;
    }
    if (opened.finished) return;
    if (what == 4 || what == 5) return Push(input, opened);
    Frame(input, opened);
  }

 private:
  struct Opened {
    std::shared_ptr<FuzzStream> stream;
    std::shared_ptr<FrameSink> sink;
    bool finished = false;
    int slot = 0;
  };

  static ServiceLimits Limits() {
    ServiceLimits limits;
    limits.max_memory = 16 << 20;
    limits.max_message = 1 << 20;
    return limits;
  }

  void Open(FuzzInput& input) {
    StreamProof proof;
    const int what = input.Below(4);
    if (what == 1) proof.run = "fuzz";
    if (what == 2) proof.run = "other";
    if (what == 3) proof.key = input.Text();
    Opened opened;
    opened.stream = std::make_shared<FuzzStream>(std::move(proof));
    opened.sink = service_.Accept(opened.stream);
    Promise(opened.sink != nullptr || opened.stream->cancelled());
    streams_.push_back(std::move(opened));
  }

  static void Deliver(Opened& opened, const proto::FrameHeader& header, const std::string& bytes) {
    auto owner = std::make_shared<const std::string>(bytes);
    const size_t half = owner->size() / 2;
    const absl::Span<const char> all(owner->data(), owner->size());
    opened.sink->OnFrame(header, MakePayload({all.first(half), all.subspan(half)}, owner));
  }

  // A hello that would do, but for what is drawn.
  void Hello(FuzzInput& input, Opened& opened) {
    proto::FrameHeader header;
    header.set_kind(proto::FrameHeader::HELLO);
    const int changes = input.Below(4);
    if (changes == 3) return Deliver(opened, header, input.Text());
    proto::Hello hello = RawStream::HelloFor(plan_, input.Below(2));
    hello.set_run_id("fuzz");
    for (int change = 0; change < changes; ++change) Change(input, &hello);
    Deliver(opened, header, hello.SerializeAsString());
  }

  static void Change(FuzzInput& input, proto::Hello* hello) {
    proto::Terms& terms = *hello->mutable_terms();
    const int what = input.Below(14);
    const auto number = static_cast<int32_t>(input.Integer(4));
    switch (what) {
      case 0:
        return hello->set_rank(number);
      case 1:
        return terms.set_world_size(number);
      case 2:
        return terms.set_connections(number);
      case 3:
        return terms.set_credit(number);
      case 4:
        return terms.set_server_index(number);
      case 5:
        return terms.add_weights(number);
      case 6:
        return terms.set_consistency(input.Below(2) == 0 ? "ssp:1" : input.Text());
      case 7:
        return terms.set_update_site(static_cast<proto::UpdateSite>(number % 4));
      case 8:
        return terms.set_fingerprint(input.Text());
      case 9:
        return hello->set_connection(number);
      case 10:
        return hello->set_attempt(number);
      case 11:
        return hello->clear_plan();
      case 12:
        if (!hello->mutable_plan()->ParseFromString(input.Text())) hello->clear_plan();
        return;
      default:
        return terms.set_trace_last_step(number);
    }
  }

  // In order, mostly.
  void Push(FuzzInput& input, Opened& opened) {
    proto::FrameHeader header;
    header.set_kind(proto::FrameHeader::PUSH);
    const int what = input.Below(8);
    header.set_step(1 + input.Below(3));
    header.set_slot(what == 0 ? input.Byte() : opened.slot++ % 14);
    header.set_bucket(what == 1 ? input.Byte() : 0);
    header.set_lr(what == 2 ? input.Byte() : 0.1);
    header.set_inverse_loss_scale(what == 3 ? 0 : 1);
    Deliver(opened, header, std::string(what == 4 ? input.Byte() : 64, '\0'));
  }

  void Frame(FuzzInput& input, Opened& opened) {
    proto::FrameHeader header;
    if (!header.ParseFromString(input.Text())) return;
    Deliver(opened, header, input.Text());
  }

  const Plan plan_ = FuzzPlan();
  Service service_;
  std::vector<Opened> streams_;
};

void RunService(const uint8_t* bytes, size_t size) {
  FuzzInput input(bytes, size);
  ServiceRun run;
  while (!input.empty()) run.Step(input);
}

// Two workers that come, push, and leave.
std::vector<std::string> ServiceSeeds() {
  std::string two = {0, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1};
  std::string pushes = two;
  for (int i = 0; i < 6; ++i) pushes += std::string("\4\0\7\0\4\1\7\0", 8);
  proto::FrameHeader goodbye;
  goodbye.set_kind(proto::FrameHeader::GOODBYE);
  const std::string bytes = goodbye.SerializeAsString();
  std::string leave = two;
  for (const char stream : {'\0', '\1'}) {
    leave += std::string{6, stream, static_cast<char>(bytes.size())} + bytes + std::string(1, '\0');
  }
  return {two, pushes, leave, two + std::string("\3\0\1", 3)};
}

}  // namespace

std::vector<FuzzTarget> MachineTargets() {
  return {{"store", RunStore, StoreSeeds}, {"service", RunService, ServiceSeeds}};
}

}  // namespace gradsync
