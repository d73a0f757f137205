#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "worker/checkpoint/file_formats.h"

namespace gradsync {
namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;
using google::protobuf::Value;

constexpr char kMetadata[] = "__metadata__";
// Parsing takes up to 80 times as much memory. Some hundred bytes are a tensor's, so that a model has
// some hundred kilobytes.
constexpr uint64_t kMostHeaderBytes = 32 << 20;
constexpr size_t kMostDimensions = 64;  // as PyTorch has

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("safetensors: ", what));
}

std::string Shown(absl::string_view name) { return absl::CHexEscape(name.substr(0, 200)); }

// JSON is UTF-8, and a file with other bytes could not be read again; a path may have any.
void AppendQuoted(absl::string_view text, std::string* json) {
  json->push_back('"');
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (bytes == 0) {
      absl::StrAppend(json, "\\\\x", absl::Hex(first, absl::kZeroPad2));
    } else if (first == '"' || first == '\\') {
      json->push_back('\\');
      json->push_back(text[0]);
    } else if (first < 0x20) {
      absl::StrAppend(json, "\\u00", absl::Hex(first, absl::kZeroPad2));
    } else {
      absl::StrAppend(json, text.substr(0, bytes));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  json->push_back('"');
}

void AppendKey(absl::string_view key, std::string* json) {
  if (json->back() != '{') json->push_back(',');
  AppendQuoted(key, json);
  json->push_back(':');
}

// JSON has no integers of its own here; up to 2^53 a double is one.
absl::optional<uint64_t> IntegerIn(const Value& value) {
  const double number = value.number_value();
  if (value.kind_case() != Value::kNumberValue || number < 0 || number > 9007199254740992.0 ||
      std::floor(number) != number) {
    return absl::nullopt;
  }
  return static_cast<uint64_t>(number);
}

absl::optional<std::vector<uint64_t>> IntegersIn(const Struct& entry, const std::string& key) {
  const auto found = entry.fields().find(key);
  if (found == entry.fields().end() || !found->second.has_list_value()) return absl::nullopt;
  std::vector<uint64_t> integers;
  for (const Value& value : found->second.list_value().values()) {
    const absl::optional<uint64_t> integer = IntegerIn(value);
    if (!integer.has_value()) return absl::nullopt;
    integers.push_back(*integer);
  }
  return integers;
}

struct Place {
  uint64_t begin = 0;
  uint64_t end = 0;
  HostTensor tensor;  // without its data
  absl::Status unread = absl::OkStatus();
};

absl::StatusOr<Place> ReadEntry(const std::string& name, const Value& value, uint64_t bytes) {
  const Struct& entry = value.struct_value();
  const auto type_name = entry.fields().find("dtype");
  const auto sizes = IntegersIn(entry, "shape");
  const auto offsets = IntegersIn(entry, "data_offsets");
  const bool has_offsets = offsets.has_value() && offsets->size() == 2;
  if (type_name == entry.fields().end() || !sizes.has_value() || !has_offsets) {
    return Damaged(absl::StrCat(Shown(name), ": expected ",
                                type_name == entry.fields().end() ? "a dtype"
                                : !sizes.has_value() ? "a shape of integers of at least 0"
                                                     : "as data_offsets two integers of at least 0",
                                ", found none or another value"));
  }
  Place place;
  place.begin = (*offsets)[0];
  place.end = (*offsets)[1];
  place.tensor.name = name;
  const std::string& type_text = type_name->second.string_value();
  const absl::optional<StoredType> type = TypeOfSafetensors(type_text);
  if (!type.has_value()) {
    place.unread = absl::InvalidArgumentError(absl::StrCat(
        "safetensors: expected floats of 16 to 64 bits, signed integers, U8 or BOOL as dtype of ",
        Shown(name), ", found \"", Shown(type_text), "\""));
    if (place.begin <= place.end && place.end <= bytes) return place;
    return Damaged(absl::StrCat(Shown(name), ": data_offsets ", place.begin, " to ", place.end,
                                " are not among the ", bytes, " bytes"));
  }
  if (sizes->size() > kMostDimensions) {
    return Damaged(absl::StrCat(Shown(name), ": expected at most ", kMostDimensions,
                                " dimensions, found ", sizes->size()));
  }
  place.tensor.type = *type;
  place.tensor.sizes.assign(sizes->begin(), sizes->end());
  const int64_t width = InfoOf(*type).bytes;
  const auto count = CountElements(place.tensor.sizes, static_cast<int64_t>(bytes) / width);
  if (!count.ok()) return Damaged(absl::StrCat(Shown(name), ": ", count.status().message()));
  if (place.end < place.begin || place.end > bytes ||
      place.end - place.begin != static_cast<uint64_t>(*count * width)) {
    return Damaged(absl::StrCat(Shown(name), ": data_offsets ", place.begin, " to ", place.end,
                                " are not the ", *count * width, " bytes of ",
                                Describe(place.tensor), " among ", bytes));
  }
  return place;
}

// `begin`: at which byte of the file the tensors begin, `bytes`: how many it has of them.
absl::Status CheckWhole(const Struct& header, uint64_t begin, uint64_t bytes) {
  uint64_t end = 0, all = 0;
  for (const auto& [name, value] : header.fields()) {
    const auto offsets = IntegersIn(value.struct_value(), "data_offsets");
    if (!offsets.has_value() || offsets->size() != 2) continue;
    end = std::max(end, (*offsets)[1]);
    if (all <= bytes && (*offsets)[1] > (*offsets)[0]) all += (*offsets)[1] - (*offsets)[0];
  }
  // Where there is room for all of them, one is said to be elsewhere.
  if (end <= bytes || all <= bytes) return absl::OkStatus();
  return Damaged(absl::StrCat("cut off: it ends at byte ", begin + bytes,
                              ", and by its header its tensors end at byte ", begin + end));
}

}  // namespace

