#ifndef GRADSYNC_WORKER_DATA_DECODE_JPEG_H_
#define GRADSYNC_WORKER_DATA_DECODE_JPEG_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/rgb_image.h"

namespace gradsync {

// Whether these are the first bytes of a JPEG. Thread-safe.
bool IsJpeg(absl::string_view file);

// decode_image.h for one kind.
absl::StatusOr<ImageSize> ReadJpegSize(absl::string_view file);
absl::StatusOr<DecodedImage> DecodeJpeg(absl::string_view file, const DecodeOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_DECODE_JPEG_H_
