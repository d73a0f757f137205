#include "ps_server/hello_limits.h"

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/plan/optimizer_spec.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace gradsync {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedInputStream;

// Names of runs and hosts, addresses, words.
constexpr size_t kMaxNameBytes = 512;
// Names of tensors are paths through modules.
constexpr size_t kMaxTensorNameBytes = 4096;
constexpr int kMaxDimensions = 64;

// What is kept for a chunk besides its elements: once, for each buffer, and where updates are
// asynchronous once and for each worker. hello_limits_test measures them.
constexpr int64_t kChunkBytes = 1024;
constexpr int64_t kBufferBytes = 320;
constexpr int64_t kAsyncChunkBytes = 1024;
constexpr int64_t kAsyncRankBytes = 32;

// For each chunk of all servers: its owner, and its places in lists while they are made.
constexpr int64_t kPlaceBytes = 48;

// For each tensor, which may end a run of elements of one optimizer group.
constexpr int64_t kTensorBytes = 64;

// Orderings of servers, of which each bucket needs some (core/plan/shard_map.h).
constexpr int64_t kMaxOrderings = int64_t{1} << 26;

// What entries of a message take besides their bytes, rounded up: a message in it; a text, or a field
// that nobody knows, with what the allocator adds; a number in a list that grows.
constexpr int64_t kMessageBytes = 160;
constexpr int64_t kTextBytes = 64;
constexpr int64_t kNumberBytes = 16;

// At most what the rest of `input`, up to its limit, takes as a message of `type`.
int64_t ReadBytes(CodedInputStream& input, const Descriptor& type) {
  int64_t taken = kMessageBytes;
  while (const uint32_t tag = input.ReadTag()) {
    const FieldDescriptor* const field =
        type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      const int begin = input.CurrentPosition();
      if (!WireFormatLite::SkipField(&input, tag)) return taken;
      // A group may have a field for each of its bytes.
      taken += field != nullptr ? kNumberBytes : kTextBytes * (1 + input.CurrentPosition() - begin);
      continue;
    }
    uint32_t length;
    if (!input.ReadVarint32(&length) || length > static_cast<uint32_t>(input.BytesUntilLimit())) {
      return taken;
    }
    const auto limit = input.PushLimit(static_cast<int>(length));
    if (field != nullptr && field->message_type() != nullptr) {
      taken += ReadBytes(input, *field->message_type());
    } else if (field != nullptr && field->is_packable()) {
      taken += kNumberBytes * (field->type() == FieldDescriptor::TYPE_DOUBLE ? length / 8 : length);
    } else {
      taken += kTextBytes + length;
    }
    input.Skip(input.BytesUntilLimit());
    input.PopLimit(limit);
  }
  return taken;
}

int64_t ChunksOf(const Plan& plan) {
  int64_t chunks = 0;
  for (const BucketPlan& bucket : plan.buckets()) chunks += bucket.layout.slots();
  return chunks;
}

absl::Status CheckText(absl::string_view field, size_t limit, absl::string_view text) {
  if (text.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("hello: ", field, ": expected at most ", limit, " bytes, found ", text.size()));
}

}  // namespace

absl::Status CheckReadHello(absl::string_view bytes, int64_t most) {
  const int size = static_cast<int>(bytes.size());
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()), size);
  const auto limit = input.PushLimit(size);
  const int64_t taken = ReadBytes(input, *proto::Hello::descriptor());
  input.PopLimit(limit);
  if (taken <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("hello: expected at most ", most,
                                                   " bytes of memory for its entries, found ",
                                                   bytes.size(), " bytes that may take ", taken));
}

