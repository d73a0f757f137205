#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/status_macros.h"
#include "worker/checkpoint/file_formats.h"
#include "worker/checkpoint/unpickler.h"
#include "worker/checkpoint/zip_archive.h"

namespace gradsync {
namespace {

using Kind = PickleValue::Kind;

// Tied weights are written once and read once for each name, and an expanded tensor has more
// elements than its storage. A file cannot ask for much more memory than it has bytes.
constexpr int64_t kMostCopies = 4;
constexpr int64_t kFreeBytes = 16 << 20;

// As many as PyTorch's operations take. Without a bound one tuple could be the sizes of many
// tensors.
constexpr size_t kMostDimensions = 64;

// Dicts within dicts: {"state": {"model": {...}}}. Each dict is looked at once.
constexpr int kMostLevels = 5;
constexpr size_t kMostDicts = 1000;
constexpr size_t kLongestKey = 100;
// Longer keys of a dict are no names of tensors; a file can refer to one of megabytes in each entry.
constexpr size_t kLongestName = 500;

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

absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view name, const PickleValue& tuple) {
  std::vector<int64_t> integers;
  if (tuple.kind != Kind::kTuple && tuple.kind != Kind::kList) {
    return Damaged(name, "its sizes and strides are no tuples");
  }
  if (tuple.items.size() > kMostDimensions) {
    return Damaged(name, absl::StrCat("expected at most ", kMostDimensions, " dimensions, found ",
                                      tuple.items.size()));
  }
  for (const PickleValue* item : tuple.items) {
    if (item->kind != Kind::kInteger || item->integer < 0) {
      return Damaged(name, "its sizes and strides are not all integers of at least 0");
    }
    integers.push_back(item->integer);
  }
  return integers;
}

void Negate(StoredType type, std::string* data) {
  const size_t width = InfoOf(type).bytes;
  // The sign is the highest bit of each element, in little endian.
  for (size_t i = width - 1; i < data->size(); i += width) (*data)[i] ^= '\x80';
}

bool IsFloat(StoredType type) {
  return type == StoredType::kFloat64 || type == StoredType::kFloat32 ||
         type == StoredType::kFloat16 || type == StoredType::kBfloat16;
}

// An open file: what is read of its pickle, and where its storages are.
class TorchFile {
 public:
  TorchFile(Pickle pickle, std::string folder, const std::vector<ZipEntry>& entries, int64_t bytes)
      : pickle_(std::move(pickle)),
        folder_(std::move(folder)),
        budget_(kMostCopies * bytes + kFreeBytes) {
    for (const ZipEntry& entry : entries) entries_[entry.name] = entry.content;
  }

  const PickleValue& root() const { return pickle_.root(); }

