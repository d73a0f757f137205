#include "worker/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr char kManifest[] = "MANIFEST";
constexpr char kLatest[] = "latest";
constexpr char kBest[] = "best";
constexpr char kStep[] = "step_";
constexpr char kWriting[] = ".writing_";
constexpr char kRemoving[] = ".removing_";
constexpr char kNewLink[] = ".link_";
constexpr char kProbe[] = ".probe_";
constexpr char kNotRemoved[] = "an old checkpoint is not removed";

std::string NameOf(absl::string_view prefix, int64_t step) {
  return absl::StrFormat("%s%08d", prefix, step);
}

// The step of a name that begins with "step_"; -1 for other names.
int64_t StepOf(absl::string_view name) {
  int64_t step = -1;
  if (!absl::ConsumePrefix(&name, kStep) || name.size() < 8 || !absl::SimpleAtoi(name, &step)) {
    return -1;
  }
  return step;
}

CheckpointFile Describe(absl::string_view bytes) {
  return {static_cast<int64_t>(bytes.size()), Sha256Hex(bytes)};
}

// A line that sha256sum skips, then those that it reads, then one that says that nothing is cut
// off.
std::string EncodeManifest(int64_t step, const std::map<std::string, CheckpointFile>& files) {
  std::string text = absl::StrCat("# gradsync checkpoint, step ", step, "\n");
  for (const auto& [name, file] : files) {
    absl::StrAppend(&text, "# ", file.bytes, " bytes\n", file.sha256, "  ", name, "\n");
  }
  absl::StrAppend(&text, "# end, ", files.size(), " files\n");
  return text;
}

absl::Status DecodeManifest(absl::string_view text, int64_t* step,
                            std::map<std::string, CheckpointFile>* files) {
  const auto damaged = [text](absl::string_view at) {
    return absl::DataLossError(
        absl::StrCat("a manifest that is cut off or damaged at byte ", at.data() - text.data()));
  };
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  absl::string_view first = lines.front();
  if (!absl::ConsumePrefix(&first, "# gradsync checkpoint, step ") ||
      !absl::SimpleAtoi(first, step) || *step < 0) {
    return damaged(lines.front());
  }
  // The text ends with a newline, so the last piece is empty.
  if (lines.size() < 3 || lines.size() % 2 == 0 || !lines.back().empty()) {
    return damaged(lines.back());
  }
  const size_t count = (lines.size() - 3) / 2;
  for (size_t i = 0; i < count; ++i) {
    CheckpointFile file;
    absl::string_view size = lines[1 + 2 * i];
    if (!absl::ConsumePrefix(&size, "# ") || !absl::ConsumeSuffix(&size, " bytes") ||
        !absl::SimpleAtoi(size, &file.bytes)) {
      return damaged(lines[1 + 2 * i]);
    }
    const absl::string_view line = lines[2 + 2 * i];
    if (line.size() < 67 || line.substr(64, 2) != "  ") return damaged(line);
    const std::string name(line.substr(66));
    file.sha256 = std::string(line.substr(0, 64));
    if (absl::StrContains(name, '/') || name == "." || name == ".." ||
        !files->emplace(name, file).second) {
      return damaged(line);
    }
  }
  if (lines[lines.size() - 2] != absl::StrCat("# end, ", count, " files")) {
    return damaged(lines[lines.size() - 2]);
  }
  return absl::OkStatus();
}

absl::Status WithPath(const absl::Status& status, const std::string& path) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(FileSystem& files, const std::string& path) {
  const std::string manifest = absl::StrCat(path, "/", kManifest);
  GS_ASSIGN_OR_RETURN(const std::string text, files.Read(manifest));
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  const absl::Status decoded = DecodeManifest(text, &checkpoint.step_, &checkpoint.files_);
  if (!decoded.ok()) return WithPath(decoded, manifest);
  return checkpoint;
}

absl::StatusOr<std::string> Checkpoint::Read(FileSystem& files, const std::string& name) const {
  const std::string path = absl::StrCat(path_, "/", name);
  const auto expected = files_.find(name);
  if (expected == files_.end()) {
    return absl::NotFoundError(absl::StrCat(path, ": not in the checkpoint's manifest"));
  }
  GS_ASSIGN_OR_RETURN(std::string bytes, files.Read(path));
  const CheckpointFile found = gradsync::Describe(bytes);
  if (found.bytes != expected->second.bytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": expected ", expected->second.bytes, " bytes, found ", found.bytes));
  }
  if (found.sha256 != expected->second.sha256) {
    return absl::DataLossError(absl::StrCat(path, ": expected SHA-256 ", expected->second.sha256,
                                            ", found ", found.sha256));
  }
  return bytes;
}