absl::StatusOr<std::string> EncodeSafetensors(const Safetensors& content) {
  std::string json = "{";
  if (!content.metadata.empty()) {
    AppendKey(kMetadata, &json);
    json.push_back('{');
    for (const auto& [key, value] : content.metadata) {
      AppendKey(key, &json);
      AppendQuoted(value, &json);
    }
    json.push_back('}');
  }
  std::set<std::string> names = {kMetadata};
  uint64_t offset = 0;
  for (const HostTensor& tensor : content.tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("safetensors: two tensors of the name ", Shown(tensor.name)));
    }
    AppendKey(tensor.name, &json);
    absl::StrAppend(&json, "{\"dtype\":\"", InfoOf(tensor.type).safetensors, "\",\"shape\":[",
                    absl::StrJoin(tensor.sizes, ","), "],\"data_offsets\":[", offset, ",",
                    offset + tensor.data.size(), "]}");
    offset += tensor.data.size();
  }
  json.push_back('}');
  json.append((8 - json.size() % 8) % 8, ' ');
  const uint64_t length = json.size();
  std::string file;
  file.reserve(sizeof(length) + length + offset);
  file.append(reinterpret_cast<const char*>(&length), sizeof(length));
  file += json;
  for (const HostTensor& tensor : content.tensors) file += tensor.data;
  return file;
}

absl::StatusOr<Safetensors> DecodeSafetensors(absl::string_view file,
                                              std::map<std::string, absl::Status>* unread) {
  uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return Damaged(absl::StrCat("cut off at byte ", file.size()));
  }
  std::memcpy(&length, file.data(), sizeof(length));
  file.remove_prefix(sizeof(length));
  if (length > kMostHeaderBytes && length <= file.size()) {
    return absl::InvalidArgumentError(absl::StrCat("safetensors: expected a header of at most ",
                                                   kMostHeaderBytes, " bytes, found ", length));
  }
  if (length > file.size()) {
    return Damaged(
        absl::StrCat("a header of ", length, " bytes in a file of ", file.size() + sizeof(length)));
  }
  Struct header;
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(std::string(file.substr(0, length)), &header);
  if (!parsed.ok()) {
    return Damaged(absl::StrCat("its header, bytes ", sizeof(length), " to ",
                                sizeof(length) + length, ", is not JSON"));
  }
  const absl::string_view data = file.substr(length);
  GS_RETURN_IF_ERROR(CheckWhole(header, sizeof(length) + length, data.size()));

  Safetensors content;
  std::vector<Place> places;
  for (const auto& [name, value] : header.fields()) {
    if (name == kMetadata) {
      for (const auto& [key, text] : value.struct_value().fields()) {
        content.metadata[key] = text.string_value();
      }
      continue;
    }
    GS_ASSIGN_OR_RETURN(Place place, ReadEntry(name, value, data.size()));
    if (unread == nullptr) GS_RETURN_IF_ERROR(place.unread);
    places.push_back(std::move(place));
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
  });
  uint64_t end = 0;
  std::string before;
  for (Place& place : places) {
    if (place.begin != end) {
      return Damaged(absl::StrCat(
          Shown(place.tensor.name), " begins at byte ", place.begin, " of the tensors: expected ",
          end, before.empty() ? ", as the first one" : absl::StrCat(", where ", before, " ends"),
          place.begin < end ? "; they overlap" : "; what lies between is no tensor's"));
    }
    end = place.end;
    before = Shown(place.tensor.name);
    if (!place.unread.ok()) {
      unread->emplace(place.tensor.name, place.unread);
      continue;
    }
    place.tensor.data = std::string(data.substr(place.begin, place.end - place.begin));
    content.tensors.push_back(std::move(place.tensor));
  }
  if (end != data.size()) {
    return Damaged(absl::StrCat("expected ", end, " bytes of tensors from byte ",
                                sizeof(length) + length, " on, found ", data.size()));
  }
  return content;
}

}  // namespace gradsync
