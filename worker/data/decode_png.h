#ifndef GRADSYNC_WORKER_DATA_DECODE_PNG_H_
#define GRADSYNC_WORKER_DATA_DECODE_PNG_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/rgb_image.h"

namespace gradsync {

// Whether these are the first bytes of a PNG. Thread-safe.
bool IsPng(absl::string_view file);

// decode_image.h for one kind.
absl::StatusOr<ImageSize> ReadPngSize(absl::string_view file);
absl::StatusOr<DecodedImage> DecodePng(absl::string_view file, const DecodeOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_DECODE_PNG_H_
