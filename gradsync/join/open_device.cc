#include "gradsync/join/open_device.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

struct Choice {
  bool gpu = false;
  bool or_cpu = false;
  absl::optional<int> number;  // as given; none: that of the local rank
};

absl::StatusOr<Choice> Parse(const std::string& device) {
  if (device == "cpu") return Choice();
  if (device == "cuda") return Choice{true, false, absl::nullopt};
  if (device == "auto") return Choice{true, true, absl::nullopt};
  absl::string_view digits = device;
  int number = 0;
  if (absl::ConsumePrefix(&digits, "cuda:") && !digits.empty() &&
      digits.find_first_not_of("0123456789") == digits.npos && absl::SimpleAtoi(digits, &number)) {
    return Choice{true, false, number};
  }
  return FlagError("device", "cpu, cuda, cuda:N or auto", device);
}

// No GPU for one that would rather have the CPU than an error.
bool TakesCpu(const Choice& choice, const absl::Status& status) {
  return choice.or_cpu && (absl::IsFailedPrecondition(status) || absl::IsNotFound(status));
}

absl::Status NamingFlag(const std::string& device, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("--device=", device, ": ", status.message()));
}

}  // namespace

absl::Status ValidateDevice(const DeviceOptions& options) { return Parse(options.device).status(); }

absl::StatusOr<std::shared_ptr<GpuApi>> OpenDevice(const DeviceOptions& options, int world_size,
                                                   const GpuOpener& open) {
  GS_ASSIGN_OR_RETURN(const Choice choice, Parse(options.device));
  if (!choice.gpu) return std::shared_ptr<GpuApi>();
  const bool told = choice.number.has_value() || options.local_rank.has_value() || world_size == 1;
  const int number = choice.number.value_or(options.local_rank.value_or(0));
  const absl::StatusOr<std::shared_ptr<GpuApi>> gpu = open(number);
  if (gpu.ok() && !told) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device=", options.device,
                     ": expected --local_rank, or a launcher that says which of the "
                     "workers of its host this one is, or --device=cuda:N, found none"));
  }
  if (gpu.ok()) return gpu;
  if (TakesCpu(choice, gpu.status())) return std::shared_ptr<GpuApi>();
  return NamingFlag(options.device, gpu.status());
}

absl::StatusOr<std::string> ChooseDevice(const std::string& device, int workers,
                                         const GpuChecker& check) {
  GS_ASSIGN_OR_RETURN(const Choice choice, Parse(device));
  if (!choice.gpu) return "cpu";
  const absl::Status status = check(choice.number.value_or(workers - 1));
  if (status.ok()) return choice.number.has_value() ? device : "cuda";
  if (TakesCpu(choice, status)) return "cpu";
  return NamingFlag(device, status);
}

std::string DescribeDevice(const GpuApi* gpu) {
  if (gpu == nullptr) return "cpu";
  return absl::StrCat(gpu->is_cuda() ? "cuda:" : "fake:", gpu->device(), " (", gpu->name(), ")");
}

}  // namespace gradsync