  absl::StatusOr<HostTensor> Read(absl::string_view name, const PickleValue& value) {
    if (value.kind != Kind::kTensor) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", absl::CHexEscape(name.substr(0, 200)),
                       ": expected a dense tensor, found ", Describe(value)));
    }
    // (storage, offset, sizes, strides, requires_grad, hooks, metadata)
    const std::vector<const PickleValue*>& items = value.inner->items;
    GS_ASSIGN_OR_RETURN(const Storage storage, FindStorage(name, *items[0]));
    const PickleValue& offset = *items[1];
    if (offset.kind != Kind::kInteger || offset.integer < 0) {
      return Damaged(name, "its offset is no integer of at least 0");
    }
    HostTensor tensor;
    tensor.name = std::string(name);
    tensor.type = storage.type;
    GS_ASSIGN_OR_RETURN(tensor.sizes, Integers(name, *items[2]));
    GS_ASSIGN_OR_RETURN(std::vector<int64_t> strides, Integers(name, *items[3]));
    if (strides.size() != tensor.sizes.size()) {
      return Damaged(name, "it has not as many strides as sizes");
    }
    IgnoreStridesOfOne(tensor.sizes, &strides);
    GS_ASSIGN_OR_RETURN(const bool negative, IsNegative(name, items, tensor.type));
    const int64_t width = InfoOf(tensor.type).bytes;
    const absl::StatusOr<int64_t> count = CountElements(tensor.sizes, budget_ / width);
    if (!count.ok()) {
      return Damaged(name, absl::StrCat("expected tensors of at most ", kMostCopies,
                                        " times the file's bytes: ", count.status().message()));
    }
    if (*count == 0) return tensor;
    GS_RETURN_IF_ERROR(CheckReach(name, offset.integer, tensor.sizes, strides, storage.elements));
    budget_ -= *count * width;
    Gather(storage, offset.integer, strides, *count, &tensor);
    if (negative) Negate(tensor.type, &tensor.data);
    return tensor;
  }

 private:
  struct Storage {
    StoredType type;
    absl::string_view bytes;
    int64_t elements;
  };

  absl::StatusOr<Storage> FindStorage(absl::string_view name, const PickleValue& value) {
    // ('storage', its class, its key, where it was, its elements)
    static const std::vector<const PickleValue*> kNone;
    const auto& items = value.kind == Kind::kStorage ? value.inner->items : kNone;
    if (items.size() < 5 || items[1]->kind != Kind::kGlobal || items[2]->kind != Kind::kText ||
        items[4]->kind != Kind::kInteger) {
      return Damaged(name, "its storage is not named as torch.save does");
    }
    const absl::string_view type_name = items[1]->items[1]->text;
    const absl::optional<StoredType> type = TypeOfStorage(type_name);
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

  // Whether values are stored with the opposite sign: the imaginary part of a conjugate is a view
  // of the number's own, with a bit in the last argument.
  static absl::StatusOr<bool> IsNegative(absl::string_view name,
                                         const std::vector<const PickleValue*>& items,
                                         StoredType type) {
    if (items.size() < 7 || items[6]->kind == Kind::kNone) return false;
    bool negative = false;
    const PickleValue& metadata = *items[6];
    const absl::Status unknown = absl::InvalidArgumentError(absl::StrCat(
        "tensor ", absl::CHexEscape(name.substr(0, 200)),
        ": expected no metadata, or the negative bit of floats alone, found other metadata"));
    if (metadata.kind != Kind::kDict) return unknown;
    for (size_t i = 0; i < metadata.items.size(); i += 2) {
      const PickleValue& value = *metadata.items[i + 1];
      if (value.kind != Kind::kBool) return unknown;
      if (value.integer == 0) continue;
      if (!metadata.items[i]->IsText("neg") || !IsFloat(type)) return unknown;
      negative = true;
    }
    return negative;
  }

  // Whether the last element lies in the storage. No sum here can overflow: each is compared with
  // what is left.
  static absl::Status CheckReach(absl::string_view name, int64_t offset,
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

  const Pickle pickle_;
  const std::string folder_;
  std::map<std::string, absl::string_view> entries_;
  int64_t budget_;  // bytes of tensors that may still be read
};

// Whether Python would make a tensor of it: one that can be read, or another kind, which functions
// such as torch._utils._rebuild_sparse_tensor make.
bool IsWeight(const PickleValue& value) {
  if (value.kind == Kind::kTensor) return true;
  return value.kind == Kind::kObject && value.inner != nullptr &&
         value.inner->kind == Kind::kGlobal &&
         absl::StartsWith(value.inner->items[0]->text, "torch") &&
         absl::StartsWith(value.inner->items[1]->text, "_rebuild");
}

// The dict with its entries by name. Of two of a name the later one counts, as in Python.
WeightDict DictOf(const std::shared_ptr<TorchFile>& file, const PickleValue& value,
                  std::string key) {
  WeightDict dict;
  dict.key = std::move(key);
  std::map<absl::string_view, size_t> places;
  for (size_t i = 0; i < value.items.size(); i += 2) {
    const absl::string_view name = value.items[i]->text;
    if (value.items[i]->kind != Kind::kText || name.size() > kLongestName) continue;
    const PickleValue* const item = value.items[i + 1];
    WeightEntry entry;
    entry.name = name;
    entry.weight = IsWeight(*item);
    entry.numpy = IsNumpyArray(*item);
    entry.read = [file, name, item] { return file->Read(name, *item); };
    const auto [place, added] = places.emplace(name, dict.entries.size());
    if (added) {
      dict.entries.push_back(std::move(entry));
    } else {
      dict.entries[place->second] = std::move(entry);
    }
  }
  return dict;
}

// Level by level, each dict once, however often it is referred to.
std::vector<WeightDict> DictsOf(const std::shared_ptr<TorchFile>& file) {
  struct Found {
    const PickleValue* dict;
    std::string key;
    int level;
  };
  std::vector<Found> found = {{&file->root(), "", 1}};
  std::set<const PickleValue*> seen = {&file->root()};
  std::vector<WeightDict> dicts;
  for (size_t i = 0; i < found.size(); ++i) {
    const Found at = found[i];
    dicts.push_back(DictOf(file, *at.dict, at.key));
    if (at.level == kMostLevels) continue;
    for (size_t j = 0; j < at.dict->items.size() && found.size() < kMostDicts; j += 2) {
      const PickleValue& key = *at.dict->items[j];
      const PickleValue* const value = at.dict->items[j + 1];
      if (key.kind != Kind::kText || key.text.size() > kLongestKey || value->kind != Kind::kDict ||
          !seen.insert(value).second) {
        continue;
      }
      found.push_back(
          {value, absl::StrCat(at.key, at.key.empty() ? "" : ".", key.text), at.level + 1});
    }
  }
  return dicts;
}

bool IsLegacy(absl::string_view file) {
  // A pickle of its own in front: the number 0x1950a86a20f9469cfc6c.
  return absl::StartsWith(file, absl::string_view("\x80\x02\x8a\x0a\x6c\xfc", 6));
}

// Before PyTorch 0.1.10.
bool IsTar(absl::string_view file) { return file.size() > 262 && file.substr(257, 5) == "ustar"; }

constexpr char kNumpyFile[] = "a file of numpy, of whose arrays torch.from_numpy() makes tensors";

absl::Status CheckFormat(absl::string_view file) {
  if (absl::StartsWith(file, absl::string_view("PK\x03\x04", 4))) return absl::OkStatus();
  if (IsTar(file) && !absl::StrContains(file.substr(0, 1 << 16), "storages")) {
    return absl::InvalidArgumentError(
        "expected the zip format of torch.save, found a tar archive, which tar -xf unpacks");
  }
  if (IsLegacy(file) || IsTar(file)) {
    return absl::InvalidArgumentError(
        "expected the zip format of torch.save, found its legacy format from before PyTorch 1.6;"
        " in Python, torch.save(torch.load(FILE, map_location=\"cpu\"), NEW) writes it anew");
  }
  absl::string_view found = "another kind of file";
  if (file.empty()) {
    found = "an empty file";
  } else if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(file), "<")) {
    found = "HTML or XML, such as a page that a server sent instead";
  } else if (absl::StartsWith(file, "version https://git-lfs")) {
    found = "a pointer of Git LFS, for which `git lfs pull` fetches the file";
  } else if (absl::StartsWith(file, "{") && absl::StrContains(file, "\"weight_map\"")) {
    found =
        "an index of several files: in Python, safetensors.torch.save_file() writes what "
        "load_file() "
        "returns for each of them as one";
  } else if (absl::StartsWith(file, "\x1f\x8b")) {
    found = "a file compressed by gzip, which gunzip unpacks";
  } else if (absl::StartsWith(file, "\x93NUMPY")) {
    found = kNumpyFile;
  } else if (absl::StartsWith(file, "\x80")) {
    // The first array comes after the names of what makes it.
    const bool numpy = absl::StrContains(file.substr(0, 4096), "numpy") &&
                       absl::StrContains(file.substr(0, 4096), "_reconstruct");
    found = numpy ? "a pickle of numpy arrays, of which torch.from_numpy() makes tensors"
                  : "a pickle that torch.save did not write";
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected a zip archive as torch.save writes it, or safetensors, found ", found));
}

