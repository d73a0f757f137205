#include "worker/train/checkpointer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/errors.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/base/write_file.h"
#include "core/plan/codec.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/flat_parameters.h"
#include "gradsync/ddp/module_state.h"
#include "worker/checkpoint/file_formats.h"
#include "worker/checkpoint/host_tensor.h"
#include "worker/checkpoint/read_weights.h"
#include "worker/data/dataset.h"
#include "worker/train/job_state.h"

namespace gradsync {
namespace {

constexpr char kModel[] = "model";
constexpr char kAverage[] = "model_ema";
constexpr char kWeights[] = "model.safetensors";
constexpr char kState[] = "state.safetensors";

// Ranks wait while rank 0 writes, to a disk that may be slow or far away.
constexpr absl::Duration kWriteTimeout = absl::Hours(1);

// Tensors that travel together: many small ones cost one round trip, and little memory.
constexpr size_t kPieceBytes = size_t{16} << 20;

std::string ResidualsOf(int rank) { return absl::StrFormat("residuals_%04d.safetensors", rank); }

// A path that means the same to a rank that was started elsewhere on the same file system.
std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

absl::Status CannotWrite(const std::string& folder, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(
      "--checkpoint: expected a folder that this job's checkpoints can be written to, found ",
      folder, ": ", status.message()));
}

// What is written into a checkpoint goes when that is removed.
absl::Status RefuseCheckpointAsFolder(FileSystem& files, const std::string& folder) {
  if (folder.empty()) return absl::OkStatus();
  const std::string path = FollowLink(files, Absolute(folder));
  const absl::Status found = Checkpoint::Open(files, path).status();
  if (!found.ok() && !absl::IsDataLoss(found)) return absl::OkStatus();  // it has no manifest
  // Of others' files one may have that name.
  if (!found.ok() && !std::filesystem::exists(absl::StrCat(path, "/", kState))) {
    return absl::OkStatus();
  }
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::canonical(path, error).parent_path();
  const std::string given = folder.substr(0, folder.find_last_not_of('/') + 1);
  const size_t slash = given.rfind('/');
  std::string parent =
      slash == std::string::npos ? "." : given.substr(0, std::max<size_t>(slash, 1));
  if (!std::filesystem::equivalent(parent, whole, error)) parent = whole.string();
  return absl::InvalidArgumentError(
      absl::StrCat("--checkpoint: expected a folder of checkpoints, found ", folder,
                   ", which is a checkpoint; its folder is ", parent));
}

std::string Megabytes(double bytes) { return absl::StrFormat("%.1f MB", 1e-6 * bytes); }

// Collective: OK on all ranks, or an error on all; each rank's own, or that of the first that has
// one.
absl::Status AllOrNone(const absl::Status& own, SideChannel& side_channel) {
  GS_ASSIGN_OR_RETURN(
      const std::vector<std::string> answers,
      side_channel.AllGather(own.ok() ? "" : own.message(), Deadline::In(kWriteTimeout)));
  GS_RETURN_IF_ERROR(own);
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank].empty()) continue;
    return absl::AbortedError(absl::StrCat(side_channel.Name(rank), ": ", answers[rank]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> EncodeResiduals(const RankState& state) {
  Safetensors content;
  for (const auto& [name, values] : state.residuals) {
    HostTensor tensor;
    tensor.name = name;
    tensor.sizes = {static_cast<int64_t>(values.size())};
    tensor.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    content.tensors.push_back(std::move(tensor));
  }
  return EncodeSafetensors(content);
}

absl::StatusOr<RankState> DecodeResiduals(absl::string_view file) {
  GS_ASSIGN_OR_RETURN(const Safetensors content, DecodeSafetensors(file));
  RankState state;
  for (const HostTensor& tensor : content.tensors) {
    if (tensor.type != StoredType::kFloat32) {
      return absl::DataLossError(absl::StrCat("residuals: expected F32, found ", Describe(tensor)));
    }
    const float* const values = reinterpret_cast<const float*>(tensor.data.data());
    state.residuals[tensor.name].assign(values, values + tensor.data.size() / sizeof(float));
  }
  return state;
}

}  // namespace

Checkpointer::Checkpointer(const CheckpointOptions& options, int rank, int world_size,
                           int64_t samples, int64_t steps)
    : options_(options),
      rank_(rank),
      world_size_(world_size),
      samples_(samples),
      steps_(steps),
      files_(NewLocalFileSystem()),
      folder_(files_.get(), Absolute(options.folder), options.keep, options.say) {}

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Create(const CheckpointOptions& options,
                                                                   int rank, int world_size,
                                                                   int64_t samples, int64_t steps) {
  std::unique_ptr<Checkpointer> checkpointer(
      new Checkpointer(options, rank, world_size, samples, steps));
  if (rank != 0) return checkpointer;
  // An evaluation alone writes nothing, and may be of a job that is under way.
  if (!options.weights_only) {
    GS_RETURN_IF_ERROR(RefuseCheckpointAsFolder(*checkpointer->files_, options.folder));
    GS_RETURN_IF_ERROR(checkpointer->TakeFolder());
  }
  GS_RETURN_IF_ERROR(checkpointer->FindStart());
  if (!checkpointer->Writes()) return checkpointer;
  const absl::Status probed = checkpointer->folder_.Probe();
  if (!probed.ok()) return CannotWrite(options.folder, probed);
  return checkpointer;
}

// Two jobs would remove what the other one writes.
absl::Status Checkpointer::TakeFolder() {
  if (options_.folder.empty()) return absl::OkStatus();
  absl::StatusOr<FolderLock> lock = FolderLock::Take(Absolute(options_.folder), ThisHolder());
  if (absl::IsUnavailable(lock.status())) {
    Say(absl::StrCat(lock.status().message(),
                     "; a second job that writes there would not be noticed"));
    return absl::OkStatus();
  }
  if (!lock.ok()) return CannotWrite(options_.folder, lock.status());
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

void Checkpointer::Say(absl::string_view line) const {
  if (options_.say != nullptr) options_.say(line);
}

absl::Status Checkpointer::FindNewest(const std::string& folder, absl::string_view flag) {
  std::vector<std::string> damaged;
  absl::StatusOr<Checkpoint> found = FindNewestWhole(*files_, folder, &damaged);
  for (const std::string& why : damaged) {
    Say(absl::StrCat("checkpoint is damaged and left out: ", why));
  }
  if (found.ok()) {
    start_ = *std::move(found);
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(found.status())) return found.status();
  // A job that was to go on must not begin anew only because nothing of it can be read.
  if (options_.resume == CheckpointOptions::Resume::kAuto && damaged.empty()) {
    if (options_.weights_only) return FlagError(flag, "a folder with a whole checkpoint", folder);
    Say(absl::StrCat("no checkpoint in ", folder, ": a new job"));
    return absl::OkStatus();
  }
  return FlagError(flag, "a folder with a whole checkpoint", folder);
}

absl::Status Checkpointer::FindStart() {
  if (options_.resume == CheckpointOptions::Resume::kAuto) {
    return FindNewest(Absolute(options_.folder), "checkpoint");
  }
  if (options_.resume == CheckpointOptions::Resume::kPath) {
    const std::string path = FollowLink(*files_, Absolute(options_.resume_path));
    std::error_code error;
    if (std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error)) {
      return FlagError(
          "resume",
          "a checkpoint's folder, or one of checkpoints (--init_from=FILE begins a new "
          "job with a file's weights)",
          path);
    }
    absl::StatusOr<Checkpoint> given = Checkpoint::Open(*files_, path);
    if (given.ok()) {
      GS_RETURN_IF_ERROR(given->Check(*files_));
      start_ = *std::move(given);
    } else if (absl::IsNotFound(given.status())) {
      GS_RETURN_IF_ERROR(FindNewest(path, "resume"));
    } else {
      return given.status();
    }
  }
  return CheckFolder();
}

// Checkpoints of another job, or of what this one did after the one that it resumes from, would be
// taken for this job's.
absl::Status Checkpointer::CheckFolder() const {
  if (options_.folder.empty() || options_.weights_only) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, CheckpointSteps(*files_, options_.folder));
  if (steps.empty() || (start_.has_value() && steps.back() <= start_->step())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--checkpoint: expected ",
                   start_.has_value()
                       ? absl::StrCat("a folder without checkpoints after step ", start_->step())
                       : "a folder without checkpoints, or --resume=auto to go on from its newest",
                   ", found ", options_.folder, ", whose newest is of step ", steps.back()));
}

