#include <csetjmp>
#include <cstddef>
#include <cstdio>

#include "worker/data/decode_image.h"
// libjpeg's header needs size_t and FILE before it.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

// libjpeg says first of itself, so that OnError() finds the rest.
struct ErrorHandler {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
  char warning[JMSG_LENGTH_MAX];  // the first one
};

[[noreturn]] void OnError(j_common_ptr info) {
  auto* handler = reinterpret_cast<ErrorHandler*>(info->err);
  info->err->format_message(info, handler->message);
  std::longjmp(handler->jump, 1);
}

// Warnings are of bytes that make no sense, behind which libjpeg goes on: the image is then what
// Pillow and torchvision get, who hear no warning. But a file that ends early is an error to them.
void OnMessage(j_common_ptr info, int level) {
  if (level >= 0) return;
  if (info->err->msg_code == JWRN_JPEG_EOF) OnError(info);
  auto* handler = reinterpret_cast<ErrorHandler*>(info->err);
  if (handler->warning[0] == 0) info->err->format_message(info, handler->warning);
}

// The product of two bytes as parts of 255, rounded to the nearest, as Pillow computes it.
int Multiply(int a, int b) {
  const int product = a * b + 128;
  return (product + (product >> 8)) >> 8;
}

// Adobe's CMYK, in which 255 is no ink.
void FromInvertedCmyk(const uint8_t* cmyk, int pixels, uint8_t* rgb) {
  for (int i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    for (int c = 0; c < 3; ++c) {
      const int white = cmyk[3];
      rgb[c] = static_cast<uint8_t>(std::clamp(white - Multiply(255 - cmyk[c], white), 0, 255));
    }
  }
}

// An error inside libjpeg ends in a jump out of it, over no object that must be destroyed: what is
// allocated meanwhile belongs to this class. Each method that calls libjpeg is false after one.
class Decoder {
 public:
  explicit Decoder(absl::string_view file) : bytes_(file.size()) {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = OnError;
    errors_.base.emit_message = OnMessage;
    errors_.message[0] = errors_.warning[0] = 0;
    if (setjmp(errors_.jump) != 0) return;
    jpeg_create_decompress(&info_);
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(file.data()),
                 static_cast<unsigned long>(file.size()));
  }
  ~Decoder() { jpeg_destroy_decompress(&info_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  bool ReadHeader() {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_read_header(&info_, TRUE);
    return true;
  }

  bool Start(const DecodeOptions& options) {
    if (setjmp(errors_.jump) != 0) return false;
    info_.scale_num = static_cast<unsigned>(options.eighths);
    info_.scale_denom = 8;
    const bool inks = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = inks ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&info_);
    return true;
  }

  // After Start(). `image` has its size, and as many rows as are wanted.
  bool ReadRows(RgbImage* image) {
    const bool inks = info_.out_color_space == JCS_CMYK;
    if (inks) inks_.resize(size_t{4} * info_.output_width);
    if (setjmp(errors_.jump) != 0) return false;
    while (info_.output_scanline < static_cast<unsigned>(image->height)) {
      uint8_t* const row = image->row(static_cast<int>(info_.output_scanline));
      JSAMPROW out = inks ? inks_.data() : row;
      if (jpeg_read_scanlines(&info_, &out, 1) == 1 && inks) {
        FromInvertedCmyk(inks_.data(), image->width, row);
      }
    }
    return true;
  }

  const jpeg_decompress_struct& info() const { return info_; }
  const char* warning() const { return errors_.warning; }

  absl::Status error() const {
    // At the end libjpeg reads two bytes of its own.
    const size_t left = info_.src == nullptr ? bytes_ : info_.src->bytes_in_buffer;
    return absl::DataLossError(absl::StrCat("is a damaged JPEG: ", errors_.message,
                                            ", before byte ", bytes_ - std::min(left, bytes_)));
  }

 private:
  const size_t bytes_;
  ErrorHandler errors_;
  jpeg_decompress_struct info_ = {};
  std::vector<uint8_t> inks_;
};

}  // namespace

bool IsJpeg(absl::string_view file) { return file.substr(0, 3) == "\xff\xd8\xff"; }

absl::StatusOr<ImageSize> ReadJpegSize(absl::string_view file) {
  Decoder decoder(file);
  if (!decoder.ReadHeader()) return decoder.error();
  return ImageSize{static_cast<int>(decoder.info().image_width),
                   static_cast<int>(decoder.info().image_height)};
}

absl::StatusOr<DecodedImage> DecodeJpeg(absl::string_view file, const DecodeOptions& options) {
  Decoder decoder(file);
  if (!decoder.ReadHeader() || !decoder.Start(options)) return decoder.error();
  DecodedImage decoded;
  decoded.eighths = options.eighths;
  RgbImage& image = decoded.image;
  image.width = static_cast<int>(decoder.info().output_width);
  image.height = static_cast<int>(decoder.info().output_height);
  if (options.rows > 0) {
    image.height = std::min(image.height, (options.rows * options.eighths + 7) / 8);
  }
  image.pixels.resize(int64_t{3} * image.width * image.height);
  if (!decoder.ReadRows(&image)) return decoder.error();
  decoded.warning = decoder.warning();
  return decoded;
}

}  // namespace gradsync
