#include "checkpoint/unpickler.h"

#include <cstring>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

using Kind = PickleValue::Kind;

constexpr absl::string_view kOrderedDict = "collections OrderedDict";
constexpr absl::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr absl::string_view kRebuildParameter = "torch._utils _rebuild_parameter";
constexpr absl::string_view kSize = "torch Size";

// Long names would fill a screen.
std::string Shown(absl::string_view text) { return absl::CHexEscape(text.substr(0, 80)); }

absl::Status NoPickle(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("pickle: ", what));
}

}  // namespace

// The pickle machine: a stack, marks in it, and a memo.
class Unpickler {
 public:
  explicit Unpickler(absl::string_view bytes) : all_(bytes), left_(bytes) {
    pickle_.values_ = std::make_unique<std::deque<PickleValue>>();
  }

  absl::StatusOr<Pickle> Run() {
    while (!done_) {
      GS_ASSIGN_OR_RETURN(const uint8_t operation, Number<uint8_t>());
      const size_t at = all_.size() - left_.size() - 1;
      const absl::Status step = Step(operation);
      if (!step.ok()) {
        return absl::Status(step.code(), absl::StrCat(step.message(), ", at byte ", at));
      }
    }
    return std::move(pickle_);
  }

 private:
  absl::Status Step(uint8_t operation) {
    switch (operation) {
      case 0x80:  // PROTO
        return Skip(1);
      case 0x95:  // FRAME
        return Skip(8);
      case '.':  // STOP
        return Stop();
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case 'N':
        return Push(Kind::kNone);
      case 0x88:
        return PushInteger(Kind::kBool, 1);
      case 0x89:
        return PushInteger(Kind::kBool, 0);
      case '}':
        return Push(Kind::kDict);
      case ']':
        return Push(Kind::kList);
      case ')':
        return Push(Kind::kTuple);
      case '0':  // POP
        return Pop().status();
      case '1':  // POP_MARK
        return PopMark().status();
      case '2':  // DUP
        return Duplicate();
      default:
        break;
    }
    absl::optional<absl::Status> done = Scalar(operation);
    if (!done.has_value()) done = Memo(operation);
    if (!done.has_value()) done = Collect(operation);
    if (!done.has_value()) done = Object(operation);
    if (done.has_value()) return *done;
    return absl::InvalidArgumentError(
        absl::StrCat("pickle: expected the operations of a state dict, found operation 0x",
                     absl::Hex(operation, absl::kZeroPad2)));
  }

  absl::optional<absl::Status> Scalar(uint8_t operation) {
    switch (operation) {
      case 'J':
        return PushNumber<int32_t>();
      case 'K':
        return PushNumber<uint8_t>();
      case 'M':
        return PushNumber<uint16_t>();
      case 0x8a:
        return PushLong();
      case 'G':
        return PushFloat();
      case 'X':
      case 'B':
      case 'T':
        return PushText<uint32_t>();
      case 0x8c:
      case 'C':
      case 'U':
        return PushText<uint8_t>();
      case 0x8d:
      case 0x8e:
        return PushText<uint64_t>();
      default:
        return absl::nullopt;
    }
  }

  absl::optional<absl::Status> Memo(uint8_t operation) {
    switch (operation) {
      case 'q':
        return Remember<uint8_t>();
      case 'r':
        return Remember<uint32_t>();
      case 0x94:
        return RememberAs(static_cast<uint32_t>(memo_.size()));
      case 'h':
        return Recall<uint8_t>();
      case 'j':
        return Recall<uint32_t>();
      default:
        return absl::nullopt;
    }
  }

  absl::optional<absl::Status> Collect(uint8_t operation) {
    switch (operation) {
      case 't':
        return MarkedTuple();
      case 0x85:
      case 0x86:
      case 0x87:
        return Tuple(operation - 0x84u);
      case 's':
        return SetItems(/*marked=*/false);
      case 'u':
        return SetItems(/*marked=*/true);
      case 'a':
        return Append(/*marked=*/false);
      case 'e':
        return Append(/*marked=*/true);
      default:
        return absl::nullopt;
    }
  }

  absl::optional<absl::Status> Object(uint8_t operation) {
    switch (operation) {
      case 'c':
        return Global();
      case 0x93:
        return StackGlobal();
      case 'Q':
        return PersistentId();
      case 'R':
      case 0x81:  // NEWOBJ: an object of a class is what a call of it gives
        return Call();
      case 'b':
        return Pop().status();  // BUILD: what the object would do with its state is not done
      default:
        return absl::nullopt;
    }
  }

