#include "benchmarks/network/bare_stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/grpc_conversions.h"
#include "core/base/host_port.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/links/grpc_channel_arguments.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/byte_buffer.h"

namespace gradsync {
namespace {

constexpr char kMethod[] = "/gradsync.bench.Bare/Exchange";
constexpr GrpcKeepalive kKeepalive{absl::Seconds(20), absl::Seconds(20)};

grpc::ByteBuffer HelloMessage(const BareStreamBytes& bytes) {
  const grpc::Slice slice(&bytes, sizeof(bytes));  // copies
  return grpc::ByteBuffer(&slice, 1);
}

bool ParseHello(const grpc::ByteBuffer& message, BareStreamBytes* bytes) {
  grpc::Slice slice;
  if (!message.DumpToSingleSlice(&slice).ok() || slice.size() != sizeof(*bytes)) return false;
  std::memcpy(bytes, slice.begin(), sizeof(*bytes));
  return bytes->message > 0 && bytes->to_server >= 0 && bytes->to_client >= 0;
}

// Cuts the bytes of a step into messages. At its end at first, and after each step.
class Outgoing {
 public:
  void Reset(const char* source, int64_t bytes, int64_t message_bytes) {
    source_ = source;
    sent_ = bytes_ = bytes;
    message_bytes_ = message_bytes;
  }
  void Rewind() { sent_ = 0; }
  bool done() const { return sent_ == bytes_; }

  grpc::ByteBuffer* Next() {
    const int64_t bytes = std::min(message_bytes_, bytes_ - sent_);
    const grpc::Slice slice(const_cast<char*>(source_) + sent_, static_cast<size_t>(bytes),
                            grpc::Slice::STATIC_SLICE);
    buffer_ = grpc::ByteBuffer(&slice, 1);
    sent_ += bytes;
    return &buffer_;
  }

 private:
  const char* source_ = nullptr;
  int64_t bytes_ = 0;
  int64_t message_bytes_ = 0;
  int64_t sent_ = 0;
  grpc::ByteBuffer buffer_;
};

class Client : public BareClient,
               public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Client(std::shared_ptr<grpc::Channel> channel, const BareStreamBytes& bytes,
         absl::Span<const char> source, const BareStreamEvents& events)
      : bytes_(bytes), events_(events), hello_(HelloMessage(bytes)), stub_(std::move(channel)) {
    outgoing_.Reset(source.data(), bytes.to_server, bytes.message);
    context_.set_wait_for_ready(true);
    stub_.PrepareBidiStreamingCall(&context_, kMethod, grpc::StubOptions(), this);
    AddHold();
    StartRead(&incoming_);
    StartWrite(&hello_);
    StartCall();
  }

  void SendStep() override {
    outgoing_.Rewind();
    StartWrite(outgoing_.Next());
  }

  void Finish() override {
    StartWritesDone();
    RemoveHold();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (!hello_read_) {
      hello_read_ = true;
      HalfOpen();
    } else {
      received_ += static_cast<int64_t>(incoming_.Length());
    }
    incoming_.Clear();
    const bool step = bytes_.to_client > 0 && received_ == bytes_.to_client;
    if (step) received_ = 0;
    StartRead(&incoming_);
    if (step) events_.on_step();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return;
    if (!std::exchange(hello_written_, true)) return HalfOpen();
    if (outgoing_.done()) return events_.on_step();
    StartWrite(outgoing_.Next());
  }

  void OnDone(const grpc::Status& status) override { events_.on_closed(ToAbslStatus(status)); }

 private:
  // The answer may be heard before the write that it answers is done.
  void HalfOpen() {
    if (++halves_ == 2) events_.on_open();
  }

  const BareStreamBytes bytes_;
  const BareStreamEvents& events_;
  grpc::ByteBuffer hello_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::atomic<int> halves_{0};
  bool hello_read_ = false;
  bool hello_written_ = false;
  grpc::ByteBuffer incoming_;
  int64_t received_ = 0;
  Outgoing outgoing_;
};

// What all streams of a server send from.
class Source {
 public:
  const char* AtLeast(int64_t bytes) {
    MutexLock lock(&mutex_);
    for (const std::vector<char>& block : blocks_) {
      if (static_cast<int64_t>(block.size()) >= bytes) return block.data();
    }
    return blocks_.emplace_back(bytes, 'x').data();
  }

