#include "worker/train/job_state.h"

#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_strided.h"
#include "ATen/ops/from_blob.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "core/base/status_macros.h"
#include "worker/checkpoint/file_formats.h"
#include "worker/checkpoint/host_tensor.h"
#include "worker/checkpoint/read_weights.h"

namespace gradsync {
namespace {

constexpr std::pair<StoredType, at::ScalarType> kTypes[] = {
    {StoredType::kFloat64, at::kDouble}, {StoredType::kFloat32, at::kFloat},
    {StoredType::kFloat16, at::kHalf},   {StoredType::kBfloat16, at::kBFloat16},
    {StoredType::kInt64, at::kLong},     {StoredType::kInt32, at::kInt},
    {StoredType::kInt16, at::kShort},    {StoredType::kInt8, at::kChar},
    {StoredType::kUint8, at::kByte},     {StoredType::kBool, at::kBool},
};

at::ScalarType ScalarTypeOf(StoredType type) {
  for (const auto& [element, scalar] : kTypes) {
    if (element == type) return scalar;
  }
  return at::kFloat;
}

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

std::vector<NamedTensor> TensorsOf(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& path, const torch::nn::Module& one) {
    const std::string prefix = path.empty() ? "" : absl::StrCat(path, ".");
    for (const auto& item : one.named_parameters(/*recurse=*/false)) {
      tensors.push_back({prefix + item.key(), item.value()});
    }
    for (const auto& item : one.named_buffers(/*recurse=*/false)) {
      tensors.push_back({prefix + item.key(), item.value()});
    }
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add(item.key(), *item.value());
  }
  return tensors;
}

constexpr char kVersion[] = "gradsync_job_state";
constexpr char kVersionNumber[] = "1";
constexpr char kFlag[] = "flag.";
constexpr char kData[] = "data.";
constexpr char kContents[] = ".contents";
constexpr char kClasses[] = ".classes";
constexpr char kOptimizer[] = "optimizer/";
constexpr char kRandom[] = "random/";
constexpr char kAverage[] = "average/";

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("a job's state: ", absl::CHexEscape(what.substr(0, 200))));
}

// Exact, and read back by strtod.
std::string Exact(double value) { return absl::StrFormat("%.17g", value); }

// Parameters by name; undefined for other names.
class Parameters {
 public:
  explicit Parameters(const torch::nn::Module& module) {
    for (const auto& item : module.named_parameters()) tensors_[item.key()] = item.value();
  }

  at::Tensor Find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? at::Tensor() : found->second;
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

// The elements come in the memory order of the parameter; files have row-major order.
absl::StatusOr<HostTensor> EncodeSlot(const std::string& name, const at::Tensor& parameter,
                                      const std::vector<float>& values) {
  float* const data = const_cast<float*>(values.data());
  if (!parameter.defined() || parameter.numel() != static_cast<int64_t>(values.size())) {
    return ToHost(name, at::from_blob(data, {static_cast<int64_t>(values.size())}, at::kFloat));
  }
  return ToHost(name, at::from_blob(data, parameter.sizes(), parameter.strides(), at::kFloat));
}

std::vector<float> DecodeSlot(const HostTensor& host, const at::Tensor& parameter) {
  at::Tensor tensor = FromHost(host);
  if (parameter.defined() && parameter.sizes() == tensor.sizes()) {
    const at::Tensor laid =
        at::empty_strided(parameter.sizes(), parameter.strides(), at::TensorOptions(at::kFloat));
    tensor = laid.copy_(tensor);
  }
  const float* const values = tensor.data_ptr<float>();
  return std::vector<float>(values, values + tensor.numel());
}

// Reads metadata; the first that is missing or no number is the error.
class Reader {
 public:
  explicit Reader(const std::map<std::string, std::string>& metadata) : metadata_(metadata) {}

  bool Has(const std::string& name) const { return metadata_.count(name) > 0; }

