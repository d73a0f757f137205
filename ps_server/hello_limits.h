// What a hello may hold, whoever says it: checked field by field before anything is made of it.

#ifndef GRADSYNC_PS_SERVER_HELLO_LIMITS_H_
#define GRADSYNC_PS_SERVER_HELLO_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "proto/parameter_server.pb.h"

namespace gradsync {

// Far above what the hello of a model of a million tensors takes.
constexpr size_t kMaxHelloBytes = 64 << 20;

// Of memory, once it is read; likewise.
constexpr int64_t kMaxReadHelloBytes = int64_t{512} << 20;

// Whether a Hello, as it came, would take at most `most` bytes once it is read: an empty entry of a
// list is two bytes of the message, and a hundred of memory. Allocates nothing. What is not a Hello
// may pass. Errors: RESOURCE_EXHAUSTED naming both.
absl::Status CheckReadHello(absl::string_view bytes, int64_t most);

// Whether each text of the hello is short enough to be kept, and to be quoted in a message.
// Errors: INVALID_ARGUMENT naming the field, its limit and its length, without the text.
absl::Status CheckHelloTexts(const proto::Hello& hello);

// Whether the server's shares are positive, finite numbers whose sum is finite.
// Errors: INVALID_ARGUMENT naming the weight.
absl::Status CheckWeights(const proto::Terms& terms);

// Whether the layout of the plan's chunks takes a time and a memory that a server can spend on a hello:
// ShardMap::Create() may be called then, for some seconds at most. Errors: RESOURCE_EXHAUSTED naming
// what there is too much of.
absl::Status CheckLayout(const Plan& plan, const proto::Terms& terms, int64_t max_memory);

// Bytes that a server with these terms keeps for its share of the plan from the start of the group on:
// accumulators, parameters and optimizer state of the elements, and what it keeps for each chunk and
// each worker. An upper bound, computed without allocating anything; chunks that are on their way are
// not in it, of which each worker has `credit` at most. The terms are those of a hello that was checked
// otherwise.
int64_t ServerMemory(const Plan& plan, const proto::Terms& terms, const ShardMap& shards);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_HELLO_LIMITS_H_
