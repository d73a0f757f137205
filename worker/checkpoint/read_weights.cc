// How a dict and its names are chosen. Each name of the file could be one of the model's behind a
// prefix that ends at a dot: "module.backbone.fc.weight" is fc.weight behind "module.backbone.",
// and weight behind a longer one. Of all dicts and prefixes the one is taken under which most of
// the model's names are there. So no list of wrappers and frameworks is needed for prefixes; a
// list of customary keys only says which of several equal dicts is meant.

#include "worker/checkpoint/read_weights.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "re2/re2.h"
#include "worker/checkpoint/file_formats.h"
#include "worker/checkpoint/file_system.h"

namespace gradsync {
namespace {

using absl::string_view;

// Modules of PyTorch that hold another one, which torch.compile, DataParallel,
// DistributedDataParallel, FSDP and activation checkpointing put around a model or a part of it.
constexpr string_view kWrappers[] = {"_orig_mod", "module", "_fsdp_wrapped_module",
                                     "_checkpoint_wrapped_module"};
constexpr int kMostPrefixParts = 8;

// Where training scripts put weights, in the order in which they are looked for.
constexpr string_view kCustomaryKeys[] = {"",       "state_dict", "model_state_dict", "model",
                                          "net",    "network",    "model_state",      "weights",
                                          "params", "module"};
constexpr int kOtherKey = 100;
constexpr int kAverage = 200;

// What optimizers keep has the names of weights too.
constexpr string_view kOptimizerKeys[] = {
    "optimizer", "optim",      "optimizer_state", "optimizer_states", "optimizer_state_dict",
    "exp_avg",   "exp_avg_sq", "max_exp_avg_sq",  "momentum_buffer",  "square_avg",
    "grad_avg",  "acc_delta"};

constexpr string_view kCountOfBatches = "num_batches_tracked";

std::string Shown(string_view text) { return absl::CHexEscape(text.substr(0, 200)); }

std::string Quoted(string_view text) { return absl::StrCat("\"", Shown(text), "\""); }

string_view LastPart(string_view name) { return name.substr(name.rfind('.') + 1); }

// Names or numbers in a line, not more than `most`.
template <typename T>
std::string Listed(const std::vector<T>& items, size_t most) {
  const size_t shown = std::min(most, items.size());
  return absl::StrCat(absl::StrJoin(items.begin(), items.begin() + shown, ", "),
                      shown < items.size() ? absl::StrCat(", ... (", items.size(), ")") : "");
}

bool IsWrapper(string_view part) {
  return std::find(std::begin(kWrappers), std::end(kWrappers), part) != std::end(kWrappers);
}

std::string WithoutWrappers(string_view name) {
  std::vector<string_view> parts = absl::StrSplit(name, '.');
  parts.erase(std::remove_if(parts.begin(), parts.end(), IsWrapper), parts.end());
  return absl::StrJoin(parts, ".");
}

// Whether one of the name's words says so: "model_ema", "EMAModel", "swaModel.0"; not "schema".
bool IsAverage(string_view name) {
  std::string word;
  const auto is_average = [&word] {
    for (const string_view average : {"ema", "avg", "average", "averaged", "swa", "shadow"}) {
      if (word == average) return true;
    }
    return false;
  };
  for (size_t i = 0; i < name.size(); ++i) {
    const bool upper = absl::ascii_isupper(name[i]);
    const bool begins = upper && i > 0 && absl::ascii_islower(name[i - 1]);
    const bool ends_capitals = upper && i + 1 < name.size() && absl::ascii_islower(name[i + 1]);
    if (!absl::ascii_isalpha(name[i]) || begins || ends_capitals) {
      if (is_average()) return true;
      word.clear();
    }
    if (absl::ascii_isalpha(name[i])) word.push_back(absl::ascii_tolower(name[i]));
  }
  return is_average();
}

bool IsOptimizerState(string_view key) {
  const std::vector<string_view> parts = absl::StrSplit(key, '.');
  return std::find_first_of(parts.begin(), parts.end(), std::begin(kOptimizerKeys),
                            std::end(kOptimizerKeys)) != parts.end();
}

int RankOf(string_view key) {
  const auto customary = std::find(std::begin(kCustomaryKeys), std::end(kCustomaryKeys), key);
  if (customary != std::end(kCustomaryKeys)) {
    return static_cast<int>(customary - std::begin(kCustomaryKeys));
  }
  if (IsAverage(key)) return kAverage;
  const string_view last = LastPart(key);
  return last != key && RankOf(last) < kOtherKey ? RankOf(last) + 20 : kOtherKey;
}

class Skip {
 public:
  explicit Skip(const std::string& regex) {
    if (!regex.empty()) regex_ = std::make_unique<RE2>(regex, RE2::Quiet);
  }

