#include "checkpoint/torch_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "checkpoint/unpickler.h"
#include "checkpoint/zip_archive.h"

namespace gradsync {
namespace {

using Kind = PickleValue::Kind;

// Tied weights are written once and read once for each name. A file cannot ask for much more
// memory than it has bytes.
constexpr int64_t kMostCopies = 4;

class PickleWriter {
 public:
  PickleWriter() { bytes_ = "\x80\x02"; }

  void Op(char operation) { bytes_.push_back(operation); }

  void Text(absl::string_view text) {
    Op('X');
    Raw(static_cast<uint32_t>(text.size()));
    bytes_.append(text.data(), text.size());
  }

  void Integer(int64_t value) {
    if (value >= 0 && value <= std::numeric_limits<int32_t>::max()) {
      Op('J');
      return Raw(static_cast<int32_t>(value));
    }
    Op('\x8a');
    Op(sizeof(value));
    Raw(value);
  }

  void Global(absl::string_view module, absl::string_view name) {
    absl::StrAppend(&bytes_, "c", module, "\n", name, "\n");
  }

  void Tuple(const std::vector<int64_t>& values) {
    Op('(');
    for (int64_t value : values) Integer(value);
    Op('t');
  }

  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  void Raw(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.append(raw, sizeof(T));
  }

  std::string bytes_;
};

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(1, sizes[d]);
  }
  return strides;
}

// A dimension of one element takes no stride, which may then be any number.
void IgnoreStridesOfOne(const std::vector<int64_t>& sizes, std::vector<int64_t>* strides) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) (*strides)[d] = 0;
  }
}

int64_t ElementsOf(const HostTensor& tensor) {
  return static_cast<int64_t>(tensor.data.size()) / InfoOf(tensor.type).bytes;
}

std::string EncodePickle(const std::vector<HostTensor>& tensors) {
  PickleWriter out;
  out.Op('}');
  out.Op('(');
  for (size_t i = 0; i < tensors.size(); ++i) {
    const HostTensor& tensor = tensors[i];
    out.Text(tensor.name);
    out.Global("torch._utils", "_rebuild_tensor_v2");
    out.Op('(');
    out.Op('(');
    out.Text("storage");
    out.Global("torch", InfoOf(tensor.type).storage);
    out.Text(absl::StrCat(i));
    out.Text("cpu");
    out.Integer(ElementsOf(tensor));
    out.Op('t');
    out.Op('Q');
    out.Integer(0);
    out.Tuple(tensor.sizes);
    out.Tuple(ContiguousStrides(tensor.sizes));
    out.Op('\x89');  // no gradient wanted
    out.Global("collections", "OrderedDict");
    out.Op(')');
    out.Op('R');
    out.Op('t');
    out.Op('R');
  }
  out.Op('u');
  out.Op('.');
  return out.bytes();
}

absl::Status Damaged(absl::string_view name, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("tensor ", absl::CHexEscape(name.substr(0, 200)), ": ", what));
}

// The element of `dict` that is a dict, by its key.
const PickleValue* FindDict(const PickleValue& dict, absl::string_view key) {
  for (const auto& [name, value] : dict.pairs) {
    if (name->kind == Kind::kText && name->text == key && value->kind == Kind::kDict) return value;
  }
  return nullptr;
}

// Where the tensors are: in the dict itself, or in the one that training scripts put beside others.
const PickleValue& StateDictIn(const PickleValue& root) {
  for (const absl::string_view key : {"state_dict", "model"}) {
    const PickleValue* const inner = FindDict(root, key);
    if (inner != nullptr) return *inner;
  }
  return root;
}

absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view name, const PickleValue& tuple) {
  std::vector<int64_t> integers;
  if (tuple.kind != Kind::kTuple && tuple.kind != Kind::kList) {
    return Damaged(name, "its sizes and strides are no tuples");
  }
  for (const PickleValue* item : tuple.items) {
    if (item->kind != Kind::kInteger || item->integer < 0) {
      return Damaged(name, "its sizes and strides are not all integers of at least 0");
    }
    integers.push_back(item->integer);
  }
  return integers;
}

class StateDictReader {
 public:
  StateDictReader(std::string folder, const std::vector<ZipEntry>& entries, int64_t budget)
      : folder_(std::move(folder)), budget_(budget) {
    for (const ZipEntry& entry : entries) entries_[entry.name] = entry.content;
  }

