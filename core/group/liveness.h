// Who of a job's processes is to blame when it does not go on: lost or stuck. A judge as
// arithmetic, without threads, clocks or a network; core/group/watchdog.h asks it.
//
// Each member sends beats: a number that grows, what it has done so far (core/base/activity.h), and
// whether it is at work or waits for others. The judge takes beats and the time, and says who
// failed:
//
//   lost    nothing was heard of it for the failure timeout, or its connection has ended without a
//           last word
//   stuck   it is heard of and at work, but has done nothing for the failure timeout, or for ten
//           times the longest such gap that it has shown before, whichever is longer; or one of its
//           threads has been held for the failure timeout
//
// Nobody is stuck in its first step, which may take as long as it takes, until somebody has waited
// for it in vain. Whoever waits is never to blame, however long: it waits for somebody else. And where several do
// nothing, all but one may be waiting without saying so. So only the member that has done nothing
// for the longest can be stuck; among those that stopped at about the same time, the rank that has
// done least. While somebody has not been heard of for half of the failure timeout, or has a stopped
// thread, nobody else is stuck: that one may be the cause. And while the first member, in whose process the
// judge is, has a stopped thread, nobody else is silent: signs of life may have come to that thread.
//
// A judge that comes back late was not running: the whole job, or its host, was suspended. All its
// deadlines move by as much as it is late, so a job that is resumed goes on.

#ifndef GRADSYNC_CORE_GROUP_LIVENESS_H_
#define GRADSYNC_CORE_GROUP_LIVENESS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/monotonic_time.h"

namespace gradsync {

// What a member says of itself.
struct Beat {
  int64_t number = 0;    // grows with every beat
  int64_t done = 0;      // Activity::done()
  bool working = false;  // Activity::working()
  bool proven = false;   // Activity::proven()
  bool left = false;     // in good order: the last beat
  // Of the process, held as by a debugger (core/base/thread.h), or 0; the same as in the
  // beat before where that one still is. Whatever it did, others may wait for it, and its process
  // may not know.
  int stopped_thread = 0;

  // As text, for a store; what Parse() reads back.
  std::string ToText() const;
  // Nothing where `text` is no beat.
  static absl::optional<Beat> Parse(absl::string_view text);
};

// What `asked` is where a process waits for others for `timeout` at most: half of that, since what
// is slower than a wait blames nobody; but not less than two seconds, in which a busy machine may
// let a process stand still. Infinite stays infinite.
inline absl::Duration FailureTimeout(absl::Duration asked, absl::Duration timeout) {
  if (asked == absl::InfiniteDuration()) return asked;
  return std::min(asked, std::max(timeout / 2, absl::Seconds(2)));
}

// How often members send beats, and how often the judge should be asked. Never less than twice a
// second, so that members who were told different timeouts can judge each other.
inline absl::Duration BeatInterval(absl::Duration failure_timeout) {
  return std::min(failure_timeout / 20, absl::Milliseconds(500));
}

// Not thread-safe. Nothing blocks.
class Liveness {
 public:
  // Ranks that do the same steps have comparable counts; servers have other ones.
  enum class Kind { kRank, kServer };

  // `failure_timeout` above zero. `now`: when the judge begins to look.
  Liveness(absl::Duration failure_timeout, MonotonicTime now);

  // A member that is called `name` in verdicts: "rank 3", "server 0 (10.0.0.7:4000)". Nothing is
  // said of it before its first beat. Returns its number, from 0, which is the judge's own.
  int Add(std::string name, Kind kind);

  // A beat came, or is there again, which is none. Times never run backwards.
  void OnBeat(int member, const Beat& beat, MonotonicTime now);

  // The member's connection has ended. To be told after the beats that have come until then.
  void OnGone(int member);

  // What is wrong, if anything is: it begins with the culprit's name. To be asked once every
  // BeatInterval(), before the beats of that moment are told.
  absl::optional<std::string> Judge(MonotonicTime now);

  // Somebody has waited until its deadline, in vain: who looks as if it held that up, if anybody
  // does. Who is at work and has done nothing for the failure timeout, in its first step too, and
  // however long its gaps were.
  absl::optional<std::string> Blame(MonotonicTime now) const;

 private:
  struct Member {
    std::string name;
    Kind kind = Kind::kRank;
    bool known = false;   // its first beat has come
    bool gone = false;    // its connection has ended
    Beat beat;            // the last one
    MonotonicTime heard;  // when that came
    MonotonicTime moved;  // since when it has been at work without doing anything
    MonotonicTime held;   // since when that thread has been stopped
    absl::Duration longest_gap;
  };

  void Shift(MonotonicTime now);
  absl::optional<std::string> Lost(MonotonicTime now) const;
  absl::optional<std::string> Held(MonotonicTime now) const;
  absl::optional<std::string> Stuck(MonotonicTime now) const;
  const Member* Idlest(MonotonicTime now) const;
  absl::Duration Limit(const Member& member) const;

  const absl::Duration timeout_;
  const absl::Duration interval_;
  MonotonicTime asked_;  // Judge(), last
  std::vector<Member> members_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_LIVENESS_H_
