// Lends threads that wait for an exchange to the link that brings it.
//
// A wake-up costs more than a small message: some microseconds, and tens of them where a core of a
// virtual machine had gone to sleep. So a thread that has nothing better to do receives itself, while
// its core is its own, and the link's threads stay away meanwhile.

#ifndef GRADSYNC_CORE_LINKS_LINK_DRIVER_H_
#define GRADSYNC_CORE_LINKS_LINK_DRIVER_H_

#include <atomic>
#include <functional>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/group/sync_handle.h"

namespace gradsync {

// Something with a thread of its own that another thread may stand in for. Thread-safe.
class Drivable {
 public:
  virtual ~Drivable() = default;

  // Poll() is called between the two, by one thread at a time: false where another one drives.
  virtual bool BeginDriving() = 0;
  // `idle`: nobody may come back soon, so the own thread takes over at once.
  virtual void EndDriving(bool idle) = 0;

  // Does what there is to do, without waiting. Returns whether there was anything.
  virtual bool Poll() = 0;
};

using Drivables = absl::InlinedVector<std::shared_ptr<Drivable>, 4>;

// Thread-safe.
class LinkDriver : public SyncDriver {
 public:
  // `add` adds what is to be driven, as it is now. A waiting thread looks for `spin` after the last thing
  // that came, and then sleeps.
  LinkDriver(absl::Duration spin, std::function<void(Drivables*)> add)
      : spin_(spin), add_(std::move(add)) {}

  absl::Duration spin() const { return spin_; }
  void AddTo(Drivables* drivables) const { add_(drivables); }

  // Returns early where nothing comes, and where another thread needs this core: then it does nothing
  // for some calls.
  void Drive(absl::FunctionRef<bool()> done, Deadline deadline) override;

 private:
  bool Look(const Drivables& drivables, absl::FunctionRef<bool()> done, Deadline deadline) const;

  const absl::Duration spin_;
  const std::function<void(Drivables*)> add_;
  std::atomic<int> calls_to_skip_{0};
  std::atomic<int> last_skipped_{0};
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_LINK_DRIVER_H_
