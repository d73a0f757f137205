#include "allreduce/interruptible_gloo.h"

#ifdef USE_C10D_GLOO

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "c10/util/Exception.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/unbound_buffer.h"

namespace gradsync {

// Gloo's own buffer, whose waits end with an exception once the context has been interrupted.
class InterruptibleBuffer : public gloo::transport::UnboundBuffer {
 public:
  InterruptibleBuffer(std::shared_ptr<InterruptibleContext> context, void* ptr, size_t size);
  ~InterruptibleBuffer() override;

  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override;
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override;
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }
  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->send(to, slot, offset, bytes);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  const std::shared_ptr<InterruptibleContext> context_;
  const std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

// Gloo's own context, which knows the buffers that may be waited for. Closing its connections alone
// tells the peers, but ends no wait here.
class InterruptibleContext : public gloo::transport::Context,
                             public std::enable_shared_from_this<InterruptibleContext> {
 public:
  explicit InterruptibleContext(std::shared_ptr<gloo::transport::Context> context)
      : Context(context->rank, context->size), context_(std::move(context)) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int rank) override {
    return context_->getPair(rank);
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override {
    context_->setTimeout(getTimeout());  // nobody else hears of it
    return context_->createPair(rank);
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* ptr,
                                                                      size_t size) override {
    return std::make_unique<InterruptibleBuffer>(shared_from_this(), ptr, size);
  }

  // Throw after Interrupt(), both.
  void BeginToConnect() {
    MutexLock lock(&mutex_);
    CheckGoesOn();
    connecting_ = true;
  }
  void CheckInterrupted() {
    MutexLock lock(&mutex_);
    CheckGoesOn();
  }

  // Thread-safe.
  void Interrupt() {
    {
      MutexLock lock(&mutex_);
      interrupted_ = true;
      for (InterruptibleBuffer* buffer : buffers_) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
      }
      if (!connecting_) return;  // pairs may be being made
    }
    for (int rank = 0; rank < size; ++rank) {
      const auto& pair = context_->getPair(rank);
      if (pair != nullptr) pair->close();
    }
  }

  std::unique_ptr<gloo::transport::UnboundBuffer> NewBuffer(void* ptr, size_t size) {
    return context_->createUnboundBuffer(ptr, size);
  }
  void Add(InterruptibleBuffer* buffer) {
    MutexLock lock(&mutex_);
    CheckGoesOn();
    buffers_.insert(buffer);
  }
  void Remove(InterruptibleBuffer* buffer) {
    MutexLock lock(&mutex_);
    buffers_.erase(buffer);
  }

 private:
  void CheckGoesOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    TORCH_CHECK(!interrupted_, "interrupted, since the group has failed");
  }

  const std::shared_ptr<gloo::transport::Context> context_;
  Mutex mutex_;
  bool connecting_ ABSL_GUARDED_BY(mutex_) = false;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<InterruptibleBuffer*> buffers_ ABSL_GUARDED_BY(mutex_);
};

InterruptibleBuffer::InterruptibleBuffer(std::shared_ptr<InterruptibleContext> context, void* ptr,
                                         size_t size)
    : UnboundBuffer(ptr, size),
      context_(std::move(context)),
      buffer_(context_->NewBuffer(ptr, size)) {
  context_->Add(this);
}

InterruptibleBuffer::~InterruptibleBuffer() { context_->Remove(this); }

// A wait that was aborted just returns, and Gloo goes on as if it had the data.
bool InterruptibleBuffer::waitRecv(int* rank, std::chrono::milliseconds timeout) {
  const bool done = buffer_->waitRecv(rank, timeout);
  context_->CheckInterrupted();
  return done;
}

bool InterruptibleBuffer::waitSend(int* rank, std::chrono::milliseconds timeout) {
  const bool done = buffer_->waitSend(rank, timeout);
  context_->CheckInterrupted();
  return done;
}

std::shared_ptr<gloo::transport::Context> InterruptibleDevice::createContext(int rank, int size) {
  auto context = std::make_shared<InterruptibleContext>(device_->createContext(rank, size));
  MutexLock lock(&mutex_);
  context_ = context;
  if (interrupted_) context->Interrupt();
  return context;
}

void InterruptibleDevice::BeginToConnect() {
  if (const auto context = Context()) context->BeginToConnect();
}

void InterruptibleDevice::Interrupt() {
  {
    MutexLock lock(&mutex_);
    interrupted_ = true;
  }
  if (const auto context = Context()) context->Interrupt();
}

std::shared_ptr<InterruptibleContext> InterruptibleDevice::Context() {
  MutexLock lock(&mutex_);
  return context_.lock();
}

}  // namespace gradsync

#endif  // USE_C10D_GLOO