absl::Status Checkpoint::Check(FileSystem& files) const {
  for (const auto& [name, file] : files_) GS_RETURN_IF_ERROR(Read(files, name).status());
  return absl::OkStatus();
}

std::string CheckpointFolder::In(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

std::string CheckpointFolder::PendingPath() const { return In(NameOf(kWriting, step_)); }

absl::Status CheckpointFolder::RemoveLeftovers(const std::string& needed) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_->List(path_));
  for (const std::string& name : names) {
    for (const char* prefix : {kWriting, kRemoving, kNewLink, kProbe}) {
      if (!absl::StartsWith(name, prefix)) continue;
      const absl::Status removed = files_->Remove(In(name));
      // What is in it would be in the new one.
      if (In(name) == needed) GS_RETURN_IF_ERROR(removed);
      WarnUnlessOk(kNotRemoved, removed);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointFolder::Probe() {
  GS_RETURN_IF_ERROR(files_->MakeFolder(path_));
  const std::string made = In(absl::StrCat(kProbe, "made"));
  const std::string renamed = In(absl::StrCat(kProbe, "renamed"));
  GS_RETURN_IF_ERROR(RemoveLeftovers(renamed));
  GS_RETURN_IF_ERROR(files_->MakeFolder(made));
  GS_RETURN_IF_ERROR(
      WriteCheckpointFile(*files_, absl::StrCat(made, "/", kManifest), kProbe).status());
  GS_RETURN_IF_ERROR(files_->Sync(made));
  GS_RETURN_IF_ERROR(files_->Rename(made, renamed));
  GS_RETURN_IF_ERROR(files_->Sync(path_));
  GS_RETURN_IF_ERROR(MakeLink(kManifest, absl::StrCat(renamed, "/", kLatest)));
  return files_->Remove(renamed);
}

absl::Status CheckpointFolder::Begin(int64_t step) {
  step_ = step;
  pending_.clear();
  GS_RETURN_IF_ERROR(files_->MakeFolder(path_));
  GS_RETURN_IF_ERROR(RemoveLeftovers(PendingPath()));
  return files_->MakeFolder(PendingPath());
}

absl::StatusOr<CheckpointFile> WriteCheckpointFile(FileSystem& files, const std::string& path,
                                                   absl::string_view bytes) {
  GS_RETURN_IF_ERROR(files.Write(path, bytes));
  GS_RETURN_IF_ERROR(files.Sync(path));
  return gradsync::Describe(bytes);
}

absl::Status CheckpointFolder::Add(const std::string& name, absl::string_view bytes) {
  GS_ASSIGN_OR_RETURN(pending_[name],
                      WriteCheckpointFile(*files_, absl::StrCat(PendingPath(), "/", name), bytes));
  return absl::OkStatus();
}

absl::Status CheckpointFolder::Commit() {
  GS_RETURN_IF_ERROR(WriteCheckpointFile(*files_, absl::StrCat(PendingPath(), "/", kManifest),
                                         EncodeManifest(step_, pending_))
                         .status());
  GS_RETURN_IF_ERROR(files_->Sync(PendingPath()));
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_->List(path_));
  const std::string name = NameOf(kStep, step_);
  const std::string aside = In(NameOf(kRemoving, step_));
  const bool replaces = std::find(names.begin(), names.end(), name) != names.end();
  // A folder that is not empty cannot be renamed over.
  if (replaces) GS_RETURN_IF_ERROR(files_->Rename(In(name), aside));
  GS_RETURN_IF_ERROR(files_->Rename(PendingPath(), In(name)));
  GS_RETURN_IF_ERROR(files_->Sync(path_));
  if (replaces) WarnUnlessOk(kNotRemoved, files_->Remove(aside));
  SetLink(kLatest, step_);
  RemoveOld();
  return absl::OkStatus();
}

void CheckpointFolder::SetBest(int64_t step) { SetLink(kBest, step); }

absl::Status CheckpointFolder::RestoreLinks(int64_t step, int64_t best) {
  GS_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, CheckpointSteps(*files_, path_));
  for (const auto& [link, target] : {std::make_pair(kLatest, step), std::make_pair(kBest, best)}) {
    if (!std::binary_search(steps.begin(), steps.end(), target)) continue;
    const absl::StatusOr<std::string> found = LinkTarget(*files_, In(link));
    if (found.ok() && *found == NameOf(kStep, target)) continue;
    SetLink(link, target);
  }
  return absl::OkStatus();
}