absl::Status Checkpointer::CheckState(const JobState& state) const {
  const auto as_in = [&](absl::string_view value) {
    return absl::StrCat(value, " as in ", start_->path());
  };
  // Each rank's samples and generators are its own.
  if (state.world_size != world_size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("--world_size: expected ", as_in(absl::StrCat(state.world_size)), ", found ",
                     world_size_, "; start as many workers (launch --workers=", state.world_size,
                     "), or a new job from its weights (--init_from=", start_->path(), "/", kModel,
                     ".pt and another --checkpoint)"));
  }
  for (const auto& [flag, value] : options_.job) {
    const auto before = state.flags.find(flag);
    // Bytes that are no UTF-8 are escaped in the file.
    if (before == state.flags.end() || EscapedAsUtf8(before->second) == EscapedAsUtf8(value)) {
      continue;
    }
    return FlagError(flag, as_in(absl::StrCat("\"", before->second, "\"")), value);
  }
  GS_RETURN_IF_ERROR(CheckData(state));
  // The order of samples is a function of how many there are.
  if (state.samples > 0 && state.samples != samples_) {
    return FlagError("data", as_in(absl::StrCat(state.samples, " samples")),
                     absl::StrCat(samples_, " samples"));
  }
  if (state.threads > 0 && options_.threads > 0 && state.threads != options_.threads) {
    Say(absl::StrCat("--threads: ", options_.threads, ", was ", state.threads, " in ",
                     start_->path(), ": sums within an operation may be rounded otherwise"));
  }
  if (state.step > steps_) {
    return FlagError("steps", as_in(absl::StrCat("at least ", state.step)), absl::StrCat(steps_));
  }
  return absl::OkStatus();
}

