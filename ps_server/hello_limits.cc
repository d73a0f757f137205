#include "ps_server/hello_limits.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "plan/optimizer_spec.h"

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

// What a chunk costs besides its elements, and besides its places in the workers' lists.
constexpr int64_t kChunkBytes = 512;

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

int64_t ServerMemory(const Plan& plan, const proto::Terms& terms) {
  double sum = 0;
  for (const double weight : terms.weights()) sum += weight;
  const double share = terms.weights(terms.server_index()) / sum;
  int64_t elements = 0;
  int64_t chunks = 0;
  for (const BucketPlan& bucket : plan.buckets()) {
    elements += bucket.numel;
    chunks += bucket.layout.slots();
  }
  // Sum and result, or sum and parameters, and what asynchronous updates keep of those that are
  // being sent.
  int64_t copies = terms.consistency().empty() || terms.consistency() == "bsp" ? 2 : 3;
  if (terms.update_site() == proto::OWNER) {
    copies += static_cast<int64_t>(SlotNames(plan.optimizer()).size());
  }
  const int64_t of_elements = static_cast<int64_t>(
      std::ceil(share * static_cast<double>(elements) * static_cast<double>(4 * copies)));
  // Who owns a chunk is known of all; at most 2^24 chunks times 2^16 workers, so nothing overflows.
  const int64_t own_chunks = static_cast<int64_t>(std::ceil(share * static_cast<double>(chunks)));
  return of_elements + chunks * 16 + own_chunks * (kChunkBytes + 16 * terms.world_size()) +
         int64_t{terms.world_size()} * terms.connections() * 64;
}

}  // namespace gradsync
