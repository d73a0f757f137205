// A thread that waits for many sockets (epoll(7)) and calls those that are ready.
//
// Private to core/links/tcp_stream.

#ifndef GRADSYNC_CORE_LINKS_TCP_REACTOR_H_
#define GRADSYNC_CORE_LINKS_TCP_REACTOR_H_

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"

namespace gradsync {

// Thread-safe. Ends when the last owner goes, which may be the thread itself.
class TcpReactor {
 public:
  // How often it calls Tick().
  static constexpr absl::Duration kTick = absl::Milliseconds(100);

  // One socket's. All calls come from the reactor's thread; none may wait.
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
  ~TcpReactor();
  TcpReactor(const TcpReactor&) = delete;
  TcpReactor& operator=(const TcpReactor&) = delete;

  // Watches `descriptor`, whose Handler it keeps until Remove().
  void Add(int descriptor, std::shared_ptr<Handler> handler) {
    state_->Add(descriptor, std::move(handler));
  }

  // From the reactor's thread: no more calls. The descriptor is the caller's to close.
  void Remove(int descriptor) { state_->Remove(descriptor); }

  // Calls OnAttention() soon, once for all that have asked meanwhile; perhaps after Remove(), too.
  void Attend(const std::shared_ptr<Handler>& handler) { state_->Attend(handler); }

  bool IsCurrent() const { return std::this_thread::get_id() == thread_.get_id(); }

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

   private:
    struct Watched {
      std::shared_ptr<Handler> handler;
      bool more_to_read = false;
    };

    void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    void TakeMail();
    void Call(int descriptor, bool readable, bool writable, bool ends);
    void CallThoseWithMore();
    void Tick();
    int Timeout() const;

    const int epoll_;
    const int wakeup_;  // an eventfd(2)
    // Of the thread.
    std::map<int, Watched> watched_;
    std::vector<int> with_more_;
    MonotonicTime next_tick_ = MonotonicTime::InfiniteFuture();

    Mutex mutex_;
    bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
    bool asleep_ ABSL_GUARDED_BY(mutex_) = false;
    std::vector<std::pair<int, std::shared_ptr<Handler>>> added_ ABSL_GUARDED_BY(mutex_);
    std::vector<std::shared_ptr<Handler>> attend_ ABSL_GUARDED_BY(mutex_);
  };

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_TCP_REACTOR_H_