  void Read(const std::string& name, int64_t* value) {
    Read(name, value, absl::SimpleAtoi<int64_t>);
  }
  void Read(const std::string& name, double* value) { Read(name, value, absl::SimpleAtod); }

  const absl::Status& status() const { return status_; }

 private:
  template <typename T, typename Parse>
  void Read(const std::string& name, T* value, Parse parse) {
    const auto found = metadata_.find(name);
    if (found != metadata_.end() && parse(found->second, value)) return;
    if (status_.ok()) status_ = Damaged(absl::StrCat("no number ", name));
  }

  const std::map<std::string, std::string>& metadata_;
  absl::Status status_;
};

std::map<std::string, std::string> EncodeNumbers(const JobState& state) {
  std::map<std::string, std::string> metadata = {
      {kVersion, kVersionNumber},
      {"step", absl::StrCat(state.step)},
      {"epoch", absl::StrCat(state.epoch)},
      {"position", absl::StrCat(state.position)},
      {"skipped_steps", absl::StrCat(state.skipped_steps)},
      {"optimizer_step", absl::StrCat(state.optimizer.step)},
      {"average_updates", absl::StrCat(state.average_updates)},
      {"world_size", absl::StrCat(state.world_size)},
      {"residuals", absl::StrCat(state.residuals ? 1 : 0)},
      {"best_step", absl::StrCat(state.best_step)},
      {"best_accuracy", Exact(state.best_accuracy)},
  };
  if (state.loss_scaler.has_value()) {
    metadata["loss_scale"] = Exact(state.loss_scaler->scale);
    metadata["loss_scale_good_steps"] = absl::StrCat(state.loss_scaler->good_steps);
  }
  if (state.samples > 0) metadata["samples"] = absl::StrCat(state.samples);
  if (state.threads > 0) metadata["threads"] = absl::StrCat(state.threads);
  if (state.chunk_bytes.has_value()) metadata["chunk_bytes"] = absl::StrCat(*state.chunk_bytes);
  for (const auto& [flag, value] : state.flags) metadata[absl::StrCat(kFlag, flag)] = value;
  for (const auto& [split, identity] : state.data) {
    metadata[absl::StrCat(kData, split)] = identity.what;
    metadata[absl::StrCat(kData, split, kContents)] = identity.contents;
    if (!identity.classes.empty()) {
      metadata[absl::StrCat(kData, split, kClasses)] = identity.classes;
    }
  }
  return metadata;
}

absl::Status DecodeNumbers(const std::map<std::string, std::string>& metadata, JobState* state) {
  const auto version = metadata.find(kVersion);
  if (version == metadata.end() || version->second != kVersionNumber) {
    return Damaged(absl::StrCat("expected version ", kVersionNumber));
  }
  Reader reader(metadata);
  int64_t world_size = 0, residuals = 0, threads = 0;
  reader.Read("step", &state->step);
  reader.Read("epoch", &state->epoch);
  reader.Read("position", &state->position);
  reader.Read("skipped_steps", &state->skipped_steps);
  reader.Read("optimizer_step", &state->optimizer.step);
  reader.Read("average_updates", &state->average_updates);
  reader.Read("world_size", &world_size);
  reader.Read("residuals", &residuals);
  reader.Read("best_step", &state->best_step);
  reader.Read("best_accuracy", &state->best_accuracy);
  if (reader.Has("loss_scale")) {
    state->loss_scaler.emplace();
    reader.Read("loss_scale", &state->loss_scaler->scale);
    reader.Read("loss_scale_good_steps", &state->loss_scaler->good_steps);
  }
  if (reader.Has("samples")) reader.Read("samples", &state->samples);
  if (reader.Has("threads")) reader.Read("threads", &threads);
  if (reader.Has("chunk_bytes")) {
    state->chunk_bytes.emplace();
    reader.Read("chunk_bytes", &*state->chunk_bytes);
  }
  state->world_size = static_cast<int>(world_size);
  state->residuals = residuals != 0;
  state->threads = static_cast<int>(threads);
  for (const auto& [key, value] : metadata) {
    absl::string_view flag = key;
    if (absl::ConsumePrefix(&flag, kFlag)) state->flags[std::string(flag)] = value;
    absl::string_view split = key;
    if (!absl::ConsumePrefix(&split, kData)) continue;
    if (absl::ConsumeSuffix(&split, kContents)) {
      state->data[std::string(split)].contents = value;
    } else if (absl::ConsumeSuffix(&split, kClasses)) {
      state->data[std::string(split)].classes = value;
    } else {
      state->data[std::string(split)].what = value;
    }
  }
  return reader.status();
}

std::vector<c10::Device> GeneratorsOf(c10::Device device) {
  std::vector<c10::Device> devices = {c10::Device(c10::kCPU)};
  if (!device.is_cpu()) devices.push_back(device);
  return devices;
}

}  // namespace