  absl::StatusOr<absl::string_view> Take(uint64_t bytes) {
    if (bytes > left_.size())
      return NoPickle(absl::StrCat("cut off behind its ", all_.size(), " bytes"));
    const absl::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

  absl::Status Skip(uint64_t bytes) { return Take(bytes).status(); }

  template <typename T>
  absl::StatusOr<T> Number() {
    GS_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(sizeof(T)));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  absl::StatusOr<absl::string_view> Line() {
    const size_t end = left_.find('\n');
    if (end == absl::string_view::npos)
      return NoPickle(absl::StrCat("cut off behind its ", all_.size(), " bytes"));
    GS_ASSIGN_OR_RETURN(const absl::string_view line, Take(end + 1));
    return line.substr(0, end);
  }

  PickleValue* New(Kind kind) {
    PickleValue& value = pickle_.values_->emplace_back();
    value.kind = kind;
    return &value;
  }

  absl::Status Push(Kind kind) {
    stack_.push_back(New(kind));
    return absl::OkStatus();
  }

  absl::Status PushInteger(Kind kind, int64_t integer) {
    PickleValue* const value = New(kind);
    value->integer = integer;
    stack_.push_back(value);
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status PushNumber() {
    GS_ASSIGN_OR_RETURN(const T number, Number<T>());
    return PushInteger(Kind::kInteger, number);
  }

  // Two's complement, little endian, as many bytes as needed.
  absl::Status PushLong() {
    GS_ASSIGN_OR_RETURN(const uint8_t size, Number<uint8_t>());
    GS_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(size));
    if (size > 8) return NoPickle(absl::StrCat("an integer of ", size, " bytes"));
    const bool negative = size > 0 && (bytes.back() & 0x80) != 0;
    uint64_t integer = negative ? ~uint64_t{0} : 0;
    std::memcpy(&integer, bytes.data(), size);
    return PushInteger(Kind::kInteger, static_cast<int64_t>(integer));
  }

  absl::Status PushFloat() {  // big endian
    GS_ASSIGN_OR_RETURN(const uint64_t bits, Number<uint64_t>());
    const uint64_t swapped = __builtin_bswap64(bits);
    PickleValue* const value = New(Kind::kFloat);
    std::memcpy(&value->number, &swapped, sizeof(double));
    stack_.push_back(value);
    return absl::OkStatus();
  }

  template <typename Length>
  absl::Status PushText() {
    GS_ASSIGN_OR_RETURN(const Length length, Number<Length>());
    GS_ASSIGN_OR_RETURN(const absl::string_view text, Take(length));
    PickleValue* const value = New(Kind::kText);
    value->text = std::string(text);
    stack_.push_back(value);
    return absl::OkStatus();
  }

  // What lies below the last mark is not there for a pop.
  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }

  absl::StatusOr<PickleValue*> Pop() {
    GS_ASSIGN_OR_RETURN(PickleValue* const top, Top());
    stack_.pop_back();
    return top;
  }

  absl::StatusOr<PickleValue*> Top() const {
    if (stack_.size() <= Floor()) return NoPickle("an operation without what it is about");
    return stack_.back();
  }