// Where the data lie, and how their path is spelled, may have changed; what they are may not.
absl::Status Checkpointer::CheckData(const JobState& state) const {
  const auto other = [&](absl::string_view before, absl::string_view now) {
    return FlagError("data", absl::StrCat(before, " as in ", start_->path()), now);
  };
  const auto spelled = state.flags.find("data");
  if (state.data.empty() && spelled != state.flags.end() &&
      KindOfData(spelled->second) != options_.data_kind) {
    return other(KindOfData(spelled->second), options_.data_kind);
  }
  for (const auto& [split, now] : options_.data) {
    const auto found = state.data.find(split);
    if (found == state.data.end()) continue;  // a split that was not used before
    const DataIdentity& before = found->second;
    if (before.what != now.what) return other(before.what, now.what);
    const size_t different = DifferentParts(before, now);
    const size_t parts = now.contents.size() / DataIdentity::kTagBytes;
    if (different == 0) continue;
    // A few files may have been mended or fetched again meanwhile.
    if (2 * different > parts) return other(before.ToString(), now.ToString());
    const int exchanged = ExchangedClasses(before, now);
    if (exchanged > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(other(before.ToString(), now.ToString()).message(), "; in ", exchanged,
                       " classes all files that were looked into are others, as where folders of"
                       " classes are exchanged"));
    }
    Say(absl::StrCat("--data: of ", parts, " files of the ", split,
                     " split that were looked into, ", different, " are not as in ", start_->path(),
                     ": mended, or of classes that were exchanged"));
  }
  return absl::OkStatus();
}

