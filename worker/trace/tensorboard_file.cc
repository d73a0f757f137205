#include "worker/trace/tensorboard_file.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "proto/tensorboard_event.pb.h"

namespace gradsync {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

double Now() { return 1e-9 * static_cast<double>(absl::ToUnixNanos(absl::Now())); }

template <typename Int>
std::string LittleEndian(Int value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(value); ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// So that the checksum of bytes with a checksum in them is nothing special.
std::string MaskedChecksum(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return LittleEndian(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 255];
  return ~crc;
}

absl::StatusOr<std::unique_ptr<TensorboardFile>> TensorboardFile::Create(
    const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("making the folder ", folder));
  }
  char host[256] = "host";
  gethostname(host, sizeof(host) - 1);
  const std::string path =
      absl::StrFormat("%s/events.out.tfevents.%010d.%s.%d", folder,
                      absl::ToUnixSeconds(absl::Now()), host, static_cast<int>(getpid()));
  std::FILE* const file = std::fopen(path.c_str(), "wbx");
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("creating ", path));
  std::unique_ptr<TensorboardFile> events(new TensorboardFile(path, file));
  tensorboard::Event version;
  version.set_wall_time(Now());
  version.set_file_version("brain.Event:2");
  GS_RETURN_IF_ERROR(events->Write(version.SerializeAsString()));
  return events;
}

TensorboardFile::~TensorboardFile() { std::fclose(file_); }

absl::Status TensorboardFile::Begin(int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(Now());
  event.set_step(step);
  event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  return Write(event.SerializeAsString());
}

absl::Status TensorboardFile::Add(int64_t step,
                                  const std::vector<std::pair<std::string, double>>& scalars) {
  tensorboard::Event event;
  event.set_wall_time(Now());
  event.set_step(step);
  for (const auto& [tag, value] : scalars) {
    tensorboard::Summary::Value& scalar = *event.mutable_summary()->add_value();
    scalar.set_tag(tag);
    scalar.set_simple_value(static_cast<float>(value));
  }
  return Write(event.SerializeAsString());
}

absl::Status TensorboardFile::Write(const std::string& event) {
  const std::string length = LittleEndian(static_cast<uint64_t>(event.size()));
  const std::string record =
      absl::StrCat(length, MaskedChecksum(length), event, MaskedChecksum(event));
  if (std::fwrite(record.data(), 1, record.size(), file_) == record.size() &&
      std::fflush(file_) == 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("writing ", path_, ": ", std::strerror(errno)));
}

}  // namespace gradsync
