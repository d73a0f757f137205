#include "worker/data/decode_image.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// 1 GiB in three bytes a pixel, and twice that in six.
constexpr int64_t kMostPixels = 178956970;

// What else a file may be that somebody gave an image's name.
absl::string_view OtherKind(absl::string_view file) {
  if (file.empty()) return ", it is empty";
  if (absl::StartsWith(file, "GIF8")) return " but a GIF";
  if (absl::StartsWith(file, "RIFF") && absl::ClippedSubstr(file, 8, 4) == "WEBP")
    return " but a WebP image";
  if (absl::StartsWith(file, "BM")) return " but a BMP image";
  if (absl::StartsWith(file, "II*") || absl::StartsWith(file, "MM")) return " but a TIFF image";
  if (absl::StartsWith(file, absl::string_view("\0\5\x16\7", 4))) {
    return " but an AppleDouble file, which macOS leaves beside others";
  }
  if (absl::ClippedSubstr(file, 4, 4) == "ftyp") return " but an AVIF or HEIF image, or a film";
  if (absl::StripLeadingAsciiWhitespace(file).substr(0, 1) == "<") return " but HTML or XML";
  return "";
}

absl::Status NeitherKind(absl::string_view file) {
  return absl::DataLossError(absl::StrCat("is neither a JPEG nor a PNG", OtherKind(file)));
}

}  // namespace

absl::StatusOr<ImageSize> ReadImageSize(absl::string_view file) {
  if (!IsJpeg(file) && !IsPng(file)) return NeitherKind(file);
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