  bool Matches(string_view name) const {
    return regex_ != nullptr &&
           RE2::PartialMatch(re2::StringPiece(name.data(), name.size()), *regex_);
  }

 private:
  std::unique_ptr<RE2> regex_;
};

std::string Sizes(const std::vector<int64_t>& sizes) {
  return absl::StrCat("[", Listed(sizes, 8), "]");
}

// A ResNet's first convolution, in which alone the values of --stem differ.
constexpr string_view kFirstConvolution = "conv1.weight";

// The value of --stem with which a model that has `want` would have `found`; empty: none.
string_view OtherStem(const TensorShape& want, const std::vector<int64_t>& found) {
  if (want.name != kFirstConvolution || want.sizes.size() != 4 || found.size() != 4) return "";
  std::vector<int64_t> other = want.sizes;
  const int64_t size = other[2] == 7 ? 3 : 7;
  other[2] = other[3] = size;
  if (found != other) return "";
  return size == 7 ? "imagenet" : "cifar";
}

// What of two lists of tensors differs.
class Difference {
 public:
  void Missing(string_view name) { Add(name, Shown(name), &missing_); }
  void Unexpected(string_view name) { Add(name, Shown(name), &unexpected_); }
  void Other(const TensorShape& want, const std::vector<int64_t>& found) {
    Add(want.name,
        absl::StrCat(want.name, ": expected ", Sizes(want.sizes), ", found ", Sizes(found)),
        &other_);
    if (stem_.empty()) stem_ = OtherStem(want, found);
  }

  bool none() const { return names_.empty(); }
  const std::set<std::string>& names() const { return names_; }

  // "expected the model's 62 tensors, found 2 of other sizes (...)"
  std::string ToText(size_t wanted) const {
    std::vector<std::string> parts;
    const auto add = [&](const char* what, const std::vector<std::string>& names) {
      if (names.empty()) return;
      const size_t shown = std::min<size_t>(3, names.size());
      parts.push_back(absl::StrCat(names.size(), " ", what, " (",
                                   absl::StrJoin(names.begin(), names.begin() + shown, ", "),
                                   shown < names.size() ? ", ..." : "", ")"));
    };
    add("missing", missing_);
    add("unexpected", unexpected_);
    add("of other sizes", other_);
    if (!stem_.empty()) {
      parts.push_back(absl::StrCat("its ", kFirstConvolution, " is that of --stem=", stem_));
    }
    return absl::StrCat("expected the model's ", wanted, " tensors, found ",
                        absl::StrJoin(parts, "; "));
  }

 private:
  void Add(string_view name, std::string shown, std::vector<std::string>* to) {
    names_.insert(std::string(name));
    to->push_back(std::move(shown));
  }

  std::set<std::string> names_;
  std::vector<std::string> missing_, unexpected_, other_;
  string_view stem_;
};

// A regular expression that matches `names` and no others of `all`, for a command line; empty where
// that would be long. Whole modules are named by their prefix.
std::string RegexFor(const std::set<std::string>& names, const std::set<std::string>& all) {
  std::set<std::string> patterns;
  for (const std::string& name : names) {
    const size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot + 1);
    const bool whole = !module.empty() && std::all_of(all.begin(), all.end(), [&](const auto& one) {
      return !absl::StartsWith(one, module) || names.count(one) > 0;
    });
    patterns.insert(whole ? RE2::QuoteMeta(module) : RE2::QuoteMeta(name) + "$");
    if (patterns.size() > 3 || name.size() > 100) return "";
  }
  return patterns.size() == 1 ? absl::StrCat("^", *patterns.begin())
                              : absl::StrCat("^(", absl::StrJoin(patterns, "|"), ")");
}

std::string BehindRegex(string_view prefix) {
  return absl::StrCat("^", RE2::QuoteMeta(Shown(prefix)));
}

// A dict, and a prefix of its names, under which the model's names could be.
struct Place {
  const WeightDict* dict = nullptr;
  string_view prefix;
  int names = 0;  // of the model's that are there, but for counts of batches
  int rank = 0;   // of those with as many the lowest is meant
};

class Fitting {
 public:
  Fitting(const std::vector<WeightDict>& dicts, const WeightsWanted& wanted)
      : dicts_(dicts), wanted_(wanted), skip_(wanted.skip) {
    for (const TensorShape& tensor : wanted.tensors) {
      if (skip_.Matches(tensor.name)) {
        found_.left.push_back(tensor.name);
      } else {
        wanted_names_.insert(tensor.name);
        if (LastPart(tensor.name) != kCountOfBatches) ++deciding_;
      }
    }
  }

