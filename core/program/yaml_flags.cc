#include "core/program/yaml_flags.h"

#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/program/regular_file.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace gradsync {
namespace {

// Aliases can make a short file say very much.
constexpr size_t kMostSettings = 10000;
// And a section can be in itself.
constexpr int kDeepest = 50;

constexpr char kWithoutNul[] = "a text without NUL bytes";

constexpr char kQuoted[] = "!";  // the tag of a text in quotes

// Whether readers of YAML take these plain words for a boolean or, as Python spells it, for nothing.
bool IsWord(const std::string& text) {
  const std::string word = absl::AsciiStrToLower(text);
  return word == "true" || word == "false" || word == "yes" || word == "no" || word == "on" ||
         word == "off" || text == "None";
}

absl::Status Unexpected(absl::string_view name, const YAML::Mark& mark, absl::string_view what,
                        absl::string_view expected, absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, ":", mark.line + 1, ": ", what, "expected ", expected, ", found ", found));
}

// Whoever takes a text for one of C's reads it up to there.
bool HasNul(const std::string& text) { return text.find('\0') != text.npos; }

absl::string_view KindOf(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Null:
      return "nothing";
    case YAML::NodeType::Scalar:
      return "a text";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Map:
      return "a section";
    default:
      return "nothing that is known";
  }
}

// Counts documents, and knows where the last one begins. YAML::LoadAll() would do, but reads empty
// documents for ever where a comma follows one.
class Documents : public YAML::EventHandler {
 public:
  int count() const { return count_; }
  const YAML::Mark& begin() const { return begin_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    ++count_;
    begin_ = mark;
    in_root_ = false;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { Node(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Node(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string&) override {
    Node(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Node(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    Node(mark);
  }
  void OnMapEnd() override {}

 private:
  void Node(const YAML::Mark& mark) {
    if (!in_root_) begin_ = mark;
    in_root_ = true;
  }

  int count_ = 0;
  bool in_root_ = false;
  YAML::Mark begin_;
};

class Reader {
 public:
  explicit Reader(absl::string_view name) : name_(name) {}

  absl::StatusOr<std::vector<FlagSetting>> Read(const std::string& text) {
    Documents documents;
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (documents.count() < 2 && parser.HandleNextDocument(documents)) {
    }
    if (documents.count() > 1) {
      return Unexpected(name_, documents.begin(), "", "one document", "a second one");
    }
    const YAML::Node document = YAML::Load(text);
    if (document.IsNull()) return settings_;
    if (!document.IsMap()) {
      return Unexpected(name_, document.Mark(), "", "lines such as \"lr: 0.1\"", KindOf(document));
    }
    GS_RETURN_IF_ERROR(ReadSection(document));
    return std::move(settings_);
  }

 private:
  absl::Status ReadSection(const YAML::Node& section) {
    for (const auto& entry : section) {
      const YAML::Node& key = entry.first;
      if (!key.IsScalar()) {
        return Unexpected(name_, key.Mark(), "", "the name of a flag", KindOf(key));
      }
      if (settings_.size() == kMostSettings) {
        return Unexpected(name_, key.Mark(), "", absl::StrCat("at most ", kMostSettings, " lines"),
                          "more");
      }
      GS_RETURN_IF_ERROR(ReadEntry(key, entry.second));
    }
    return absl::OkStatus();
  }

  absl::Status ReadEntry(const YAML::Node& key, const YAML::Node& value) {
    if (HasNul(key.Scalar())) {
      return Unexpected(name_, key.Mark(), "", "the name of a flag", "one with a NUL byte");
    }
    FlagSetting setting;
    setting.name = key.Scalar();
    setting.line = key.Mark().line + 1;
    if (setting.name == "<<" && key.Tag() != kQuoted) {
      return Unexpected(name_, key.Mark(), "<<: ", "the name of a flag or of a section",
                        "YAML's merge key; write the lines of the other section out");
    }
    if (value.IsScalar()) {
      setting.value = value.Scalar();
      if (HasNul(setting.value)) {
        return Unexpected(name_, value.Mark(), setting.name + ": ", kWithoutNul, "one");
      }
      if (value.Tag() != kQuoted && IsWord(setting.value)) setting.kind = FlagSetting::Kind::kWord;
    } else if (value.IsSequence()) {
      setting.kind = FlagSetting::Kind::kList;
      GS_RETURN_IF_ERROR(ReadList(setting.name, value, &setting.value));
    } else if (value.IsMap()) {
      setting.kind = FlagSetting::Kind::kSection;
    } else {
      return Unexpected(name_, key.Mark(), setting.name + ": ", "a value (\"\" for an empty text)",
                        KindOf(value));
    }
    settings_.push_back(setting);
    if (!value.IsMap()) return absl::OkStatus();
    if (depth_ == kDeepest) {
      return Unexpected(name_, key.Mark(), setting.name + ": ",
                        absl::StrCat("at most ", kDeepest, " sections within each other"), "more");
    }
    ++depth_;
    GS_RETURN_IF_ERROR(ReadSection(value));
    --depth_;
    return absl::OkStatus();
  }

  absl::Status ReadList(const std::string& key, const YAML::Node& list, std::string* joined) {
    std::vector<std::string> elements;
    for (const YAML::Node& element : list) {
      if (!element.IsScalar()) {
        return Unexpected(name_, element.Mark(), key + ": ", "texts in the list", KindOf(element));
      }
      if (HasNul(element.Scalar())) {
        return Unexpected(name_, element.Mark(), key + ": ", kWithoutNul, "one");
      }
      // Flags have their lists as one text.
      if (absl::StrContains(element.Scalar(), ',')) {
        return Unexpected(name_, element.Mark(), key + ": ", "elements without a comma",
                          absl::StrCat("\"", element.Scalar(), "\""));
      }
      elements.push_back(element.Scalar());
    }
    *joined = absl::StrJoin(elements, ",");
    return absl::OkStatus();
  }

  const absl::string_view name_;
  std::vector<FlagSetting> settings_;
  int depth_ = 0;
};

std::string Quoted(const std::string& text) {
  YAML::Emitter emitter;
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

// A number or a bool as it is, so that other readers see what it is.
std::string Scalar(const std::string& text) {
  double number = 0;
  const bool plain =
      text == "true" || text == "false" ||
      (text.find_first_not_of("0123456789.e+-") == text.npos && absl::SimpleAtod(text, &number));
  return plain ? text : Quoted(text);
}

}  // namespace

absl::StatusOr<std::vector<FlagSetting>> ParseYamlFlags(const std::string& text,
                                                        absl::string_view name) {
  try {
    return Reader(name).Read(text);
  } catch (const YAML::Exception& error) {
    return Unexpected(name, error.mark, "", "YAML", error.msg);
  }
}

absl::StatusOr<std::vector<FlagSetting>> ReadYamlFlags(const std::string& path,
                                                       absl::string_view name) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path);
  if (!text.ok()) {
    return absl::NotFoundError(
        absl::StrCat(name, ": expected a YAML file, found: ", text.status().message()));
  }
  return ParseYamlFlags(*text, name);
}

std::string YamlLine(const FlagRecord& flag) {
  if (!flag.is_list) return absl::StrCat(flag.name, ": ", Scalar(flag.value));
  const std::vector<std::string> elements = absl::StrSplit(flag.value, ',', absl::SkipEmpty());
  return absl::StrCat(flag.name, ": [",
                      absl::StrJoin(elements, ", ",
                                    [](std::string* out, const std::string& element) {
                                      absl::StrAppend(out, Scalar(element));
                                    }),
                      "]");
}

}  // namespace gradsync