absl::StatusOr<HostTensor> ToHost(const std::string& name, const at::Tensor& tensor) {
  absl::optional<StoredType> type;
  for (const auto& [element, scalar] : kTypes) {
    if (scalar == tensor.scalar_type()) type = element;
  }
  if (!type.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": no file has the type ",
                                                   c10::toString(tensor.scalar_type())));
  }
  HostTensor host;
  host.name = name;
  host.type = *type;
  host.sizes = tensor.sizes().vec();
  try {
    const at::Tensor there = tensor.detach().to(at::kCPU).contiguous();
    if (there.nbytes() > 0) {
      host.data.assign(static_cast<const char*>(there.data_ptr()), there.nbytes());
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("copying ", name, ": LibTorch: ", e.what()));
  }
  return host;
}

at::Tensor FromHost(const HostTensor& host) {
  const at::Tensor tensor = at::empty(host.sizes, ScalarTypeOf(host.type));
  if (!host.data.empty()) std::memcpy(tensor.data_ptr(), host.data.data(), host.data.size());
  return tensor;
}

absl::StatusOr<std::vector<HostTensor>> StateDictOf(const torch::nn::Module& module) {
  std::vector<HostTensor> tensors;
  for (const NamedTensor& named : TensorsOf(module)) {
    GS_ASSIGN_OR_RETURN(HostTensor tensor, ToHost(named.name, named.tensor));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<TensorShape> ShapesOf(const torch::nn::Module& module) {
  std::vector<TensorShape> shapes;
  for (const NamedTensor& named : TensorsOf(module)) {
    shapes.push_back({named.name, named.tensor.sizes().vec()});
  }
  return shapes;
}

absl::Status LoadStateDict(const std::vector<HostTensor>& tensors, torch::nn::Module& module,
                           const std::vector<std::string>& left) {
  const std::set<std::string> untouched(left.begin(), left.end());
  std::map<std::string, at::Tensor> wanted;
  std::vector<TensorShape> shapes;
  for (const NamedTensor& want : TensorsOf(module)) {
    if (untouched.count(want.name) > 0) continue;
    wanted[want.name] = want.tensor;
    shapes.push_back({want.name, want.tensor.sizes().vec()});
  }
  std::map<std::string, std::vector<int64_t>> found;
  for (const HostTensor& tensor : tensors) found[tensor.name] = tensor.sizes;
  GS_RETURN_IF_ERROR(CompareShapes(shapes, found));
  try {
    for (const HostTensor& tensor : tensors) {
      wanted[tensor.name].detach().copy_(FromHost(tensor));
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("loading weights: LibTorch: ", e.what()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> EncodeJobState(const JobState& state, const torch::nn::Module& module) {
  Safetensors content;
  content.metadata = EncodeNumbers(state);
  const Parameters parameters(module);
  for (const auto& [name, slots] : state.optimizer.slots) {
    for (const auto& [slot, values] : slots) {
      GS_ASSIGN_OR_RETURN(HostTensor tensor, EncodeSlot(absl::StrCat(kOptimizer, slot, "/", name),
                                                        parameters.Find(name), values));
      content.tensors.push_back(std::move(tensor));
    }
  }
  for (const auto& [name, average] : state.average) {
    GS_ASSIGN_OR_RETURN(HostTensor tensor, ToHost(absl::StrCat(kAverage, name), average));
    content.tensors.push_back(std::move(tensor));
  }
  for (size_t rank = 0; rank < state.random.size(); ++rank) {
    HostTensor tensor;
    tensor.name = absl::StrCat(kRandom, rank);
    tensor.type = StoredType::kUint8;
    tensor.sizes = {static_cast<int64_t>(state.random[rank].size())};
    tensor.data = state.random[rank];
    content.tensors.push_back(std::move(tensor));
  }
  return EncodeSafetensors(content);
}

absl::StatusOr<JobState> DecodeJobState(absl::string_view file, const torch::nn::Module& module) {
  GS_ASSIGN_OR_RETURN(const Safetensors content, DecodeSafetensors(file));
  JobState state;
  GS_RETURN_IF_ERROR(DecodeNumbers(content.metadata, &state));
  const Parameters parameters(module);
  std::map<size_t, std::string> random;
  for (const HostTensor& tensor : content.tensors) {
    absl::string_view rest = tensor.name;
    size_t rank = 0;
    if (absl::ConsumePrefix(&rest, kOptimizer)) {
      const size_t end = rest.find('/');
      if (end == absl::string_view::npos || tensor.type != StoredType::kFloat32) {
        return Damaged(tensor.name);
      }
      const std::string name(rest.substr(end + 1));
      state.optimizer.slots[name][std::string(rest.substr(0, end))] =
          DecodeSlot(tensor, parameters.Find(name));
    } else if (absl::ConsumePrefix(&rest, kAverage)) {
      state.average[std::string(rest)] = FromHost(tensor);
    } else if (absl::ConsumePrefix(&rest, kRandom) && absl::SimpleAtoi(rest, &rank)) {
      random[rank] = tensor.data;
    } else {
      return Damaged(tensor.name);
    }
  }
  for (auto& [rank, bytes] : random) {
    if (rank != state.random.size()) return Damaged("random states of other ranks");
    state.random.push_back(std::move(bytes));
  }
  return state;
}

absl::StatusOr<std::string> RandomState(c10::Device device) {
  std::string state;
  try {
    for (c10::Device each : GeneratorsOf(device)) {
      at::Generator generator = at::globalContext().defaultGenerator(each);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      const at::Tensor bytes = generator.get_state();
      const uint64_t size = bytes.nbytes();
      state.append(reinterpret_cast<const char*>(&size), sizeof(size));
      state.append(static_cast<const char*>(bytes.data_ptr()), size);
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("random state: LibTorch: ", e.what()));
  }
  return state;
}

absl::Status SetRandomState(absl::string_view state, c10::Device device) {
  try {
    for (c10::Device each : GeneratorsOf(device)) {
      if (state.empty() && !each.is_cpu()) break;  // the job was on a CPU before
      uint64_t size = 0;
      if (state.size() < sizeof(size)) return Damaged("its random state is cut off");
      std::memcpy(&size, state.data(), sizeof(size));
      state.remove_prefix(sizeof(size));
      if (state.size() < size) return Damaged("its random state is cut off");
      const at::Tensor bytes = at::empty({static_cast<int64_t>(size)}, at::kByte);
      if (size > 0) std::memcpy(bytes.data_ptr(), state.data(), size);
      state.remove_prefix(size);
      at::Generator generator = at::globalContext().defaultGenerator(each);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(bytes);
    }
  } catch (const std::exception& e) {
    return Damaged(absl::StrCat("random state: LibTorch: ", e.what()));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