  absl::StatusOr<WeightsFound> Run() {
    if (wanted_.tensors.empty()) {
      return absl::InvalidArgumentError("expected a model with tensors, found one without any");
    }
    if (wanted_names_.empty() && !wanted_.tensors.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--init_skip: expected to leave tensors that are read, found \"",
                       wanted_.skip, "\", which matches all ", wanted_.tensors.size()));
    }
    GS_RETURN_IF_ERROR(Choose());
    GS_RETURN_IF_ERROR(FindEntries());
    if (!wanted_.skip.empty() && found_.left.empty() && skipped_ == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--init_skip: expected a regular expression that matches tensors of the model or the"
          " file, such as ",
          *wanted_names_.begin(), ", found \"", wanted_.skip, "\""));
    }
    GS_RETURN_IF_ERROR(ReadAll());
    found_.account = Account();
    return std::move(found_);
  }

 private:
  // The model's name that a name of the file, without its prefix, stands for; empty: none.
  std::string NameOf(string_view name) const {
    if (wanted_names_.count(name) > 0) return std::string(name);
    // What begins with a wrapper is taken as a prefix.
    if (!absl::StrContains(name, '.') || IsWrapper(name.substr(0, name.find('.')))) return "";
    if (std::none_of(std::begin(kWrappers), std::end(kWrappers),
                     [&](string_view wrapper) { return absl::StrContains(name, wrapper); })) {
      return "";
    }
    std::string inner = WithoutWrappers(name);
    return wanted_names_.count(inner) > 0 ? inner : "";
  }

  std::vector<Place> PlacesIn(const WeightDict& dict) const {
    std::map<string_view, int> counts;
    counts[""] = 0;
    for (const WeightEntry& entry : dict.entries) {
      if (!entry.weight || skip_.Matches(entry.name)) continue;
      const bool counted = LastPart(entry.name) != kCountOfBatches;
      size_t begin = 0;
      for (int part = 0; part <= kMostPrefixParts; ++part) {
        // Old files lack counts of batches, which then are 0 and decide nothing.
        if (counted && !NameOf(entry.name.substr(begin)).empty()) {
          ++counts[entry.name.substr(0, begin)];
        }
        const size_t dot = entry.name.find('.', begin);
        if (dot == string_view::npos) break;
        begin = dot + 1;
      }
    }
    std::vector<Place> places;
    const int rank = RankOf(dict.key);
    for (const auto& [prefix, count] : counts) {
      places.push_back({&dict, prefix, count, IsAverage(prefix) ? rank + kAverage : rank});
    }
    return places;
  }

  static bool HasWeights(const WeightDict& dict) {
    return std::any_of(dict.entries.begin(), dict.entries.end(),
                       [](const WeightEntry& entry) { return entry.weight; });
  }

  // By --init_key, or what may be meant without it.
  bool Considered(const WeightDict& dict) const {
    return wanted_.key.empty() ? !IsOptimizerState(dict.key) : dict.key == wanted_.key;
  }

  std::string KeysWithWeights() const {
    std::vector<std::string> keys;
    for (const WeightDict& dict : dicts_) {
      if (HasWeights(dict) && !dict.key.empty()) keys.push_back(Shown(dict.key));
    }
    return keys.empty() ? "none" : Listed(keys, 10);
  }

  absl::Status OtherKey(string_view why) const {
    return absl::InvalidArgumentError(
        absl::StrCat("--init_key: expected an entry of the file that has tensors (",
                     KeysWithWeights(), "), found \"", wanted_.key, "\"", why));
  }

  absl::Status Choose() {
    std::vector<Place> places;
    const WeightDict* moments = nullptr;
    for (const WeightDict& dict : dicts_) {
      if (!Considered(dict)) {
        if (wanted_.key.empty() && moments == nullptr && HasWeights(dict)) moments = &dict;
        continue;
      }
      for (const Place& place : PlacesIn(dict)) places.push_back(place);
    }
    const auto has_weights = [](const Place& place) { return HasWeights(*place.dict); };
    if (moments != nullptr && std::none_of(places.begin(), places.end(), has_weights)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected weights, found what an optimizer keeps in ", Quoted(moments->key),
                       "; --init_key=", Shown(moments->key), " takes it all the same"));
    }
    if (places.empty()) return OtherKey("");
    // The prefix "" comes first in its dict.
    std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return a.names != b.names ? a.names > b.names : a.rank < b.rank;
    });
    place_ = places[0];
    if (OfAnotherModel()) return ChooseMostTensors();
    if (place_.rank >= kAverage) {
      // Weights that lack a few tensors may have been meant all the same.
      const auto other = std::find_if(places.begin(), places.end(), [&](const Place& each) {
        return each.rank < kAverage && each.names < place_.names && !each.dict->key.empty() &&
               2 * each.names >= deciding_ && each.dict != place_.dict;
      });
      if (other != places.end()) {
        alternatives_.insert(absl::StrCat("--init_key=", Shown(other->dict->key), " has ",
                                          other->names, " of its ", place_.names, " names"));
      }
    }
    for (size_t i = 1; i < places.size() && places[i].names == place_.names; ++i) {
      if (places[i].dict == place_.dict) {
        if (place_.prefix.empty()) continue;
        if (places[i].rank == place_.rank) {
          return absl::InvalidArgumentError(
              absl::StrCat("expected the model's names once, found them behind ",
                           Quoted(place_.prefix), " and behind ", Quoted(places[i].prefix),
                           "; --init_skip='", BehindRegex(places[i].prefix), "' takes the former"));
        }
        alternatives_.insert(absl::StrCat("--init_skip='", BehindRegex(place_.prefix),
                                          "' takes those behind ", Quoted(places[i].prefix)));
        continue;
      }
      if (places[i].rank == place_.rank) {
        return absl::InvalidArgumentError(
            absl::StrCat("expected the model's names in one entry, found them in ",
                         Quoted(place_.dict->key), " and in ", Quoted(places[i].dict->key),
                         "; --init_key=", Shown(place_.dict->key), " takes the former"));
      }
      alternatives_.insert(absl::StrCat("--init_key=", Shown(places[i].dict->key), " takes ",
                                        Quoted(places[i].dict->key)));
    }
    return absl::OkStatus();
  }

  // For a message about weights of another model: the dict with most tensors is what was meant.
  absl::Status ChooseMostTensors() {
    // An average is not meant where there is another.
    std::pair<bool, int64_t> most = {false, -1};
    for (const WeightDict& dict : dicts_) {
      if (!Considered(dict)) continue;
      const int64_t tensors = std::count_if(dict.entries.begin(), dict.entries.end(),
                                            [](const WeightEntry& entry) { return entry.weight; });
      const std::pair<bool, int64_t> rank = {tensors > 0 && !IsAverage(dict.key), tensors};
      if (rank > most) {
        most = rank;
        place_ = {&dict, "", 0, 0};
      }
    }
    if (most.second > 0) return absl::OkStatus();
    for (const WeightDict& dict : dicts_) {
      if (!Considered(dict)) continue;
      for (const WeightEntry& entry : dict.entries) {
        if (!entry.numpy) continue;
        if (!wanted_.key.empty()) return OtherKey(", which has numpy arrays");
        return absl::InvalidArgumentError(absl::StrCat(
            "expected tensors by name, found numpy arrays, such as ", Shown(entry.name),
            dict.key.empty() ? "" : absl::StrCat(" in its entry ", Quoted(dict.key)),
            "; torch.from_numpy() makes tensors of them"));
      }
    }
    if (!wanted_.key.empty()) return OtherKey(", which has none");
    std::vector<std::string> names;
    for (const WeightEntry& entry : place_.dict->entries) names.push_back(Shown(entry.name));
    return absl::InvalidArgumentError(
        absl::StrCat("expected tensors by name, found none",
                     names.empty() ? "" : absl::StrCat(" among its entries ", Listed(names, 10)),
                     "; in Python, torch.save(model.state_dict(), FILE) writes them"));
  }

  // Sorts the dict's entries into those of the model, and others.
  absl::Status FindEntries() {
    for (const WeightEntry& entry : place_.dict->entries) {
      if (skip_.Matches(entry.name)) {
        ++skipped_;
        continue;
      }
      if (!absl::StartsWith(entry.name, place_.prefix)) {
        passed_.push_back(Shown(entry.name));
        continue;
      }
      const string_view rest = entry.name.substr(place_.prefix.size());
      const std::string name = NameOf(rest);
      if (skip_.Matches(rest) || skip_.Matches(name)) {
        ++skipped_;
        continue;
      }
      if (name.empty()) {
        if (entry.weight) {
          difference_.Unexpected(rest);
        } else {
          passed_.push_back(Shown(entry.name));
        }
        continue;
      }
      const auto [place, added] = entries_.emplace(name, &entry);
      if (!added) {
        // The model's own spelling counts.
        const WeightEntry* const before = place->second;
        if (name == rest) {
          place->second = &entry;
        } else if (before->name.substr(place_.prefix.size()) != name) {
          return absl::InvalidArgumentError(
              absl::StrCat(Where(), "expected ", name, " once, found ", Quoted(before->name),
                           " and ", Quoted(entry.name), "; --init_skip='^",
                           RE2::QuoteMeta(Shown(entry.name)), "$' takes the former"));
        }
        passed_.push_back(Shown(name == rest ? before->name : entry.name));
      }
    }
    for (const auto& [name, entry] : entries_) {
      if (entry->name.substr(place_.prefix.size()) != name) inner_wrappers_ = true;
    }
    return absl::OkStatus();
  }

  absl::Status ReadAll() {
    for (const TensorShape& want : wanted_.tensors) {
      if (wanted_names_.count(want.name) == 0) continue;
      const auto entry = entries_.find(want.name);
      if (entry == entries_.end()) {
        if (LastPart(want.name) != kCountOfBatches) {
          difference_.Missing(want.name);
          continue;
        }
        ++zeros_;
        found_.tensors.push_back(
            {want.name, StoredType::kInt64, {}, std::string(sizeof(int64_t), '\0')});
        continue;
      }
      GS_ASSIGN_OR_RETURN(HostTensor tensor, entry->second->read());
      tensor.name = want.name;
      // A number that PyTorch before 0.4 kept as a vector of one.
      if (want.sizes.empty() && tensor.sizes == std::vector<int64_t>{1}) tensor.sizes.clear();
      if (tensor.sizes != want.sizes) {
        difference_.Other(want, tensor.sizes);
        continue;
      }
      found_.tensors.push_back(std::move(tensor));
    }
    if (difference_.none()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(Where(), difference_.ToText(wanted_.tensors.size()), WayOut()));
  }

  // Of which nothing much would be left.
  bool OfAnotherModel() const { return 2 * place_.names < deciding_; }

  std::string WayOut() const {
    if (OfAnotherModel()) return "";
    std::set<std::string> all = difference_.names();
    all.insert(wanted_names_.begin(), wanted_names_.end());
    const std::string regex = RegexFor(difference_.names(), all);
    if (regex.empty()) {
      return "; is it of another --model? --init_skip=REGEX starts without what it matches";
    }
    return absl::StrCat("; --init_skip='", regex, "' starts without these");
  }

  // "its entry "model", without the prefix "module.": "
  std::string Where() const {
    std::vector<std::string> parts = PlaceParts();
    return parts.empty() ? "" : absl::StrCat(absl::StrJoin(parts, ", "), ": ");
  }

  std::vector<std::string> PlaceParts() const {
    std::vector<std::string> parts;
    if (!place_.dict->key.empty()) {
      parts.push_back(absl::StrCat("its entry ", Quoted(place_.dict->key)));
    }
    if (!place_.prefix.empty()) {
      parts.push_back(absl::StrCat("names without ", Quoted(place_.prefix)));
    }
    return parts;
  }

  std::string Account() const {
    std::vector<std::string> parts = PlaceParts();
    if (!alternatives_.empty()) {
      if (parts.empty()) parts.push_back("names of the file itself");
      parts.back() += absl::StrCat(" (", absl::StrJoin(alternatives_, "; "), ")");
    }
    if (inner_wrappers_) parts.push_back("names without those of wrappers inside");
    if (zeros_ > 0) {
      parts.push_back(
          absl::StrCat(zeros_, " ", kCountOfBatches, ", which it does not have, are 0"));
    }
    if (!passed_.empty()) parts.push_back(absl::StrCat("not read: ", Listed(passed_, 5)));
    if (!found_.left.empty()) {
      parts.push_back(absl::StrCat("by --init_skip these keep their initial values: ",
                                   absl::StrJoin(found_.left, ", ")));
    }
    return absl::StrJoin(parts, "; ");
  }

  const std::vector<WeightDict>& dicts_;
  const WeightsWanted& wanted_;
  const Skip skip_;
  std::set<std::string, std::less<>> wanted_names_;  // those that are not skipped
  int deciding_ = 0;                                 // of these, all but counts of batches
  Place place_;
  std::set<std::string> alternatives_;  // how to take others that have as many of the names
  std::map<std::string, const WeightEntry*> entries_;
  std::vector<std::string> passed_;
  int64_t skipped_ = 0;  // entries of the file
  int64_t zeros_ = 0;
  bool inner_wrappers_ = false;
  Difference difference_;
  WeightsFound found_;
};

