// From the bytes of a JPEG or PNG file to pixels, as Python's Pillow has them after
// convert("RGB"), which is what torchvision's image folders give.
//
// The kind is told by the first bytes, whatever the file is called. Grey images become red, green
// and blue of equal value; CMYK is taken as Adobe writes it, inverted; what is transparent is
// painted as it is stored; of 16 bits the upper 8 are taken. EXIF's orientation and colour profiles
// are ignored. A 16-bit grey PNG is refused: Pillow makes white of nearly all of it.

#ifndef GRADSYNC_WORKER_DATA_DECODE_IMAGE_H_
#define GRADSYNC_WORKER_DATA_DECODE_IMAGE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/rgb_image.h"

namespace gradsync {

// The width and height that `file` says it has. Thread-safe; does not block.
//
// Errors: DATA_LOSS, with a reason that does not name the file, if the bytes are neither a JPEG nor
// a PNG, or damaged, or say more than 178 million pixels (where Pillow refuses too).
absl::StatusOr<ImageSize> ReadImageSize(absl::string_view file);

// Thread-safe; does not block. Errors: those of ReadImageSize(), and DATA_LOSS for a file that ends
// early or whose data make no sense, as far as it was decoded. What libjpeg only warns of is no
// error (DecodedImage::warning).
absl::StatusOr<DecodedImage> DecodeImage(absl::string_view file, const DecodeOptions& options);

// Whether these are the first bytes of a JPEG. Thread-safe.
bool IsJpeg(absl::string_view file);

// As those of any image, above.
absl::StatusOr<ImageSize> ReadJpegSize(absl::string_view file);
absl::StatusOr<DecodedImage> DecodeJpeg(absl::string_view file, const DecodeOptions& options);

// Whether these are the first bytes of a PNG. Thread-safe.
bool IsPng(absl::string_view file);

// As those of any image, above.
absl::StatusOr<ImageSize> ReadPngSize(absl::string_view file);
absl::StatusOr<DecodedImage> DecodePng(absl::string_view file, const DecodeOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_DECODE_IMAGE_H_