// The checkpoint that it names is as good without it.
void CheckpointFolder::SetLink(absl::string_view name, int64_t step) {
  const std::string made = In(absl::StrCat(kNewLink, name));
  const std::string path = In(name);
  absl::Status status = files_->Remove(made);
  if (status.ok()) status = MakeLink(NameOf(kStep, step), made);
  if (status.ok() && !files_->Rename(made, path).ok()) {
    // Some file systems do not rename over what is there.
    status = files_->Remove(path);
    if (status.ok()) status = files_->Rename(made, path);
  }
  if (status.ok()) status = files_->Sync(path_);
  WarnUnlessOk(absl::StrCat(name, " does not name the checkpoint of step ", step), status);
}

absl::Status CheckpointFolder::MakeLink(absl::string_view target, const std::string& path) {
  const absl::Status linked = files_->Link(std::string(target), path);
  if (linked.ok()) return linked;
  GS_RETURN_IF_ERROR(WriteCheckpointFile(*files_, path, absl::StrCat(target, "\n")).status());
  if (!said_no_links_ && warn_ != nullptr) {
    warn_(absl::StrCat(path_, ": no symbolic links there, so latest and best are files that hold a",
                       " checkpoint's name: ", linked.message()));
  }
  said_no_links_ = true;
  return absl::OkStatus();
}

// What stays takes room; the checkpoints are as good.
void CheckpointFolder::WarnUnlessOk(absl::string_view what, const absl::Status& status) const {
  if (status.ok() || warn_ == nullptr) return;
  warn_(absl::StrCat(what, ", the job goes on: ", status.message()));
}

void CheckpointFolder::RemoveOld() {
  const absl::StatusOr<std::vector<int64_t>> found = CheckpointSteps(*files_, path_);
  WarnUnlessOk(kNotRemoved, found.status());
  std::vector<int64_t> steps = found.value_or(std::vector<int64_t>());
  std::set<std::string> linked;
  for (const char* link : {kLatest, kBest}) {
    const absl::StatusOr<std::string> target = LinkTarget(*files_, In(link));
    if (target.ok()) linked.insert(*target);
  }
  for (int kept = 0; !steps.empty(); steps.pop_back()) {
    const std::string name = NameOf(kStep, steps.back());
    if (kept++ < keep_ || linked.count(name) > 0) continue;
    // Under another name it is no checkpoint any more, also while it is removed.
    const std::string aside = In(NameOf(kRemoving, steps.back()));
    absl::Status removed = files_->Rename(In(name), aside);
    if (removed.ok()) removed = files_->Remove(aside);
    WarnUnlessOk(kNotRemoved, removed);
  }
}

absl::StatusOr<std::vector<int64_t>> CheckpointSteps(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(path);
  std::vector<int64_t> steps;
  if (absl::IsNotFound(names.status())) return steps;
  GS_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (StepOf(name) >= 0) steps.push_back(StepOf(name));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::string> LinkTarget(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::string> target = files.ReadLink(path);
  if (target.ok()) return target;
  GS_ASSIGN_OR_RETURN(const std::string text, files.Read(path));
  const std::string name(absl::StripSuffix(text, "\n"));
  if (StepOf(name) >= 0) return name;
  return absl::DataLossError(
      absl::StrCat(path, ": expected a checkpoint's name, found other text"));
}

std::string FollowLink(FileSystem& files, const std::string& path) {
  const std::string link(absl::StripSuffix(path, "/"));
  absl::string_view folder = link;
  if (!absl::ConsumeSuffix(&folder, kLatest) && !absl::ConsumeSuffix(&folder, kBest)) return path;
  if (!absl::EndsWith(folder, "/") || files.ReadLink(link).ok()) return path;
  const absl::StatusOr<std::string> target = LinkTarget(files, link);
  return target.ok() ? absl::StrCat(folder, *target) : path;
}

absl::StatusOr<Checkpoint> FindNewestWhole(FileSystem& files, const std::string& path,
                                           std::vector<std::string>* damaged) {
  GS_ASSIGN_OR_RETURN(std::vector<int64_t> steps, CheckpointSteps(files, path));
  for (; !steps.empty(); steps.pop_back()) {
    absl::StatusOr<Checkpoint> checkpoint =
        Checkpoint::Open(files, absl::StrCat(path, "/", NameOf(kStep, steps.back())));
    absl::Status status = checkpoint.status();
    if (status.ok()) status = checkpoint->Check(files);
    if (status.ok()) return checkpoint;
    damaged->push_back(std::string(status.message()));
  }
  return absl::NotFoundError(absl::StrCat(path, ": no whole checkpoint"));
}

}  // namespace gradsync