// A header of JSON begins after its length.
bool LooksLikeSafetensors(string_view file) { return file.size() > 8 && file[8] == '{'; }

absl::StatusOr<std::vector<WeightDict>> Open(string_view file) {
  if (!LooksLikeSafetensors(file)) return OpenTorchFile(file);
  struct Content {
    Safetensors read;
    std::map<std::string, absl::Status> unread;
  };
  const auto content = std::make_shared<Content>();
  GS_ASSIGN_OR_RETURN(content->read, DecodeSafetensors(file, &content->unread));
  WeightDict dict;
  for (HostTensor& tensor : content->read.tensors) {
    WeightEntry entry;
    entry.name = tensor.name;
    entry.read = [content, &tensor]() -> absl::StatusOr<HostTensor> {
      return HostTensor{tensor.name, tensor.type, tensor.sizes, std::move(tensor.data)};
    };
    dict.entries.push_back(std::move(entry));
  }
  for (const auto& [name, why] : content->unread) {
    WeightEntry entry;
    entry.name = name;
    entry.read = [content, why = why]() -> absl::StatusOr<HostTensor> { return why; };
    dict.entries.push_back(std::move(entry));
  }
  return std::vector<WeightDict>{std::move(dict)};
}

absl::StatusOr<WeightsFound> Decode(string_view file, const WeightsWanted& wanted) {
  GS_ASSIGN_OR_RETURN(const std::vector<WeightDict> dicts, Open(file));
  return FitWeights(dicts, wanted);
}

}  // namespace

