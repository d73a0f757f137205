#include "data/decode_image.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "data/decode_jpeg.h"
#include "data/decode_png.h"

namespace gradsync {
namespace {

// 1 GiB in three bytes a pixel, and twice that in six.
constexpr int64_t kMostPixels = 178956970;

absl::Status NeitherKind() { return absl::DataLossError("is neither a JPEG nor a PNG"); }

}  // namespace

absl::StatusOr<ImageSize> ReadImageSize(absl::string_view file) {
  if (!IsJpeg(file) && !IsPng(file)) return NeitherKind();
  GS_ASSIGN_OR_RETURN(const ImageSize size, IsJpeg(file) ? ReadJpegSize(file) : ReadPngSize(file));
  if (int64_t{size.width} * size.height > kMostPixels) {
    return absl::DataLossError(absl::StrCat("is ", size.width, "x", size.height,
                                            " pixels large: expected at most ", kMostPixels));
  }
  return size;
}

absl::StatusOr<DecodedImage> DecodeImage(absl::string_view file, const DecodeOptions& options) {
  GS_RETURN_IF_ERROR(ReadImageSize(file).status());
  return IsJpeg(file) ? DecodeJpeg(file, options) : DecodePng(file, options);
}

}  // namespace gradsync
