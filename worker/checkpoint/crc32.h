#ifndef GRADSYNC_WORKER_CHECKPOINT_CRC32_H_
#define GRADSYNC_WORKER_CHECKPOINT_CRC32_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace gradsync {

// The checksum of zip archives: CRC-32 with the polynomial 0x04C11DB7, reflected (ISO 3309).
uint32_t Crc32(absl::string_view bytes);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_CRC32_H_