// Weights may be evaluated on any data, but an output stands for the class that it was trained for.
void Checkpointer::SayOfOtherClasses(const JobState& state) const {
  // Of "imagefolder of 6 images in 2 classes (cat, dog), names 1f3a5b7c9d0e2468", or of "cifar10 of 6
  // images in 10 classes, labels 1f3a5b7c9d0e2468": what is between the split's size and its digest.
  const auto classes = [](const DataIdentity& data) {
    const size_t begin = std::min(data.what.find(" in "), data.what.size());
    return data.what.substr(begin, data.what.rfind(", ") - begin);
  };
  if (state.data.empty()) return;
  const DataIdentity& before = state.data.begin()->second;
  for (const auto& [split, now] : options_.data) {
    // Earlier versions' checkpoints have no more than the first names.
    const bool same_names =
        before.classes.empty() || now.classes.empty() || before.classes == now.classes;
    if (classes(now) == classes(before) && same_names) continue;
    return Say(absl::StrCat("--data: ", now.what, ", was ", before.what, " in ", start_->path(),
                            ": outputs may stand for other classes"));
  }
}

// For an evaluation alone, whose other flags need not be the job's: which of them changed the model.
absl::Status Checkpointer::WhyNoFit(const absl::Status& loaded, const JobState& state) const {
  for (const char* const flag :
       {"model", "stem", "classes", "image_size", "gpt_width", "gpt_layers", "gpt_context"}) {
    const auto now = options_.job.find(flag);
    const auto before = state.flags.find(flag);
    if (now == options_.job.end() || before == state.flags.end() || now->second == before->second) {
      continue;
    }
    return FlagError(flag, absl::StrCat("\"", before->second, "\" as in ", start_->path()),
                     now->second);
  }
  return absl::Status(loaded.code(),
                      absl::StrCat("--resume: ", start_->path(), ": ", loaded.message()));
}

