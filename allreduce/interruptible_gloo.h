// Gloo, from whose waits another thread can call back. It waits for peers for as long as its timeout
// says, five times that while it connects, and closing its connections ends none of these waits. So
// what it waits on is wrapped, by its public interfaces alone.

#ifndef GRADSYNC_ALLREDUCE_INTERRUPTIBLE_GLOO_H_
#define GRADSYNC_ALLREDUCE_INTERRUPTIBLE_GLOO_H_

#ifdef USE_C10D_GLOO

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"

namespace gradsync {

class InterruptibleContext;

// Gloo's own device, which remembers its context: the process group shows it to nobody, least of all
// while it connects. Thread-safe.
class InterruptibleDevice : public gloo::transport::Device {
 public:
  explicit InterruptibleDevice(std::shared_ptr<gloo::transport::Device> device)
      : device_(std::move(device)) {}

  std::string str() const override { return device_->str(); }
  const std::string& getPCIBusID() const override { return device_->getPCIBusID(); }
  int getInterfaceSpeed() const override { return device_->getInterfaceSpeed(); }
  bool hasGPUDirect() const override { return device_->hasGPUDirect(); }
  std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override;

  // To be called when all pairs are made, and before they wait for their peers. Throws after
  // Interrupt().
  void BeginToConnect();

  // Ends what waits for peers, now and later, by an exception there, and the connections. Takes some
  // milliseconds for each, of which Gloo's thread has to let go. May throw.
  void Interrupt();

 private:
  std::shared_ptr<InterruptibleContext> Context();

  const std::shared_ptr<gloo::transport::Device> device_;
  Mutex mutex_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  std::weak_ptr<InterruptibleContext> context_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradsync

#endif  // USE_C10D_GLOO

#endif  // GRADSYNC_ALLREDUCE_INTERRUPTIBLE_GLOO_H_
