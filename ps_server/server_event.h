#ifndef GRADSYNC_PS_SERVER_SERVER_EVENT_H_
#define GRADSYNC_PS_SERVER_SERVER_EVENT_H_

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/plan/shard_map.h"

namespace gradsync {

// Something that happened to one chunk under ssp or asp (docs/use/consistency.md).
struct ServerEvent {
  enum class Kind {
    kApplied,  // a gradient
    kPulled,   // parameters are about to be sent to the rank
    kSettled,  // the rank pushes nothing more before kFinal
    kLeft,     // the rank pushes nothing more
    kFinal,    // all have settled: parameters are about to be sent to the rank, clocks begin at 0
  };

  Kind kind = Kind::kApplied;
  int rank = 0;
  int64_t clock = 0;  // of the rank: its gradients applied since the last kFinal
  ChunkId chunk;
  int64_t slowest = 0;  // the smallest clock of ranks that have neither settled nor left; if there
                        // are none, the rank's
};

// Hears events in an order that agrees with that of each chunk. Called under the chunk's lock, on
// any thread: must be thread-safe and return soon.
using ServerEventSink = std::function<void(const ServerEvent&)>;

// "applied 0 3 1 7 2": kind, rank, clock, bucket, slot, slowest.
std::string FormatEvent(const ServerEvent& event);

// Writes events to a file, one line each. Thread-safe; Add() may wait for the disk.
class EventFile {
 public:
  // Errors: INVALID_ARGUMENT when the file cannot be written.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(const std::string& path);
  ~EventFile();

  void Add(const ServerEvent& event);

  // Ends the file. Errors: DATA_LOSS when something could not be written.
  absl::Status Close();

 private:
  EventFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  const std::string path_;
  Mutex mutex_;
  std::FILE* file_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SERVER_EVENT_H_