absl::Status Checkpointer::LoadWeights(torch::nn::Module& module) {
  if (rank_ != 0) return absl::OkStatus();
  if (!start_.has_value()) {
    if (options_.init_from.empty()) return absl::OkStatus();
    GS_ASSIGN_OR_RETURN(
        const WeightsFound found,
        ReadWeights(options_.init_from, {ShapesOf(module), options_.init_key, options_.init_skip}));
    GS_RETURN_IF_ERROR(LoadStateDict(found.tensors, module, found.left));
    Say(absl::StrCat("weights from ", options_.init_from, found.account.empty() ? "" : ": ",
                     found.account));
    return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(start_state_, start_->Read(*files_, kState));
  GS_ASSIGN_OR_RETURN(const JobState state, DecodeJobState(start_state_, module));
  if (!options_.weights_only) {
    GS_RETURN_IF_ERROR(CheckState(state));
    start_chunk_bytes_ = state.chunk_bytes;
  } else {
    SayOfOtherClasses(state);
  }
  GS_ASSIGN_OR_RETURN(const std::string file, start_->Read(*files_, kWeights));
  GS_ASSIGN_OR_RETURN(const Safetensors weights, DecodeSafetensors(file));
  const absl::Status loaded = LoadStateDict(weights.tensors, module);
  if (!loaded.ok() && options_.weights_only) return WhyNoFit(loaded, state);
  const auto classes = options_.job.find("classes");
  if (loaded.ok() || !state.data.empty() || classes == options_.job.end() ||
      classes->second != "0") {
    return loaded;
  }
  return absl::Status(loaded.code(),
                      absl::StrCat(loaded.message(),
                                   "; if the data has fewer than 10 classes, --classes=10 makes the"
                                   " model that the version had which wrote ",
                                   start_->path()));
}

absl::Status Checkpointer::ShareWeights(const torch::nn::Module& module, SideChannel& ranks,
                                        absl::Duration timeout) const {
  const bool drawn =
      options_.init_from.empty() && options_.resume == CheckpointOptions::Resume::kNone;
  if (drawn || ranks.world_size() == 1) return absl::OkStatus();
  std::vector<NamedParameter> tensors = TrainableParametersOf(module);
  for (NamedParameter& tensor : FrozenParametersOf(module)) tensors.push_back(std::move(tensor));
  for (NamedParameter& tensor : BuffersOf(module)) tensors.push_back(std::move(tensor));
  // Many small tensors at a time, so that a model costs few round trips and little memory.
  for (size_t next = 0; next < tensors.size();) {
    std::vector<NamedParameter> piece;
    size_t bytes = 0;
    do {
      bytes += tensors[next].tensor.nbytes();
      piece.push_back(std::move(tensors[next++]));
    } while (next < tensors.size() && bytes + tensors[next].tensor.nbytes() <= kPieceBytes);
    GS_ASSIGN_OR_RETURN(
        const std::string packed,
        ranks.Broadcast(rank_ == 0 ? PackTensors(piece) : std::string(), Deadline::In(timeout)));
    if (rank_ != 0) GS_RETURN_IF_ERROR(UnpackTensors(packed, piece));
  }
  return absl::OkStatus();
}

// An evaluation alone writes nothing, nor does a job whose last step is in its checkpoint.
bool Checkpointer::Writes() const {
  return !options_.folder.empty() && !options_.weights_only &&
         (!start_.has_value() || start_->step() < steps_);
}

absl::Status Checkpointer::CheckRoom(const torch::nn::Module& module, int slots,
                                     bool average) const {
  if (rank_ != 0 || !Writes()) return absl::OkStatus();
  double weights = 0;
  double elements = 0;
  for (const at::Tensor& buffer : module.buffers()) weights += static_cast<double>(buffer.nbytes());
  for (const at::Tensor& parameter : module.parameters()) {
    weights += static_cast<double>(parameter.nbytes());
    elements += static_cast<double>(parameter.numel());
  }
  const double state = elements * sizeof(float) * slots;
  // Each in two formats.
  const double one = (average ? 4 : 2) * weights + state;
  GS_ASSIGN_OR_RETURN(const FileSystem::Room room, files_->RoomIn(Absolute(options_.folder)));
  if (room.largest_file < std::max(weights, state)) {
    return CannotWrite(options_.folder, absl::ResourceExhaustedError(absl::StrCat(
                                            "a file of ", Megabytes(std::max(weights, state)),
                                            " is needed, this process may write up to ",
                                            Megabytes(room.largest_file), " (ulimit -f)")));
  }
  if (room.free < one) {
    return CannotWrite(options_.folder, absl::ResourceExhaustedError(
                                            absl::StrCat("a checkpoint takes ", Megabytes(one),
                                                         ", ", Megabytes(room.free), " are free")));
  }
  // Those that stay, and a new one before the oldest goes.
  GS_ASSIGN_OR_RETURN(const std::vector<int64_t> there,
                      CheckpointSteps(*files_, Absolute(options_.folder)));
  const int64_t most = options_.every_steps > 0    ? steps_ / options_.every_steps + 1
                       : options_.every_epochs > 0 ? steps_
                                                   : 1;
  const int64_t kept = std::min<int64_t>(most, options_.keep + 1 + options_.best);
  const double more = one * static_cast<double>(kept - static_cast<int64_t>(there.size()));
  if (room.free < more) {
    Say(absl::StrCat(options_.folder, ": ", Megabytes(room.free), " are free, ", kept,
                     " checkpoints of ", Megabytes(one),
                     " may be there at a time; --checkpoint_keep says how many"));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<int64_t>> Checkpointer::EarlierChunkBytes(SideChannel& side_channel,
                                                                        Deadline deadline) const {
  absl::optional<int64_t> chunk_bytes;
  if (options_.resume == CheckpointOptions::Resume::kNone) return chunk_bytes;
  const std::string own =
      start_chunk_bytes_.has_value() ? absl::StrCat(*start_chunk_bytes_) : std::string();
  GS_ASSIGN_OR_RETURN(const std::string text, side_channel.Broadcast(own, deadline));
  if (!text.empty() && !absl::SimpleAtoi(text, &chunk_bytes.emplace())) {
    return absl::DataLossError(absl::StrCat("rank 0: expected a size of chunks, found ", text));
  }
  return chunk_bytes;
}

absl::StatusOr<JobState> Checkpointer::Resume(const torch::nn::Module& module, c10::Device device,
                                              DdpEngine& ddp, GradientSync& sync,
                                              SideChannel& side_channel, Deadline deadline) {
  if (ddp.plan().codec().sparse() && !options_.folder.empty() && !options_.weights_only) {
    GS_RETURN_IF_ERROR(CheckFolderOfAll(side_channel, deadline));
  }
  if (options_.resume == CheckpointOptions::Resume::kNone) return JobState();
  GS_ASSIGN_OR_RETURN(const std::string file, side_channel.Broadcast(start_state_, deadline));
  start_state_.clear();
  if (file.empty()) return JobState();
  GS_ASSIGN_OR_RETURN(JobState state, DecodeJobState(file, module));
  if (options_.weights_only) {
    if (rank_ == 0) Say(absl::StrCat("weights from ", start_->path(), ", of step ", state.step));
    state.optimizer = OptimizerState();
    return state;
  }
  GS_RETURN_IF_ERROR(ddp.ImportState(state.optimizer, deadline, state.skipped_steps));
  if (state.residuals) {
    GS_ASSIGN_OR_RETURN(const std::string path,
                        side_channel.Broadcast(start_.has_value() ? start_->path() : "", deadline));
    GS_RETURN_IF_ERROR(AllOrNone(ImportResiduals(path, sync), side_channel));
  }
  if (rank_ < static_cast<int>(state.random.size())) {
    GS_RETURN_IF_ERROR(SetRandomState(state.random[rank_], device));
  }
  best_step_ = state.best_step;
  best_accuracy_ = state.best_accuracy;
  if (rank_ == 0) {
    if (!options_.folder.empty()) {
      GS_RETURN_IF_ERROR(folder_.RestoreLinks(state.step, state.best_step));
    }
    Say(absl::StrCat("resumed from ", start_->path(), ", after step ", state.step));
  }
  state.optimizer = OptimizerState();  // it may be large
  return state;
}

// The lock's file is what rank 0 has written there.
absl::Status Checkpointer::CheckFolderOfAll(SideChannel& side_channel, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::string path,
                      side_channel.Broadcast(Absolute(options_.folder), deadline));
  const std::string lock = absl::StrCat(path, "/", FolderLock::kFile);
  const absl::StatusOr<std::string> own = files_->Read(lock);
  GS_ASSIGN_OR_RETURN(const std::string of_rank0,
                      side_channel.Broadcast(own.value_or(""), deadline));
  std::string why = own.ok() ? "another folder" : std::string(own.status().message());
  if (own.ok() && *own == of_rank0) why = WhyNotWritable(absl::StrCat(path, "/.probe"));
  const absl::Status status =
      why.empty() ? absl::OkStatus()
                  : absl::InvalidArgumentError(absl::StrCat(
                        "--checkpoint: expected rank 0's folder, to which all workers write with"
                        " --compression=topk, found ",
                        path, ": ", why));
  return AllOrNone(status, side_channel);
}

absl::Status Checkpointer::ImportResiduals(const std::string& path, GradientSync& sync) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(*files_, path);
  absl::StatusOr<std::string> file =
      checkpoint.ok() ? checkpoint->Read(*files_, ResidualsOf(rank_)) : checkpoint.status();
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat("expected to read what compression kept on this rank (with"
                                     " --compression=topk all ranks need to see the checkpoint): ",
                                     file.status().message()));
  }
  GS_ASSIGN_OR_RETURN(const RankState state, DecodeResiduals(*file));
  return sync.ImportRankState(state);
}

