#include "core/base/log_line.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "core/base/utf8.h"

namespace gradsync {
namespace {

const char* NameOf(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "INFO";
    case Severity::kWarning:
      return "WARNING";
    case Severity::kError:
      break;
  }
  return "ERROR";
}

// Of a character's bytes. Those from U+0080 to U+009F are controls too: U+009B begins what ESC [ does.
bool IsControl(absl::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (bytes.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(bytes[1]) < 0xa0;
}

std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (bytes == 0) {
      quoted += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      quoted += {'\\', text[0]};
    } else if (IsControl(text.substr(0, bytes))) {
      // The second byte of U+0080 to U+009F is the character's number.
      const auto last = static_cast<unsigned char>(text[bytes - 1]);
      absl::StrAppendFormat(&quoted, "\\u%04x", last);
    } else {
      absl::StrAppend(&quoted, text.substr(0, bytes));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return quoted + "\"";
}

// Takes what Quoted() wrote off the front. Nothing where there is none.
absl::optional<std::string> ConsumeQuoted(absl::string_view* text) {
  std::string found;
  if (!absl::ConsumePrefix(text, "\"")) return absl::nullopt;
  while (!text->empty() && (*text)[0] != '"') {
    uint32_t number = 0;
    if (!absl::ConsumePrefix(text, "\\")) {
      found += (*text)[0];
    } else if (absl::ConsumePrefix(text, "u")) {
      if (text->size() < 4 || !absl::SimpleHexAtoi(text->substr(0, 4), &number)) {
        return absl::nullopt;
      }
      text->remove_prefix(3);
      found += number < 0x80   ? std::string(1, static_cast<char>(number))
               : number < 0xa0 ? std::string({'\xc2', static_cast<char>(number)})
                               // The one character beyond U+009F that is escaped.
                               : kReplacementCharacter;
    } else if (!text->empty()) {
      found += (*text)[0];
    }
    if (!text->empty()) text->remove_prefix(1);
  }
  if (!absl::ConsumePrefix(text, "\"")) return absl::nullopt;
  return found;
}

// Takes all up to `name` and its string, which it returns.
absl::optional<std::string> ConsumeField(absl::string_view name, absl::string_view* text) {
  const std::string head = absl::StrCat("\"", name, "\":");
  const size_t begin = text->find(head);
  if (begin == text->npos) return absl::nullopt;
  text->remove_prefix(begin + head.size());
  return ConsumeQuoted(text);
}

}  // namespace

std::string PrintableLine(absl::string_view text) {
  std::string line;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const absl::string_view character = text.substr(0, std::max<size_t>(bytes, 1));
    text.remove_prefix(character.size());
    if (bytes > 0 && !IsControl(character)) {
      absl::StrAppend(&line, character);
    } else if (character == "\n") {
      line += "\\n";
    } else if (character == "\r") {
      line += "\\r";
    } else if (character == "\t") {
      line += "\\t";
    } else {
      for (const char byte : character) {
        absl::StrAppendFormat(&line, "\\x%02x", static_cast<unsigned char>(byte));
      }
    }
  }
  return line;
}

std::string LogLine(LogFormat format, const LogSource& source, Severity severity,
                    absl::string_view message) {
  if (format == LogFormat::kText) return absl::StrCat(source.program, ": ", PrintableLine(message));
  std::string line = absl::StrCat(
      "{\"time\":\"", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", source.time, absl::UTCTimeZone()),
      "\",\"severity\":\"", NameOf(severity), "\",\"program\":", Quoted(source.program));
  if (source.rank >= 0) absl::StrAppend(&line, ",\"rank\":", source.rank);
  if (source.server >= 0) absl::StrAppend(&line, ",\"server\":", source.server);
  if (source.step >= 0) absl::StrAppend(&line, ",\"step\":", source.step);
  absl::StrAppend(&line, ",\"message\":", Quoted(message), "}");
  return line;
}

std::string AsTextLine(absl::string_view line) {
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "{\"time\":")) return std::string(line);
  const absl::optional<std::string> program = ConsumeField("program", &rest);
  const absl::optional<std::string> message = ConsumeField("message", &rest);
  if (!program.has_value() || !message.has_value() || rest != "}") return std::string(line);
  LogSource source;
  source.program = *program;
  return LogLine(LogFormat::kText, source, Severity::kError, *message);
}

}  // namespace gradsync