 private:
  Mutex mutex_;
  std::vector<std::vector<char>> blocks_ ABSL_GUARDED_BY(mutex_);
};

class ServerEnd : public grpc::ServerGenericBidiReactor {
 public:
  ServerEnd(const BareStreamEvents& events, Source* source) : events_(events), source_(*source) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (bytes_.message == 0) return OnHello();
    if (received_ == 0 && bytes_.to_client > 0) StepDue();
    received_ += static_cast<int64_t>(incoming_.Length());
    incoming_.Clear();
    const bool step = received_ == bytes_.to_server;
    if (step) received_ = 0;
    StartRead(&incoming_);
    if (step) events_.on_step();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return;
    const bool was_hello = !std::exchange(hello_written_, true);
    bool more = !outgoing_.done();
    const bool ended = !was_hello && !more;
    if (!more) {
      MutexLock lock(&mutex_);
      more = writing_ = std::exchange(due_, false);
      if (more) outgoing_.Rewind();
    }
    if (more) StartWrite(outgoing_.Next());
    if (was_hello) events_.on_open();
    if (ended) events_.on_step();
  }

  void OnDone() override {
    events_.on_closed(absl::OkStatus());
    delete this;
  }

 private:
  void OnHello() {
    if (!ParseHello(incoming_, &bytes_)) {
      return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not a hello"));
    }
    outgoing_.Reset(source_.AtLeast(bytes_.to_client), bytes_.to_client, bytes_.message);
    hello_ = incoming_;
    StartWrite(&hello_);
    StartRead(&incoming_);
  }

  // The client may hear the end of one step, and begin the next, before this end hears that its
  // last write is done.
  void StepDue() {
    {
      MutexLock lock(&mutex_);
      if (writing_) {
        due_ = true;
        return;
      }
      writing_ = true;
      outgoing_.Rewind();
    }
    StartWrite(outgoing_.Next());
  }

  const BareStreamEvents& events_;
  Source& source_;
  BareStreamBytes bytes_;
  bool hello_written_ = false;
  grpc::ByteBuffer hello_, incoming_;
  int64_t received_ = 0;
  Outgoing outgoing_;  // of whoever writes
  Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;  // the hello first
  bool due_ ABSL_GUARDED_BY(mutex_) = false;
};

class Server : public BareServer, public grpc::CallbackGenericService {
 public:
  explicit Server(const BareStreamEvents& events) : events_(events) {}

  ~Server() override {
    if (server_ == nullptr) return;
    server_->Shutdown();
    server_->Wait();
  }

  absl::Status Start(const std::string& address) {
    GS_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(address));
    grpc::ServerBuilder builder;
    AddGrpcServerArguments({kKeepalive}, &builder);
    int port = 0;
    builder.AddListeningPort(address, InsecureCredentials().server, &port);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port <= 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen at ", address));
    }
    address_ = FormatHostPort(where.host, port);
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new ServerEnd(events_, &source_);
  }

 private:
  const BareStreamEvents& events_;
  Source source_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace

std::unique_ptr<BareClient> OpenBareStream(const std::string& address, int connection,
                                           const BareStreamBytes& bytes,
                                           absl::Span<const char> source,
                                           const BareStreamEvents& events) {
  return std::make_unique<Client>(
      grpc::CreateCustomChannel(address, InsecureCredentials().channel,
                                GrpcChannelArguments({kKeepalive}, connection)),
      bytes, source, events);
}

absl::StatusOr<std::unique_ptr<BareServer>> StartBareServer(const std::string& address,
                                                            const BareStreamEvents& events) {
  auto server = std::make_unique<Server>(events);
  GS_RETURN_IF_ERROR(server->Start(address));
  return server;
}

}  // namespace gradsync