std::string ErrorInRegex(const std::string& regex) { return RE2(regex, RE2::Quiet).error(); }

absl::StatusOr<WeightsFound> FitWeights(const std::vector<WeightDict>& dicts,
                                        const WeightsWanted& wanted) {
  return Fitting(dicts, wanted).Run();
}

absl::StatusOr<WeightsFound> ReadWeights(const std::string& path, const WeightsWanted& wanted) {
  const auto with = [](string_view front, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(front, status.message()));
  };
  const absl::StatusOr<std::string> file = NewLocalFileSystem()->Read(path);
  if (!file.ok()) {
    std::error_code none;
    for (const char* inside : {"model.pt", "latest/model.pt"}) {
      const std::string model = absl::StrCat(path, "/", inside);
      if (!std::filesystem::is_regular_file(model, none)) continue;
      return absl::Status(file.status().code(),
                          absl::StrCat("--init_from: expected a file of weights, found the folder ",
                                       path, ", which has one: ", model));
    }
    return with("--init_from: ", file.status());
  }
  absl::StatusOr<WeightsFound> found = Decode(*file, wanted);
  if (found.ok() || absl::StartsWith(found.status().message(), "--")) return found;
  // As Hugging Face's libraries name parts: model-00001-of-00002.safetensors.
  const bool part = RE2::PartialMatch(path, "-[0-9]{5}-of-[0-9]{5}[.][a-z]+$");
  return with(
      absl::StrCat("--init_from: ", path, part ? ", by its name one of several files" : "", ": "),
      found.status());
}

absl::Status CompareShapes(const std::vector<TensorShape>& wanted,
                           const std::map<std::string, std::vector<int64_t>>& found) {
  Difference difference;
  std::set<string_view> known;
  for (const TensorShape& want : wanted) {
    known.insert(want.name);
    const auto have = found.find(want.name);
    if (have == found.end()) {
      difference.Missing(want.name);
    } else if (have->second != want.sizes) {
      difference.Other(want, have->second);
    }
  }
  for (const auto& tensor : found) {
    if (known.count(tensor.first) == 0) difference.Unexpected(tensor.first);
  }
  if (difference.none()) return absl::OkStatus();
  return absl::InvalidArgumentError(difference.ToText(wanted.size()));
}

}  // namespace gradsync
