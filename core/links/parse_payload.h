// Messages that are payloads of frames: greetings and what is small otherwise.

#ifndef GRADSYNC_CORE_LINKS_PARSE_PAYLOAD_H_
#define GRADSYNC_CORE_LINKS_PARSE_PAYLOAD_H_

#include <cstddef>

#include "core/links/frame_stream.h"

namespace gradsync {

// Far above what the HELLO of a neighbour takes: numbers, an address and a fingerprint.
constexpr size_t kMaxGreetingBytes = 16 << 10;

// Reads a protocol buffer of at most `most` bytes. False for a longer payload, of which nothing is
// copied, and for one that is no such message.
template <typename Message>
bool ParsePayload(const Payload& payload, size_t most, Message* message) {
  return payload.size() <= most && message->ParseFromString(payload.Flat());
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_PARSE_PAYLOAD_H_
