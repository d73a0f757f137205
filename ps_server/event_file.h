#ifndef GRADSYNC_PS_SERVER_EVENT_FILE_H_
#define GRADSYNC_PS_SERVER_EVENT_FILE_H_

#include <cstdio>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "ps_server/server_event.h"

namespace gradsync {

// "applied 0 3 1 7 2": kind, rank, clock, bucket, slot, slowest (server_event.h).
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

#endif  // GRADSYNC_PS_SERVER_EVENT_FILE_H_