// The archive's own folder is that of its first entry. Errors: INVALID_ARGUMENT for a zip archive of
// another kind.
absl::StatusOr<std::string> FolderOf(const std::vector<ZipEntry>& entries) {
  const std::string first = entries.empty() ? "" : entries[0].name;
  const std::string folder = first.substr(0, first.find('/') + 1);
  const auto named = [&](absl::string_view name) {
    return std::find_if(entries.begin(), entries.end(), [&](const ZipEntry& entry) {
      return entry.name == absl::StrCat(folder, name);
    });
  };
  if (named("constants.pkl") != entries.end()) {
    return absl::InvalidArgumentError(
        "expected a state dict of torch.save, found TorchScript, as LibTorch's torch::save and"
        " torch.jit.save write it; in Python, torch.save(torch.jit.load(FILE).state_dict(), NEW)"
        " writes its weights");
  }
  if (absl::EndsWith(first, ".npy")) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a zip archive of torch.save, found ", kNumpyFile));
  }
  const auto compressed = std::find_if(entries.begin(), entries.end(),
                                       [](const ZipEntry& entry) { return !entry.stored; });
  if (compressed != entries.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a zip archive of torch.save, whose entries are stored, found ",
        absl::CHexEscape(compressed->name.substr(0, 200)),
        " compressed or encrypted; unpacking it and packing it by zip -0 -r stores them"));
  }
  if (folder.empty() || named("data.pkl") == entries.end()) {
    return absl::InvalidArgumentError(
        "expected a zip archive of torch.save, found one without data.pkl");
  }
  const auto order = named("byteorder");
  if (order != entries.end() && order->content != "little") {
    return absl::InvalidArgumentError(
        absl::StrCat("expected tensors in little endian, found them in byte order \"",
                     absl::CHexEscape(order->content.substr(0, 20)), "\""));
  }
  return folder;
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

absl::StatusOr<std::vector<WeightDict>> OpenTorchFile(absl::string_view file) {
  GS_RETURN_IF_ERROR(CheckFormat(file));
  GS_ASSIGN_OR_RETURN(const std::vector<ZipEntry> entries, ReadZip(file));
  GS_ASSIGN_OR_RETURN(const std::string folder, FolderOf(entries));
  const auto data = std::find_if(entries.begin(), entries.end(), [&](const ZipEntry& entry) {
    return entry.name == absl::StrCat(folder, "data.pkl");
  });
  GS_ASSIGN_OR_RETURN(Pickle pickle, Pickle::Parse(data->content));
  if (pickle.root().kind != Kind::kDict) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a state dict, found ", Describe(pickle.root()),
                     "; in Python, torch.save(model.state_dict(), FILE) writes one"));
  }
  return DictsOf(std::make_shared<TorchFile>(std::move(pickle), folder, entries,
                                             static_cast<int64_t>(file.size())));
}

}  // namespace gradsync