  absl::StatusOr<std::vector<HostTensor>> Read(const PickleValue& dict) {
    std::vector<HostTensor> tensors;
    std::map<std::string, int> names;
    for (const auto& [key, value] : dict.pairs) {
      if (key->kind != Kind::kText) {
        return absl::InvalidArgumentError(
            "a state dict: expected names as keys, found another kind of key");
      }
      if (value->kind != Kind::kTensor) {
        return absl::InvalidArgumentError(
            absl::StrCat("a state dict: expected a tensor for each name, found something else for ",
                         absl::CHexEscape(key->text.substr(0, 200))));
      }
      if (names[key->text]++ > 0) return Damaged(key->text, "it is there twice");
      GS_ASSIGN_OR_RETURN(HostTensor tensor, ReadTensor(key->text, *value));
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }

 private:
  struct Storage {
    ElementType type;
    absl::string_view bytes;
    int64_t elements;
  };

  absl::StatusOr<HostTensor> ReadTensor(const std::string& name, const PickleValue& value) {
    GS_ASSIGN_OR_RETURN(const Storage storage, FindStorage(name, *value.items[0]));
    const PickleValue& offset = *value.items[1];
    if (offset.kind != Kind::kInteger || offset.integer < 0) {
      return Damaged(name, "its offset is no integer of at least 0");
    }
    HostTensor tensor;
    tensor.name = name;
    tensor.type = storage.type;
    GS_ASSIGN_OR_RETURN(tensor.sizes, Integers(name, *value.items[2]));
    GS_ASSIGN_OR_RETURN(std::vector<int64_t> strides, Integers(name, *value.items[3]));
    if (strides.size() != tensor.sizes.size()) {
      return Damaged(name, "it has not as many strides as sizes");
    }
    IgnoreStridesOfOne(tensor.sizes, &strides);
    const absl::StatusOr<int64_t> count = CountElements(tensor.sizes, storage.elements);
    if (!count.ok()) return Damaged(name, count.status().message());
    if (*count == 0) return tensor;
    GS_RETURN_IF_ERROR(CheckReach(name, offset.integer, tensor.sizes, strides, storage.elements));
    budget_ -= *count * InfoOf(tensor.type).bytes;
    if (budget_ < 0) return Damaged(name, "the tensors are several times as large as the file");
    Gather(storage, offset.integer, strides, *count, &tensor);
    return tensor;
  }

  absl::StatusOr<Storage> FindStorage(const std::string& name, const PickleValue& value) {
    // ('storage', its class, its key, where it was, its elements)
    const auto& items = value.items;
    if (value.kind != Kind::kStorage || items.size() < 5 || items[1]->kind != Kind::kGlobal ||
        items[2]->kind != Kind::kText || items[4]->kind != Kind::kInteger) {
      return Damaged(name, "its storage is not named as torch.save does");
    }
    absl::string_view type_name = items[1]->text;
    type_name.remove_prefix(std::min(type_name.size(), type_name.find(' ') + 1));
    const absl::optional<ElementType> type = TypeOfStorage(type_name);
    if (!type.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", absl::CHexEscape(name.substr(0, 200)),
          ": expected floats (double, float, half, bfloat16), integers or bool, found a ",
          absl::CHexEscape(type_name.substr(0, 80))));
    }
    const auto entry = entries_.find(absl::StrCat(folder_, "data/", items[2]->text));
    if (entry == entries_.end()) {
      return Damaged(
          name, absl::StrCat("its storage data/", absl::CHexEscape(items[2]->text.substr(0, 80)),
                             " is not in the archive"));
    }
    const int64_t there = static_cast<int64_t>(entry->second.size()) / InfoOf(*type).bytes;
    if (items[4]->integer < 0 || items[4]->integer > there) {
      return Damaged(name, absl::StrCat("its storage should have ", items[4]->integer,
                                        " elements, and has ", there));
    }
    return Storage{*type, entry->second, items[4]->integer};
  }

  // Whether the last element lies in the storage. No sum here can overflow: each is compared with
  // what is left.
  static absl::Status CheckReach(const std::string& name, int64_t offset,
                                 const std::vector<int64_t>& sizes,
                                 const std::vector<int64_t>& strides, int64_t elements) {
    int64_t left = elements - 1 - offset;
    for (size_t d = 0; d < sizes.size() && left >= 0; ++d) {
      if (strides[d] == 0) continue;
      left = strides[d] > left / (sizes[d] - 1) ? -1 : left - strides[d] * (sizes[d] - 1);
    }
    if (left >= 0) return absl::OkStatus();
    return Damaged(name, absl::StrCat("it reaches beyond its storage of ", elements, " elements"));
  }

  static void Gather(const Storage& storage, int64_t offset, const std::vector<int64_t>& strides,
                     int64_t count, HostTensor* tensor) {
    const int64_t width = InfoOf(storage.type).bytes;
    std::vector<int64_t> contiguous = ContiguousStrides(tensor->sizes);
    IgnoreStridesOfOne(tensor->sizes, &contiguous);
    if (strides == contiguous) {
      tensor->data = std::string(storage.bytes.substr(offset * width, count * width));
      return;
    }
    tensor->data.resize(count * width);
    std::vector<int64_t> index(tensor->sizes.size());
    int64_t at = offset;
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&tensor->data[i * width], storage.bytes.data() + at * width, width);
      for (size_t d = index.size(); d-- > 0;) {
        at += strides[d];
        if (++index[d] < tensor->sizes[d]) break;
        at -= strides[d] * tensor->sizes[d];
        index[d] = 0;
      }
    }
  }

  const std::string folder_;
  std::map<std::string, absl::string_view> entries_;
  int64_t budget_;
};

