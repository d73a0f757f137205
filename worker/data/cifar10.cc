#include "worker/data/cifar10.h"

#include <sys/stat.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/program/regular_file.h"

namespace gradsync {
namespace {

constexpr int64_t kRecordBytes = 1 + 3072;
constexpr int64_t kRecordsPerFile = 10000;
constexpr int64_t kFileBytes = kRecordBytes * kRecordsPerFile;

std::vector<std::string> FileNames(Split split) {
  if (split == Split::kTest) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
          "data_batch_5.bin"};
}

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

absl::Status WrongSize(const std::string& path, int64_t found) {
  return absl::DataLossError(absl::StrCat("CIFAR-10 file ", path, " is damaged: expected ",
                                          kFileBytes, " bytes, found ", found,
                                          "; fetch it again with tools/get_cifar10"));
}

absl::Status CannotRead(const std::string& path, const absl::Status& why) {
  const bool irregular = absl::IsInvalidArgument(why) || absl::IsFailedPrecondition(why);
  return absl::Status(irregular ? absl::StatusCode::kDataLoss : why.code(),
                      absl::StrCat("CIFAR-10 file ", path, " cannot be read: ", why.message()));
}

// Reads exactly kFileBytes into `out`.
absl::Status ReadRecords(const std::string& path, uint8_t* out) {
  absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::NotFoundError(absl::StrCat("CIFAR-10 file ", path, " does not exist: expected ",
                                            kFileBytes,
                                            " bytes; tools/get_cifar10 DIR fetches the dataset"));
  }
  if (!file.ok()) return CannotRead(path, file.status());
  if (file->size() != kFileBytes) return WrongSize(path, file->size());
  const absl::StatusOr<int64_t> read = file->Read(reinterpret_cast<char*>(out), kFileBytes);
  if (!read.ok()) return CannotRead(path, read.status());
  return *read == kFileBytes ? absl::OkStatus() : WrongSize(path, *read);
}

absl::Status CheckLabels(const std::string& path, const uint8_t* records) {
  for (int64_t i = 0; i < kRecordsPerFile; ++i) {
    const int label = records[i * kRecordBytes];
    if (label > 9) {
      return absl::DataLossError(absl::StrCat("CIFAR-10 file ", path, " is damaged: record ", i,
                                              " has label ", label, " at byte ", i * kRecordBytes,
                                              ", expected 0 to 9"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cifar10>> Cifar10::Open(absl::string_view directory, Split split) {
  std::string root(directory);
  if (!Exists(root)) {
    return absl::NotFoundError(
        absl::StrCat("CIFAR-10 directory ", root.empty() ? "''" : root,
                     " does not exist; tools/get_cifar10 DIR fetches the dataset"));
  }
  const std::vector<std::string> names = FileNames(split);
  const std::string nested = absl::StrCat(root, "/cifar-10-batches-bin");
  if (!Exists(absl::StrCat(root, "/", names[0])) && Exists(nested)) root = nested;

  std::vector<uint8_t> records(names.size() * kFileBytes);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string path = absl::StrCat(root, "/", names[i]);
    uint8_t* out = &records[i * kFileBytes];
    GS_RETURN_IF_ERROR(ReadRecords(path, out));
    GS_RETURN_IF_ERROR(CheckLabels(path, out));
  }
  return std::unique_ptr<Cifar10>(new Cifar10(std::move(records)));
}

int64_t Cifar10::size() const { return static_cast<int64_t>(records_.size()) / kRecordBytes; }

absl::StatusOr<ImageExample> Cifar10::Get(int64_t index, absl::Span<uint8_t> /*scratch*/) const {
  const uint8_t* record = &records_[index * kRecordBytes];
  return ImageExample{record + 1, record[0]};
}

DataIdentity Cifar10::identity() const {
  std::string labels;
  for (int64_t i = 0; i < size(); ++i) labels += static_cast<char>(records_[i * kRecordBytes]);
  DataIdentity identity;
  identity.what = absl::StrCat("cifar10 of ", size(), " images in ", classes(), " classes, labels ",
                               Sha256Hex(labels).substr(0, 16));
  identity.contents = SampledTag({reinterpret_cast<const char*>(records_.data()), records_.size()});
  return identity;
}

}  // namespace gradsync
