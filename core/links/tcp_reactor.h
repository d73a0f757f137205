// Waits for many sockets (epoll(7)) and calls those that are ready, on a thread of its own or on one that
// drives it (core/links/link_driver.h).
//
// Private to core/links/tcp_stream.

#ifndef GRADSYNC_CORE_LINKS_TCP_REACTOR_H_
#define GRADSYNC_CORE_LINKS_TCP_REACTOR_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/links/link_driver.h"

namespace gradsync {

// Thread-safe. Ends when the last owner goes, which may be a handler.
class TcpReactor : public Drivable {
 public:
  // How often it calls Tick().
  static constexpr absl::Duration kTick = absl::Milliseconds(100);

  // One socket's. All calls of a reactor's handlers come one at a time, on its thread or on one that
  // drives it; none may wait.
  class Handler {
   public:
    virtual ~Handler() = default;

    // Something may have become possible since the last call: to read (there are bytes, the peer's
    // end or an error), to write. `ends`: behind what there is to read comes the peer's end or an
    // error, which nothing tells once more. Called once when it is added. Returns whether there is more
    // to read that it left for the sake of others: then it is called again soon.
    virtual bool OnReady(bool readable, bool writable, bool ends) = 0;
    // Asked for by Attend().
    virtual void OnAttention() = 0;
    // Every kTick or so. `late`: for how long the whole process seems to have been stopped before.
    virtual void OnTick(MonotonicTime now, absl::Duration late) = 0;

   private:
    friend class TcpReactor;
    std::atomic<bool> awaits_attention_{false};
  };

  TcpReactor();
  ~TcpReactor() override;
  TcpReactor(const TcpReactor&) = delete;
  TcpReactor& operator=(const TcpReactor&) = delete;

  // Watches `descriptor`, whose Handler it keeps until Remove().
  void Add(int descriptor, std::shared_ptr<Handler> handler) {
    state_->Add(descriptor, std::move(handler));
  }

  // From a handler: no more calls. The descriptor is the caller's to close.
  void Remove(int descriptor) { state_->Remove(descriptor); }

  // Calls OnAttention() soon, once for all that have asked meanwhile; perhaps after Remove(), too.
  void Attend(const std::shared_ptr<Handler>& handler) { state_->Attend(handler); }

  // Whether this thread is calling a handler.
  bool IsCurrent() const { return state_->IsCurrent(); }

  // Poll() calls the handlers of what is ready. Unless the driving thread goes idle, the reactor's thread
  // waits some hundred microseconds for it to come back.
  bool BeginDriving() override { return state_->BeginDriving(); }
  void EndDriving(bool idle) override { state_->EndDriving(idle); }
  bool Poll() override { return state_->Poll(); }

 private:
  // What the thread uses, which may outlive the object by a moment.
  class State {
   public:
    State();
    ~State();
    void Add(int descriptor, std::shared_ptr<Handler> handler);
    void Remove(int descriptor);
    void Attend(const std::shared_ptr<Handler>& handler);
    void Stop();
    void Run();
    bool IsCurrent() const { return current_ == std::this_thread::get_id(); }
    bool BeginDriving();
    void EndDriving(bool idle);
    bool Poll();

   private:
    struct Watched {
      std::shared_ptr<Handler> handler;
      bool more_to_read = false;
    };

    void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    void Park(uint64_t* drives_seen);
    bool BeginSleep(int* timeout);
    bool Handle(const epoll_event* events, int count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
    bool TakeMail() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
    void Call(int descriptor, bool readable, bool writable, bool ends)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
    void CallThoseWithMore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
    void Tick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
    int Timeout() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);

    const int epoll_;
    const int wakeup_;  // an eventfd(2)
    // Of the thread that calls handlers.
    Mutex turn_;
    std::atomic<bool> turn_awaited_{false};  // by the reactor's own thread
    std::atomic<std::thread::id> current_{std::thread::id()};
    std::atomic<bool> more_{false};   // whether with_more_ has any
    std::map<int, Watched> watched_;  // changed by handlers, which have the turn
    std::vector<int> with_more_ ABSL_GUARDED_BY(turn_);
    std::vector<int> called_again_ ABSL_GUARDED_BY(turn_);                   // empty between calls
    std::vector<std::shared_ptr<Handler>> attended_ ABSL_GUARDED_BY(turn_);  // likewise
    MonotonicTime next_tick_ ABSL_GUARDED_BY(turn_) = MonotonicTime::Now() + kTick;

    Mutex mutex_;
    CondVar unparked_;
    bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
    bool asleep_ ABSL_GUARDED_BY(mutex_) = false;  // the own thread, in epoll_wait(2)
    bool parked_ ABSL_GUARDED_BY(mutex_) = false;  // the own thread, beside one that drives
    bool driven_ ABSL_GUARDED_BY(mutex_) = false;
    bool goes_idle_ ABSL_GUARDED_BY(mutex_) = false;  // the thread that drove last
    uint64_t drives_ ABSL_GUARDED_BY(mutex_) = 0;
    std::vector<std::pair<int, std::shared_ptr<Handler>>> added_ ABSL_GUARDED_BY(mutex_);
    std::vector<std::shared_ptr<Handler>> attend_ ABSL_GUARDED_BY(mutex_);
  };

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_TCP_REACTOR_H_
