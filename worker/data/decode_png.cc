#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/data/decode_image.h"

namespace gradsync {
namespace {

constexpr char kSixteenBitGrey[] = "16-bit grey, of which Pillow makes white, is not supported";

// As in decode_jpeg.cc: an error inside libpng ends in a jump to the method that called it, which
// then is false, and what is allocated belongs to this class.
class Decoder {
 public:
  explicit Decoder(absl::string_view file) : file_(file), rest_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, OnError, OnWarning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~Decoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  bool ReadHeader() {
    if (info_ == nullptr) {
      message_ = "no memory for libpng";
      return false;
    }
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, Read);
    png_read_info(png_, info_);
    return true;
  }

  ImageSize size() const {
    return {static_cast<int>(png_get_image_width(png_, info_)),
            static_cast<int>(png_get_image_height(png_, info_))};
  }

  // Asks libpng for three bytes a pixel.
  bool Start() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    // Pillow does not look at the checksums of chunks of pixels; zlib does at those of its own.
    png_set_crc_action(png_, PNG_CRC_WARN_USE, PNG_CRC_WARN_USE);
    const int kind = png_get_color_type(png_, info_), bits = png_get_bit_depth(png_, info_);
    if (kind == PNG_COLOR_TYPE_GRAY && bits == 16) png_error(png_, kSixteenBitGrey);
    if (bits == 16) png_set_strip_16(png_);
    if (kind == PNG_COLOR_TYPE_PALETTE) {
      CompletePalette(bits);
      png_set_palette_to_rgb(png_);
    }
    if (kind == PNG_COLOR_TYPE_GRAY && bits < 8) png_set_expand_gray_1_2_4_to_8(png_);
    if ((kind & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png_);
    png_set_strip_alpha(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != size_t{3} * png_get_image_width(png_, info_)) {
      png_error(png_, "unexpected kind of pixels");
    }
    return true;
  }

  // An interlaced image is complete only after its last pass over all rows.
  bool interlaced() const { return passes_ > 1; }

  bool ReadRows(RgbImage* image) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    for (pass_ = 0; pass_ < passes_; ++pass_) {
      for (row_ = 0; row_ < image->height; ++row_) png_read_row(png_, image->row(row_), nullptr);
    }
    return true;
  }

  // What is wrong with a file that can be read all the same; empty: nothing.
  const std::string& warning() const { return warning_; }

  // libpng names the chunk where it knows it; it reads ahead of what it decodes.
  absl::Status error() const {
    std::string where;
    if (ends_early_) {
      where = absl::StrCat(", at byte ", file_.size());
    } else if (row_ >= 0) {
      where = absl::StrCat(", in row ", row_ + 1, " of ", size().height);
      if (interlaced()) absl::StrAppend(&where, ", pass ", pass_ + 1, " of ", passes_);
    }
    return absl::DataLossError(absl::StrCat("is a PNG that cannot be read: ", message_, where));
  }

 private:
  // Of colours that the file does not give Pillow makes the grey of their numbers.
  void CompletePalette(int bits) {
    png_colorp given = nullptr;
    int count = 0;
    if (png_get_PLTE(png_, info_, &given, &count) == 0) return;
    png_color all[PNG_MAX_PALETTE_LENGTH];
    for (int i = 0; i < PNG_MAX_PALETTE_LENGTH; ++i) {
      const auto grey = static_cast<png_byte>(i);
      all[i] = i < count ? given[i] : png_color{grey, grey, grey};
    }
    png_set_PLTE(png_, info_, all, 1 << bits);
  }

  [[noreturn]] static void OnError(png_structp png, png_const_charp message) {
    static_cast<Decoder*>(png_get_error_ptr(png))->message_ = message;
    png_longjmp(png, 1);
  }

  static void OnWarning(png_structp png, png_const_charp message) {
    if (std::strstr(message, "CRC") == nullptr) return;
    static_cast<Decoder*>(png_get_error_ptr(png))->warning_ = message;
  }

  static void Read(png_structp png, png_bytep out, size_t bytes) {
    auto* decoder = static_cast<Decoder*>(png_get_io_ptr(png));
    decoder->ends_early_ = decoder->rest_.size() < bytes;
    if (decoder->ends_early_) png_error(png, "the file ends early");
    std::memcpy(out, decoder->rest_.data(), bytes);
    decoder->rest_.remove_prefix(bytes);
  }

  const absl::string_view file_;
  absl::string_view rest_;  // not read yet
  bool ends_early_ = false;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
  int pass_ = 0;
  int row_ = -1;  // before the first one
  std::string message_;
  std::string warning_;
};

}  // namespace

bool IsPng(absl::string_view file) { return file.substr(0, 8) == "\x89PNG\r\n\x1a\n"; }

absl::StatusOr<ImageSize> ReadPngSize(absl::string_view file) {
  Decoder decoder(file);
  if (!decoder.ReadHeader()) return decoder.error();
  return decoder.size();
}

absl::StatusOr<DecodedImage> DecodePng(absl::string_view file, const DecodeOptions& options) {
  Decoder decoder(file);
  if (!decoder.ReadHeader() || !decoder.Start()) return decoder.error();
  DecodedImage decoded;
  RgbImage& image = decoded.image;
  image.width = decoder.size().width;
  image.height = decoder.size().height;
  if (options.rows > 0 && !decoder.interlaced()) {
    image.height = std::min(image.height, options.rows);
  }
  image.pixels.resize(int64_t{3} * image.width * image.height);
  if (!decoder.ReadRows(&image)) return decoder.error();
  decoded.warning = decoder.warning();
  return decoded;
}

}  // namespace gradsync
