#ifndef GRADSYNC_WORKER_TRACE_CRC32C_H_
#define GRADSYNC_WORKER_TRACE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace gradsync {

// The Castagnoli CRC of RFC 3720. Some hundred MB/s. Thread-safe.
uint32_t Crc32c(absl::string_view bytes);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRACE_CRC32C_H_
