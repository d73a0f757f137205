#include "ps_server/server_event.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "core/base/write_file.h"

namespace gradsync {
namespace {

const char* KindName(ServerEvent::Kind kind) {
  switch (kind) {
    case ServerEvent::Kind::kApplied:
      return "applied";
    case ServerEvent::Kind::kPulled:
      return "pulled";
    case ServerEvent::Kind::kSettled:
      return "settled";
    case ServerEvent::Kind::kLeft:
      return "left";
    case ServerEvent::Kind::kFinal:
      return "final";
  }
  return "";
}

}  // namespace

std::string FormatEvent(const ServerEvent& event) {
  return absl::StrCat(KindName(event.kind), " ", event.rank, " ", event.clock, " ",
                      event.chunk.bucket, " ", event.chunk.slot, " ", event.slowest);
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(const std::string& path) {
  const absl::StatusOr<int> opened = OpenInPlace(path, O_CREAT | O_TRUNC);
  if (!opened.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("expected a file that can be written, found \"",
                                                   path, "\": ", opened.status().message()));
  }
  // The stream waits until a pipe has room.
  fcntl(*opened, F_SETFL, fcntl(*opened, F_GETFL) & ~O_NONBLOCK);
  std::FILE* const file = fdopen(*opened, "w");
  if (file == nullptr) {
    const absl::Status status = absl::ErrnoToStatus(errno, path);
    close(*opened);
    return status;
  }
  return absl::WrapUnique(new EventFile(path, file));
}

EventFile::~EventFile() { Close().IgnoreError(); }

void EventFile::Add(const ServerEvent& event) {
  const std::string line = FormatEvent(event) + "\n";
  MutexLock lock(&mutex_);
  if (file_ != nullptr) std::fwrite(line.data(), 1, line.size(), file_);
}

absl::Status EventFile::Close() {
  MutexLock lock(&mutex_);
  if (file_ == nullptr) return absl::OkStatus();
  const bool failed = std::ferror(file_) != 0;
  std::FILE* const file = std::exchange(file_, nullptr);
  if (std::fclose(file) == 0 && !failed) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": not everything could be written"));
}

}  // namespace gradsync