absl::Status CheckHelloTexts(const proto::Hello& hello) {
  GS_RETURN_IF_ERROR(CheckText("run_id", kMaxNameBytes, hello.run_id()));
  GS_RETURN_IF_ERROR(CheckText("address", kMaxNameBytes, hello.address()));
  GS_RETURN_IF_ERROR(CheckText("store", kMaxNameBytes, hello.store()));
  GS_RETURN_IF_ERROR(CheckText("terms.fingerprint", kMaxNameBytes, hello.terms().fingerprint()));
  GS_RETURN_IF_ERROR(CheckText("terms.consistency", kMaxNameBytes, hello.terms().consistency()));
  GS_RETURN_IF_ERROR(CheckText("host.key", kMaxNameBytes, hello.host().key()));
  GS_RETURN_IF_ERROR(CheckText("host.name", kMaxNameBytes, hello.host().name()));
  GS_RETURN_IF_ERROR(CheckText("host.window", kMaxNameBytes, hello.host().window()));
  for (const std::string& server : hello.servers()) {
    GS_RETURN_IF_ERROR(CheckText("servers", kMaxNameBytes, server));
  }
  const proto::Plan& plan = hello.plan();
  GS_RETURN_IF_ERROR(CheckText("plan.compression", kMaxNameBytes, plan.compression()));
  GS_RETURN_IF_ERROR(CheckText("plan.optimizer.kind", kMaxNameBytes, plan.optimizer().kind()));
  for (const proto::TensorSpec& tensor : plan.tensors()) {
    GS_RETURN_IF_ERROR(CheckText("plan.tensors.name", kMaxTensorNameBytes, tensor.name()));
    if (tensor.sizes_size() > kMaxDimensions || tensor.strides_size() > kMaxDimensions) {
      return absl::InvalidArgumentError(absl::StrCat(
          "hello: plan.tensors: expected at most ", kMaxDimensions, " dimensions, found ",
          tensor.sizes_size(), " sizes and ", tensor.strides_size(), " strides"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWeights(const proto::Terms& terms) {
  double sum = 0;
  for (int i = 0; i < terms.weights_size(); ++i) {
    sum += terms.weights(i);
    if (terms.weights(i) > 0 && std::isfinite(sum)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "hello: weight of server ", i,
        ": expected a positive number, and a finite sum of all, found ", terms.weights(i)));
  }
  return absl::OkStatus();
}

absl::Status CheckLayout(const Plan& plan, const proto::Terms& terms, int64_t max_memory) {
  const std::set<double> weights(terms.weights().begin(), terms.weights().end());
  const int64_t orderings =
      static_cast<int64_t>(weights.size()) * static_cast<int64_t>(plan.buckets().size());
  if (weights.size() > 1 && orderings > kMaxOrderings) {
    return absl::ResourceExhaustedError(
        absl::StrCat("hello: expected at most ", kMaxOrderings,
                     " as the product of buckets and different weights ", "of servers, found ",
                     plan.buckets().size(), " times ", weights.size()));
  }
  const int64_t bytes = ChunksOf(plan) * kPlaceBytes;
  if (bytes <= max_memory) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "hello: a list of the plan's chunks would take ", bytes,
      " bytes of this server's memory; expected at most ", max_memory, " (--max_memory)"));
}

int64_t ServerMemory(const Plan& plan, const proto::Terms& terms, const ShardMap& shards) {
  const int server = terms.server_index();
  const bool bulk = terms.consistency().empty() || terms.consistency() == "bsp";
  int64_t own_chunks = 0;
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      own_chunks += shards.server({b, slot}) == server && !layout.range(slot).empty();
    }
  }
  // Sum and result, or sum and parameters, and what asynchronous updates keep of those that are
  // being sent.
  int64_t copies = bulk ? 2 : 3;
  if (terms.update_site() == proto::OWNER) {
    copies += static_cast<int64_t>(SlotNames(plan.optimizer()).size());
  }
  const int64_t world_size = terms.world_size();
  int64_t of_chunk = kChunkBytes + copies * kBufferBytes;
  if (!bulk) of_chunk += kAsyncChunkBytes + kAsyncRankBytes * world_size;
  // Large buffers begin and end at pages, which takes a thirty-second of them at most. There are at most
  // 2^24 chunks times 2^16 workers, so nothing overflows.
  const int64_t of_elements = copies * (shards.bytes(server) + shards.bytes(server) / 32);
  return of_elements + own_chunks * of_chunk + ChunksOf(plan) * kPlaceBytes +
         static_cast<int64_t>(plan.tensors().size()) * kTensorBytes +
         world_size * terms.connections() * 64;
}

}  // namespace gradsync