bool Checkpointer::Due(const JobPosition& at) const {
  if (options_.folder.empty()) return false;
  if (at.step == steps_) return true;
  if (options_.every_steps > 0) return at.step % options_.every_steps == 0;
  return options_.every_epochs > 0 && at.last_of_epoch &&
         (at.epoch + 1) % options_.every_epochs == 0;
}

absl::Status Checkpointer::Save(const JobPosition& at, JobState state,
                                const absl::optional<Evaluations>& tested,
                                const torch::nn::Module& module, c10::Device device, DdpEngine& ddp,
                                GradientSync& sync, SideChannel& side_channel) {
  const MonotonicTime begin = MonotonicTime::Now();
  const Deadline deadline = Deadline::In(kWriteTimeout);
  GS_RETURN_IF_ERROR(ddp.Settle(deadline));
  GS_ASSIGN_OR_RETURN(state.optimizer, ddp.ExportState(deadline));
  GS_ASSIGN_OR_RETURN(const std::string random, RandomState(device));
  GS_ASSIGN_OR_RETURN(state.random, side_channel.AllGather(random, deadline));
  state.step = at.step;
  state.epoch = at.epoch;
  state.position = at.next_position;
  state.world_size = world_size_;
  state.samples = samples_;
  state.chunk_bytes = ddp.plan().chunk_bytes();
  state.flags = options_.job;
  state.threads = options_.threads;
  state.data = options_.data;
  state.residuals = ddp.plan().codec().sparse();
  const bool is_best = options_.best && tested.has_value() &&
                       (best_step_ == 0 || tested->judged().accuracy > best_accuracy_);
  if (is_best) {
    best_step_ = at.step;
    best_accuracy_ = tested->judged().accuracy;
  }
  state.best_step = best_step_;
  state.best_accuracy = best_accuracy_;

  absl::Status written = rank_ == 0 ? folder_.Begin(at.step) : absl::OkStatus();
  if (state.residuals) {
    GS_RETURN_IF_ERROR(AllOrNone(written, side_channel));
    GS_RETURN_IF_ERROR(SaveResiduals(sync, side_channel));
  }
  GS_ASSIGN_OR_RETURN(std::vector<HostTensor> weights, GatherWeights(module, ddp, deadline));
  if (rank_ == 0) {
    if (written.ok()) written = Write(state, std::move(weights), module);
    if (written.ok() && is_best) folder_.SetBest(at.step);
  }
  GS_RETURN_IF_ERROR(AllOrNone(written, side_channel));
  if (rank_ != 0) return absl::OkStatus();
  std::string line = absl::StrFormat("checkpoint of step %d in %.2f s", at.step,
                                     absl::ToDoubleSeconds(MonotonicTime::Now() - begin));
  if (tested.has_value()) {
    absl::StrAppendFormat(&line, ", accuracy %.2f %%", 100 * tested->judged().accuracy);
    if (tested->average.has_value()) {
      absl::StrAppendFormat(&line, " (model_ema; model %.2f %%)", 100 * tested->weights.accuracy);
    }
    if (is_best) absl::StrAppend(&line, ", best");
  }
  Say(line);
  return absl::OkStatus();
}