  absl::StatusOr<std::vector<PickleValue*>> PopMark() {
    if (marks_.empty()) return NoPickle("an operation without its mark");
    const auto begin = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<PickleValue*> above(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return above;
  }

  absl::Status Duplicate() {
    GS_ASSIGN_OR_RETURN(PickleValue* const top, Top());
    stack_.push_back(top);
    return absl::OkStatus();
  }

  absl::Status Stop() {
    GS_ASSIGN_OR_RETURN(pickle_.root_, Pop());
    done_ = true;
    return absl::OkStatus();
  }

  absl::Status RememberAs(uint32_t index) {
    GS_ASSIGN_OR_RETURN(memo_[index], Top());
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Remember() {
    GS_ASSIGN_OR_RETURN(const T index, Number<T>());
    return RememberAs(index);
  }

  template <typename T>
  absl::Status Recall() {
    GS_ASSIGN_OR_RETURN(const T index, Number<T>());
    const auto found = memo_.find(index);
    if (found == memo_.end()) return NoPickle(absl::StrCat("nothing was kept as ", index));
    stack_.push_back(found->second);
    return absl::OkStatus();
  }

  absl::Status MarkedTuple() {
    GS_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items, PopMark());
    PickleValue* const tuple = New(Kind::kTuple);
    tuple->items.assign(items.begin(), items.end());
    stack_.push_back(tuple);
    return absl::OkStatus();
  }

  absl::Status Tuple(size_t size) {
    PickleValue* const tuple = New(Kind::kTuple);
    tuple->items.resize(size);
    for (size_t i = size; i-- > 0;) {
      GS_ASSIGN_OR_RETURN(tuple->items[i], Pop());
    }
    stack_.push_back(tuple);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<PickleValue*>> Operands(bool marked, size_t count) {
    if (marked) return PopMark();
    std::vector<PickleValue*> operands(count);
    for (size_t i = count; i-- > 0;) {
      GS_ASSIGN_OR_RETURN(operands[i], Pop());
    }
    return operands;
  }

  absl::Status SetItems(bool marked) {
    GS_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items, Operands(marked, 2));
    GS_ASSIGN_OR_RETURN(PickleValue* const dict, Top());
    if (dict->kind != Kind::kDict || items.size() % 2 != 0) return NoPickle("items of no dict");
    for (size_t i = 0; i < items.size(); i += 2) dict->pairs.push_back({items[i], items[i + 1]});
    return absl::OkStatus();
  }

  absl::Status Append(bool marked) {
    GS_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items, Operands(marked, 1));
    GS_ASSIGN_OR_RETURN(PickleValue* const list, Top());
    if (list->kind != Kind::kList) return NoPickle("elements of no list");
    list->items.insert(list->items.end(), items.begin(), items.end());
    return absl::OkStatus();
  }

  void PushGlobal(absl::string_view module, absl::string_view name) {
    PickleValue* const global = New(Kind::kGlobal);
    global->text = absl::StrCat(module, " ", name);
    stack_.push_back(global);
  }

  absl::Status Global() {
    GS_ASSIGN_OR_RETURN(const absl::string_view module, Line());
    GS_ASSIGN_OR_RETURN(const absl::string_view name, Line());
    PushGlobal(module, name);
    return absl::OkStatus();
  }

  absl::Status StackGlobal() {
    GS_ASSIGN_OR_RETURN(const PickleValue* const name, Pop());
    GS_ASSIGN_OR_RETURN(const PickleValue* const module, Pop());
    if (name->kind != Kind::kText || module->kind != Kind::kText) {
      return NoPickle("a name that is no string");
    }
    PushGlobal(module->text, name->text);
    return absl::OkStatus();
  }

  absl::Status PersistentId() {
    GS_ASSIGN_OR_RETURN(const PickleValue* const id, Pop());
    if (id->kind != Kind::kTuple) return NoPickle("a storage that no tuple names");
    PickleValue* const storage = New(Kind::kStorage);
    storage->items = id->items;
    stack_.push_back(storage);
    return absl::OkStatus();
  }

  absl::Status Call() {
    GS_ASSIGN_OR_RETURN(const PickleValue* const arguments, Pop());
    GS_ASSIGN_OR_RETURN(const PickleValue* const function, Pop());
    if (function->kind != Kind::kGlobal || arguments->kind != Kind::kTuple) {
      return NoPickle("a call of no function");
    }
    const std::vector<const PickleValue*>& items = arguments->items;
    if (function->text == kOrderedDict && items.empty()) return Push(Kind::kDict);
    if (function->text == kRebuildTensor && items.size() >= 6) {
      PickleValue* const tensor = New(Kind::kTensor);
      tensor->items = items;
      stack_.push_back(tensor);
      return absl::OkStatus();
    }
    if ((function->text == kRebuildParameter || function->text == kSize) && !items.empty()) {
      // The first argument is the tensor, or the tuple.
      stack_.push_back(const_cast<PickleValue*>(items[0]));
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("pickle: expected tensors, numbers and strings, found a call of ",
                     Shown(function->text), ", which is not made"));
  }

  const absl::string_view all_;
  absl::string_view left_;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // stack sizes
  std::map<uint32_t, PickleValue*> memo_;
  bool done_ = false;
};

absl::StatusOr<Pickle> Pickle::Parse(absl::string_view bytes) { return Unpickler(bytes).Run(); }

}  // namespace gradsync
