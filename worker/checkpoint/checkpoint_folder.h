// The folder of a job's checkpoints, and the order in which one is written: whenever a process or
// the machine stops, the newest one that is called a checkpoint is whole.
//
//   DIR/step_00000120/MANIFEST     names, sizes and SHA-256 of the files beside it, written last
//   DIR/step_00000120/...          the files
//   DIR/latest -> step_00000120    the newest one
//   DIR/best -> step_00000080      the one that the job thinks best, if it says so
//   DIR/.writing_00000160/         one that is being written, or was when a writer was killed
//
//   DIR/.lock                      kept by the job that writes (worker/checkpoint/file_system.h)
//
// Each file is written and synced, then the manifest; then the folder .writing_ is synced, gets its
// name, and DIR is synced; only then `latest` is replaced, by a rename too.
//
// Where the file system has no symbolic links, `latest` and `best` are files that hold the name.

#ifndef GRADSYNC_WORKER_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define GRADSYNC_WORKER_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/file_system.h"

namespace gradsync {

struct CheckpointFile {
  int64_t bytes = 0;
  std::string sha256;  // 64 hexadecimal digits
};

// One whole checkpoint, as its manifest has it. A value.
class Checkpoint {
 public:
  // Reads the manifest of the folder at `path`. Errors: NOT_FOUND without one; DATA_LOSS when it
  // is damaged.
  static absl::StatusOr<Checkpoint> Open(FileSystem& files, const std::string& path);

  const std::string& path() const { return path_; }
  int64_t step() const { return step_; }
  const std::map<std::string, CheckpointFile>& files() const { return files_; }

  // The content of one of files(). Errors: NOT_FOUND for a name that is none of them, or a file
  // that is gone; DATA_LOSS when it is not what was written.
  absl::StatusOr<std::string> Read(FileSystem& files, const std::string& name) const;

  // Whether all files can be read. Errors: those of Read().
  absl::Status Check(FileSystem& files) const;

 private:
  std::string path_;
  int64_t step_ = 0;
  std::map<std::string, CheckpointFile> files_;
};

// Writes checkpoints. Not thread-safe, and only one process may write to a folder at a time; others
// may read, or add files to one that is being written. Errors, everywhere: those of FileSystem.
class CheckpointFolder {
 public:
  // `files` must outlive the result. Keeps the newest `keep` (at least 1) checkpoints, and those
  // that links name. `warn` is told, in a line each, what could not be removed or linked, which fails
  // nothing; may be null. Nothing is touched yet.
  CheckpointFolder(FileSystem* files, std::string path, int keep,
                   std::function<void(absl::string_view line)> warn = nullptr)
      : files_(files), path_(std::move(path)), keep_(keep), warn_(std::move(warn)) {}

  // Does once whatever a checkpoint will need the file system to do, and leaves nothing of it but
  // the folder itself; removes what an earlier writer has left. A job that cannot write finds it
  // here before it trains.
  absl::Status Probe();

  // Removes what an earlier writer has left and begins the checkpoint of `step`.
  absl::Status Begin(int64_t step);

  // Where files of the one begun are, until Commit(). For those who write some themselves, by
  // WriteCheckpointFile().
  std::string PendingPath() const;

  absl::Status Add(const std::string& name, absl::string_view bytes);

  // A file that another process wrote to PendingPath().
  void AddWritten(const std::string& name, const CheckpointFile& file) { pending_[name] = file; }

  // Makes the one begun a checkpoint, in place of one of the same step, and `latest` name it; then
  // removes old ones.
  absl::Status Commit();

  // Lets `best` name the checkpoint of `step`.
  void SetBest(int64_t step);

  // For a job that goes on from the checkpoint of `step`, the best of which was that of `best` (0:
  // none): lets `latest` and `best` name these, where they are in this folder and a writer was
  // killed before it could.
  absl::Status RestoreLinks(int64_t step, int64_t best);

 private:
  absl::Status RemoveLeftovers(const std::string& needed);
  void SetLink(absl::string_view name, int64_t step);
  absl::Status MakeLink(absl::string_view target, const std::string& path);
  void RemoveOld();
  void WarnUnlessOk(absl::string_view what, const absl::Status& status) const;
  std::string In(absl::string_view name) const;

  FileSystem* const files_;
  const std::string path_;
  const int keep_;
  const std::function<void(absl::string_view line)> warn_;
  int64_t step_ = 0;
  bool said_no_links_ = false;
  std::map<std::string, CheckpointFile> pending_;
};

// Writes and syncs a file, and says what the manifest is to say of it.
absl::StatusOr<CheckpointFile> WriteCheckpointFile(FileSystem& files, const std::string& path,
                                                   absl::string_view bytes);

// Steps of the checkpoints in the folder at `path`, in order, whole or not; none if there is no
// folder.
absl::StatusOr<std::vector<int64_t>> CheckpointSteps(FileSystem& files, const std::string& path);

// What a link of a folder of checkpoints, or the file in its place, names: "step_00000120".
absl::StatusOr<std::string> LinkTarget(FileSystem& files, const std::string& path);

// `path` itself, but where that is the file that stands for DIR/latest or DIR/best, the checkpoint
// that it names.
std::string FollowLink(FileSystem& files, const std::string& path);

// The newest checkpoint in the folder at `path` whose files are all as they were written. Why those
// that are newer are not is added to `damaged`, a line each. Errors: NOT_FOUND when there is none.
absl::StatusOr<Checkpoint> FindNewestWhole(FileSystem& files, const std::string& path,
                                           std::vector<std::string>* damaged);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_CHECKPOINT_FOLDER_H_