// The module's on rank 0, and nothing on the others; collective where owners alone keep them.
absl::StatusOr<std::vector<HostTensor>> Checkpointer::GatherWeights(const torch::nn::Module& module,
                                                                    DdpEngine& ddp,
                                                                    Deadline deadline) const {
  std::vector<HostTensor> tensors;
  if (rank_ == 0) {
    GS_ASSIGN_OR_RETURN(tensors, StateDictOf(module));
  }
  if (!ddp.sharded()) return tensors;
  std::map<std::string, HostTensor*> places;
  for (HostTensor& tensor : tensors) places[tensor.name] = &tensor;
  const auto fill = [&](const std::string& name, const at::Tensor& parameter) -> absl::Status {
    const auto place = places.find(name);
    if (place == places.end()) return absl::OkStatus();
    GS_ASSIGN_OR_RETURN(*place->second, ToHost(name, parameter));
    return absl::OkStatus();
  };
  GS_RETURN_IF_ERROR(ddp.VisitParameters(fill, deadline));
  return tensors;
}

// In both formats.
absl::Status Checkpointer::WriteTensors(absl::string_view name, Safetensors weights) {
  {
    GS_ASSIGN_OR_RETURN(const std::string file, EncodeTorchFile(weights.tensors));
    GS_RETURN_IF_ERROR(folder_.Add(absl::StrCat(name, ".pt"), file));
  }
  weights.metadata["format"] = "pt";  // what readers for PyTorch look for
  GS_ASSIGN_OR_RETURN(const std::string file, EncodeSafetensors(weights));
  return folder_.Add(absl::StrCat(name, ".safetensors"), file);
}