bool IsLegacy(absl::string_view file) {
  // A pickle of its own in front: the number 0x1950a86a20f9469cfc6c.
  return absl::StartsWith(file, absl::string_view("\x80\x02\x8a\x0a\x6c\xfc", 6));
}

absl::Status CheckFormat(absl::string_view file) {
  if (absl::StartsWith(file, absl::string_view("PK\x03\x04", 4))) return absl::OkStatus();
  if (IsLegacy(file)) {
    return absl::InvalidArgumentError(
        "expected the zip format of torch.save, found its legacy format from before PyTorch 1.6;"
        " in Python, torch.save(torch.load(FILE), FILE) writes it anew");
  }
  return absl::InvalidArgumentError(
      "expected a zip archive as torch.save writes it, found another kind of file");
}

}  // namespace

absl::StatusOr<std::string> EncodeTorchFile(const std::vector<HostTensor>& tensors) {
  ZipWriter zip;
  GS_RETURN_IF_ERROR(zip.Add("archive/data.pkl", EncodePickle(tensors)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    GS_RETURN_IF_ERROR(zip.Add(absl::StrCat("archive/data/", i), tensors[i].data));
  }
  GS_RETURN_IF_ERROR(zip.Add("archive/version", "3\n"));
  return zip.Finish();
}

absl::StatusOr<std::vector<HostTensor>> DecodeTorchFile(absl::string_view file) {
  GS_RETURN_IF_ERROR(CheckFormat(file));
  GS_ASSIGN_OR_RETURN(const std::vector<ZipEntry> entries, ReadZip(file));
  const ZipEntry* data = nullptr;
  const ZipEntry* compressed = nullptr;
  for (const ZipEntry& entry : entries) {
    if (absl::EndsWith(entry.name, "/constants.pkl")) {
      return absl::InvalidArgumentError(
          "expected a state dict of torch.save, found TorchScript, as LibTorch's torch::save and"
          " torch.jit.save write it");
    }
    if (compressed == nullptr && !entry.stored) compressed = &entry;
    if (absl::EndsWith(entry.name, "/data.pkl")) data = &entry;
    if (absl::EndsWith(entry.name, "/byteorder") && entry.content != "little") {
      return absl::InvalidArgumentError("expected tensors in little endian, found them in big");
    }
  }
  if (compressed != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a zip archive of torch.save, whose entries are stored, found ",
                     absl::CHexEscape(compressed->name.substr(0, 200)), " compressed"));
  }
  if (data == nullptr) {
    return absl::InvalidArgumentError(
        "expected a zip archive of torch.save, found one without data.pkl");
  }
  GS_ASSIGN_OR_RETURN(const Pickle pickle, Pickle::Parse(data->content));
  if (pickle.root().kind != Kind::kDict) {
    return absl::InvalidArgumentError(
        "expected a state dict, found something else; in Python, save model.state_dict()");
  }
  const std::string folder = data->name.substr(0, data->name.size() - sizeof("data.pkl") + 1);
  StateDictReader reader(folder, entries, kMostCopies * static_cast<int64_t>(file.size()));
  return reader.Read(StateDictIn(pickle.root()));
}

}  // namespace gradsync
