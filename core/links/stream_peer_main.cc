// The other process in tests of lost peers. Not part of the product.
//
//   stream_peer LINK listen            prints the address where it listens, and sends each frame back
//   stream_peer LINK connect ADDRESS   connects, sends some frames, prints "connected"
//
// Both run until they are killed.
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/links/grpc_stream.h"
#include "core/links/tcp_stream.h"

namespace gradsync {
namespace {

OutgoingFrame Copy(const proto::FrameHeader& header, const Payload& payload) {
  auto bytes = std::make_shared<std::string>();
  for (absl::Span<const char> part : payload.parts) bytes->append(part.data(), part.size());
  OutgoingFrame frame;
  frame.header = header;
  frame.payload = absl::MakeConstSpan(bytes->data(), bytes->size());
  frame.released = [bytes] {};
  return frame;
}

class Echo : public FrameSink {
 public:
  explicit Echo(std::shared_ptr<FrameStream> stream) : stream_(std::move(stream)) {}
  void OnFrame(const proto::FrameHeader& header, Payload payload) override {
    stream_->Send(Copy(header, payload));
  }
  void OnClosed(absl::Status) override { stream_.reset(); }

 private:
  std::shared_ptr<FrameStream> stream_;
};

class Deaf : public FrameSink {
 public:
  void OnFrame(const proto::FrameHeader&, Payload) override {}
  void OnClosed(absl::Status) override {}
};

int Listen(StreamLink& link) {
  auto listener = link.Listen("127.0.0.1:0", [](std::shared_ptr<FrameStream> stream) {
    return std::make_shared<Echo>(std::move(stream));
  });
  if (!listener.ok()) {
    std::cerr << listener.status() << std::endl;
    return 1;
  }
  std::cout << (*listener)->address() << std::endl;
  for (;;) pause();
}

int Connect(StreamLink& link, const std::string& address) {
  auto stream = link.Connect(address, 0, std::make_shared<Deaf>(), Deadline::In(absl::Seconds(30)));
  if (!stream.ok()) {
    std::cerr << stream.status() << std::endl;
    return 1;
  }
  const std::string bytes(100000, 'x');
  for (int i = 0; i < 100; ++i) {
    OutgoingFrame frame;
    frame.payload = absl::MakeConstSpan(bytes.data(), bytes.size());
    (*stream)->Send(std::move(frame));
  }
  std::cout << "connected" << std::endl;
  for (;;) pause();
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "", mode = argc > 2 ? argv[2] : "";
  const auto link = kind == "tcp" ? gradsync::NewTcpLink() : gradsync::NewGrpcLink();
  if (mode == "listen" && argc == 3) return gradsync::Listen(*link);
  if (mode == "connect" && argc == 4) return gradsync::Connect(*link, argv[3]);
  std::cerr << "usage: stream_peer grpc|tcp listen | stream_peer grpc|tcp connect ADDRESS"
            << std::endl;
  return 2;
}