absl::Status Checkpointer::Write(const JobState& state, std::vector<HostTensor> tensors,
                                 const torch::nn::Module& module) {
  // In the order of Python's state_dict().
  std::vector<HostTensor> average;
  for (const HostTensor& tensor : tensors) {
    const auto found = state.average.find(tensor.name);
    if (found == state.average.end()) continue;
    GS_ASSIGN_OR_RETURN(average.emplace_back(), ToHost(tensor.name, found->second));
  }
  GS_RETURN_IF_ERROR(WriteTensors(kModel, {std::move(tensors), {}}));
  if (!average.empty()) GS_RETURN_IF_ERROR(WriteTensors(kAverage, {std::move(average), {}}));
  GS_ASSIGN_OR_RETURN(const std::string file, EncodeJobState(state, module));
  GS_RETURN_IF_ERROR(folder_.Add(kState, file));
  return folder_.Commit();
}

// Each rank writes its own, then rank 0 hears of all.
absl::Status Checkpointer::SaveResiduals(GradientSync& sync, SideChannel& side_channel) {
  const Deadline deadline = Deadline::In(kWriteTimeout);
  GS_ASSIGN_OR_RETURN(const std::string path,
                      side_channel.Broadcast(folder_.PendingPath(), deadline));
  const absl::StatusOr<CheckpointFile> own = WriteResiduals(path, sync);
  GS_RETURN_IF_ERROR(AllOrNone(own.status(), side_channel));
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      side_channel.AllGather(absl::StrCat(own->bytes, " ", own->sha256), deadline));
  for (int rank = 0; rank_ == 0 && rank < world_size_; ++rank) {
    const std::vector<std::string> parts = absl::StrSplit(all[rank], ' ');
    CheckpointFile file;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &file.bytes)) {
      return absl::DataLossError(
          absl::StrCat(side_channel.Name(rank), ": expected a file, found ", all[rank]));
    }
    file.sha256 = parts[1];
    folder_.AddWritten(ResidualsOf(rank), file);
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointFile> Checkpointer::WriteResiduals(const std::string& folder,
                                                            GradientSync& sync) {
  GS_ASSIGN_OR_RETURN(const RankState state, sync.ExportRankState());
  GS_ASSIGN_OR_RETURN(const std::string file, EncodeResiduals(state));
  absl::StatusOr<CheckpointFile> written =
      WriteCheckpointFile(*files_, absl::StrCat(folder, "/", ResidualsOf(rank_)), file);
  if (written.ok()) return written;
  return absl::Status(written.status().code(),
                      absl::StrCat("with --compression=topk all ranks write to --checkpoint: ",
                                   written.status().message()));
}

}  // namespace gradsync
