#include "worker/checkpoint/unpickler.h"

#include <cstring>
#include <unordered_map>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

using Kind = PickleValue::Kind;

// Long names would fill a screen.
std::string Shown(absl::string_view text) { return absl::CHexEscape(text.substr(0, 80)); }

absl::Status NoPickle(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("pickle: ", what));
}

bool IsTensorClass(const PickleValue& value) {
  return value.IsGlobal("torch", "Tensor") || value.IsGlobal("torch._tensor", "Tensor") ||
         value.IsGlobal("torch.nn.parameter", "Parameter");
}

bool MakesTensor(const PickleValue& function) {
  return function.IsGlobal("torch._utils", "_rebuild_tensor_v2") ||
         function.IsGlobal("torch._utils", "_rebuild_tensor");
}

bool MakesDict(const PickleValue& function, const std::vector<const PickleValue*>& arguments) {
  return (function.IsGlobal("collections", "OrderedDict") && arguments.empty()) ||
         function.IsGlobal("collections", "defaultdict");
}

// Functions whose value is their first argument, as far as values go: torch.Size of a tuple, a
// parameter of a tensor, what LibTorch's pickle_save says the type of.
bool KeepsFirstArgument(const PickleValue& function) {
  return function.IsGlobal("torch._utils", "_rebuild_parameter") ||
         function.IsGlobal("torch._utils", "_rebuild_parameter_with_state") ||
         function.IsGlobal("torch", "Size") ||
         function.IsGlobal("torch.jit._pickle", "restore_type_tag");
}

}  // namespace

bool IsNumpyArray(const PickleValue& value) {
  if (value.kind != Kind::kObject || value.inner == nullptr || value.inner->kind != Kind::kGlobal) {
    return false;
  }
  const absl::string_view function = value.inner->items[1]->text;
  return absl::StartsWith(value.inner->items[0]->text, "numpy.") &&
         (function == "_reconstruct" || function == "_frombuffer");
}

std::string Describe(const PickleValue& value) {
  switch (value.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a bool";
    case Kind::kInteger:
    case Kind::kFloat:
      return "a number";
    case Kind::kText:
      return "a string";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kList:
      return "a list";
    case Kind::kDict:
      return "a dict";
    case Kind::kGlobal:
      return absl::StrCat("the name ", Shown(value.items[0]->text), " ",
                          Shown(value.items[1]->text));
    case Kind::kStorage:
      return "a storage";
    case Kind::kTensor:
      return "a tensor";
    case Kind::kObject:
      break;
  }
  if (value.inner == nullptr) return std::string(value.text);
  if (value.inner->kind != Kind::kGlobal) return "an object";
  if (IsNumpyArray(value)) return "a numpy array, of which torch.from_numpy() makes a tensor";
  return absl::StrCat("an object made by ", Shown(value.inner->items[0]->text), " ",
                      Shown(value.inner->items[1]->text));
}

// The pickle machine: a stack, marks in it, and a memo. Each operation allocates a constant amount
// at most, and containers are never copied: a memoized list could be asked for at every third byte,
// and its copies would take memory in the square of the file's size.
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
      if (static_cast<int64_t>(pickle_.values_->size()) > Pickle::most_values()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "pickle: expected at most ", Pickle::most_values(), " values, found more"));
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
      case 0x98:  // READONLY_BUFFER
        return absl::OkStatus();
      case '.':  // STOP
        return Stop();
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case '0':
        return PopOrMark();
      case '1':  // POP_MARK
        return PopMark().status();
      case '2':  // DUP
        return Duplicate();
      default:
        break;
    }
    absl::optional<absl::Status> done = Scalar(operation);
    if (!done.has_value()) done = Text(operation);
    if (!done.has_value()) done = Memo(operation);
    if (!done.has_value()) done = Collect(operation);
    if (!done.has_value()) done = Object(operation);
    if (done.has_value()) return *done;
    return absl::InvalidArgumentError(
        absl::StrCat("pickle: expected the operations of protocols 0 to 5, found operation 0x",
                     absl::Hex(operation, absl::kZeroPad2)));
  }

  absl::optional<absl::Status> Scalar(uint8_t operation) {
    switch (operation) {
      case 'N':
        return Push(Kind::kNone);
      case 0x88:
        return PushInteger(Kind::kBool, 1);
      case 0x89:
        return PushInteger(Kind::kBool, 0);
      case 'I':
      case 'L':
        return PushIntegerLine();
      case 'J':
        return PushNumber<int32_t>();
      case 'K':
        return PushNumber<uint8_t>();
      case 'M':
        return PushNumber<uint16_t>();
      case 0x8a:
        return PushLong<uint8_t>();
      case 0x8b:
        return PushLong<uint32_t>();
      case 'F':
        return PushOpaqueLine("a number");
      case 'G':
        return PushFloat();
      default:
        return absl::nullopt;
    }
  }

  absl::optional<absl::Status> Text(uint8_t operation) {
    switch (operation) {
      case 'S':
      case 'V':
        return PushOpaqueLine("a string of protocol 0");
      case 'X':  // str
      case 'T':  // str of Python 2
        return PushText<uint32_t>();
      case 'U':
      case 0x8c:
        return PushText<uint8_t>();
      case 0x8d:
        return PushText<uint64_t>();
      case 'C':
        return PushBytes<uint8_t>();
      case 'B':
        return PushBytes<uint32_t>();
      case 0x8e:
      case 0x96:  // BYTEARRAY8
        return PushBytes<uint64_t>();
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
      case 'p':
        return RememberLine();
      case 0x94:
        return RememberAs(static_cast<uint32_t>(memo_.size()));
      case 'h':
        return Recall<uint8_t>();
      case 'j':
        return Recall<uint32_t>();
      case 'g':
        return RecallLine();
      default:
        return absl::nullopt;
    }
  }

  absl::optional<absl::Status> Collect(uint8_t operation) {
    switch (operation) {
      case ')':
        return PushEmptyTuple();
      case 't':
        return MarkedTuple(Kind::kTuple);
      case 'l':
        return MarkedTuple(Kind::kList);
      case 'd':
        return MarkedTuple(Kind::kDict);
      case 0x85:
      case 0x86:
      case 0x87:
        return Tuple(operation - 0x84u);
      case '}':
        return Push(Kind::kDict);
      case ']':
        return Push(Kind::kList);
      case 0x8f:
        return PushOpaque("a set");
      case 0x91:
        return FrozenSet();
      case 's':
        return Extend(Kind::kDict, /*marked=*/false);
      case 'u':
        return Extend(Kind::kDict, /*marked=*/true);
      case 'a':
        return Extend(Kind::kList, /*marked=*/false);
      case 'e':
        return Extend(Kind::kList, /*marked=*/true);
      case 0x90:  // ADDITEMS
        return Extend(Kind::kObject, /*marked=*/true);
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
      case 0x82:  // EXT1, EXT2, EXT4: a class by its number in a registry
        return PushOpaqueAfter(1);
      case 0x83:
        return PushOpaqueAfter(2);
      case 0x84:
        return PushOpaqueAfter(4);
      case 'P':
        return PushOpaqueLine("an object that another file has");
      case 'Q':
        return PersistentId();
      case 'R':
      case 0x81:  // NEWOBJ: an object of a class is what a call of it gives
        return Call();
      case 0x92:  // NEWOBJ_EX
        return CallWithKeywords();
      case 'i':
        return Instance();
      case 'o':
        return MarkedInstance();
      case 'b':
        return Build();
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

  absl::Status PushValue(PickleValue* value) {
    stack_.push_back(value);
    return absl::OkStatus();
  }

  absl::Status Push(Kind kind) { return PushValue(New(kind)); }

  absl::Status PushInteger(Kind kind, int64_t integer) {
    PickleValue* const value = New(kind);
    value->integer = integer;
    return PushValue(value);
  }

  absl::Status PushInner(Kind kind, const PickleValue* inner) {
    PickleValue* const value = New(kind);
    value->inner = inner;
    return PushValue(value);
  }

  absl::Status PushOpaque(absl::string_view what) {
    PickleValue* const value = New(Kind::kObject);
    value->inner = nullptr;
    value->text = what;
    return PushValue(value);
  }

  absl::Status PushOpaqueLine(absl::string_view what) {
    GS_RETURN_IF_ERROR(Line().status());
    return PushOpaque(what);
  }

  absl::Status PushOpaqueAfter(uint64_t bytes) {
    GS_RETURN_IF_ERROR(Skip(bytes));
    return PushOpaque("an object of a registered class");
  }

  template <typename T>
  absl::Status PushNumber() {
    GS_ASSIGN_OR_RETURN(const T number, Number<T>());
    return PushInteger(Kind::kInteger, number);
  }

  // "12", "12L", and "00" and "01", which are False and True.
  absl::Status PushIntegerLine() {
    GS_ASSIGN_OR_RETURN(absl::string_view line, Line());
    if (line == "00" || line == "01") return PushInteger(Kind::kBool, line == "01");
    if (absl::EndsWith(line, "L")) line.remove_suffix(1);
    int64_t integer = 0;
    if (!absl::SimpleAtoi(line, &integer)) return PushOpaque("a number");
    return PushInteger(Kind::kInteger, integer);
  }

  // Two's complement, little endian, as many bytes as needed: seeds have nine.
  template <typename Length>
  absl::Status PushLong() {
    GS_ASSIGN_OR_RETURN(const Length size, Number<Length>());
    GS_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(size));
    if (size > 8) return PushOpaque("a number of more than 64 bits");
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
    return PushValue(value);
  }

  PickleValue* NewText(absl::string_view text) {
    PickleValue* const value = New(Kind::kText);
    value->text = text;
    return value;
  }

  template <typename Length>
  absl::Status PushText() {
    GS_ASSIGN_OR_RETURN(const Length length, Number<Length>());
    GS_ASSIGN_OR_RETURN(const absl::string_view text, Take(length));
    return PushValue(NewText(text));
  }

  template <typename Length>
  absl::Status PushBytes() {
    GS_ASSIGN_OR_RETURN(const Length length, Number<Length>());
    GS_RETURN_IF_ERROR(Skip(length));
    return PushOpaque("bytes");
  }

  // What lies below the last mark is not there for a pop.
  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }

  absl::StatusOr<PickleValue*> Pop() {
    GS_ASSIGN_OR_RETURN(PickleValue* const top, Top());
    stack_.pop_back();
    return top;
  }

  // Python's POP takes a mark where there is nothing above it.
  absl::Status PopOrMark() {
    if (!marks_.empty() && stack_.size() == marks_.back()) {
      marks_.pop_back();
      return absl::OkStatus();
    }
    return Pop().status();
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
    return PushValue(top);
  }

  absl::Status Stop() {
    GS_ASSIGN_OR_RETURN(pickle_.root_, Pop());
    done_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> IndexLine() {
    GS_ASSIGN_OR_RETURN(const absl::string_view line, Line());
    uint32_t index = 0;
    if (!absl::SimpleAtoi(line, &index)) return NoPickle("a place that is no number");
    return index;
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

  absl::Status RememberLine() {
    GS_ASSIGN_OR_RETURN(const uint32_t index, IndexLine());
    return RememberAs(index);
  }

  absl::Status RecallFrom(uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) return NoPickle(absl::StrCat("nothing was kept as ", index));
    return PushValue(found->second);
  }

  template <typename T>
  absl::Status Recall() {
    GS_ASSIGN_OR_RETURN(const T index, Number<T>());
    return RecallFrom(index);
  }

  absl::Status RecallLine() {
    GS_ASSIGN_OR_RETURN(const uint32_t index, IndexLine());
    return RecallFrom(index);
  }

  absl::Status PushEmptyTuple() {
    if (empty_tuple_ == nullptr) empty_tuple_ = New(Kind::kTuple);
    return PushValue(empty_tuple_);
  }

  absl::Status MarkedTuple(Kind kind) {
    GS_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items, PopMark());
    if (kind == Kind::kDict && items.size() % 2 != 0) return NoPickle("items of no dict");
    PickleValue* const tuple = New(kind);
    tuple->items.assign(items.begin(), items.end());
    return PushValue(tuple);
  }

  absl::Status Tuple(size_t size) {
    PickleValue* const tuple = New(Kind::kTuple);
    tuple->items.resize(size);
    for (size_t i = size; i-- > 0;) {
      GS_ASSIGN_OR_RETURN(tuple->items[i], Pop());
    }
    return PushValue(tuple);
  }

  absl::Status FrozenSet() {
    GS_RETURN_IF_ERROR(PopMark().status());
    return PushOpaque("a frozenset");
  }

  absl::StatusOr<std::vector<PickleValue*>> Operands(bool marked, size_t count) {
    if (marked) return PopMark();
    std::vector<PickleValue*> operands(count);
    for (size_t i = count; i-- > 0;) {
      GS_ASSIGN_OR_RETURN(operands[i], Pop());
    }
    return operands;
  }

  // SETITEMS, APPENDS and ADDITEMS. An object that gets items by key is of a class made from dict,
  // as Python writes those; what others would get is dropped.
  absl::Status Extend(Kind kind, bool marked) {
    GS_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items,
                        Operands(marked, kind == Kind::kDict ? 2 : 1));
    GS_ASSIGN_OR_RETURN(PickleValue* const container, Top());
    if (kind == Kind::kDict && items.size() % 2 != 0) return NoPickle("items of no dict");
    const bool is_dict = kind == Kind::kDict && container->kind == Kind::kObject &&
                         container->inner != nullptr && container->inner->kind == Kind::kGlobal;
    if (is_dict) {
      container->kind = Kind::kDict;
      container->inner = nullptr;
    }
    if (container->kind == Kind::kObject) return absl::OkStatus();
    if (container->kind != kind) return NoPickle("items of no container");
    container->items.insert(container->items.end(), items.begin(), items.end());
    return absl::OkStatus();
  }

  absl::Status PushGlobal(PickleValue* module, PickleValue* name) {
    PickleValue* const global = New(Kind::kGlobal);
    global->items = {module, name};
    return PushValue(global);
  }

  absl::Status Global() {
    GS_ASSIGN_OR_RETURN(const absl::string_view module, Line());
    GS_ASSIGN_OR_RETURN(const absl::string_view name, Line());
    PickleValue* const first = NewText(module);
    return PushGlobal(first, NewText(name));
  }

  absl::Status StackGlobal() {
    GS_ASSIGN_OR_RETURN(PickleValue* const name, Pop());
    GS_ASSIGN_OR_RETURN(PickleValue* const module, Pop());
    if (name->kind != Kind::kText || module->kind != Kind::kText) {
      return NoPickle("a name that is no string");
    }
    return PushGlobal(module, name);
  }

  absl::Status PersistentId() {
    GS_ASSIGN_OR_RETURN(const PickleValue* const id, Pop());
    if (id->kind != Kind::kTuple) return PushOpaque("an object that another file has");
    return PushInner(Kind::kStorage, id);
  }

  absl::Status Call() {
    GS_ASSIGN_OR_RETURN(PickleValue* const arguments, Pop());
    GS_ASSIGN_OR_RETURN(PickleValue* const function, Pop());
    return PushCall(function, arguments);
  }

  absl::Status PushCall(const PickleValue* function, const PickleValue* arguments) {
    if (arguments->kind == Kind::kTuple) {
      const std::vector<const PickleValue*>& items = arguments->items;
      if (MakesDict(*function, items)) return Push(Kind::kDict);
      if (MakesTensor(*function) && items.size() >= 4) {
        return PushInner(Kind::kTensor, arguments);
      }
      // (function, class, its arguments, attributes): a tensor that has attributes.
      if (function->IsGlobal("torch._tensor", "_rebuild_from_type_v2") && items.size() == 4 &&
          IsTensorClass(*items[1]) && MakesTensor(*items[0]) && items[2]->kind == Kind::kTuple &&
          items[2]->items.size() >= 4) {
        return PushInner(Kind::kTensor, items[2]);
      }
      if (KeepsFirstArgument(*function) && !items.empty()) {
        return PushValue(const_cast<PickleValue*>(items[0]));
      }
    }
    return PushInner(Kind::kObject, function);
  }

  absl::Status CallWithKeywords() {
    GS_RETURN_IF_ERROR(Pop().status());
    GS_RETURN_IF_ERROR(Pop().status());
    GS_ASSIGN_OR_RETURN(const PickleValue* const function, Pop());
    return PushInner(Kind::kObject, function);
  }

  // INST: a class by name, with its arguments behind a mark.
  absl::Status Instance() {
    GS_RETURN_IF_ERROR(PopMark().status());
    GS_RETURN_IF_ERROR(Global());
    GS_ASSIGN_OR_RETURN(const PickleValue* const function, Pop());
    return PushInner(Kind::kObject, function);
  }

  absl::Status MarkedInstance() {
    GS_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items, PopMark());
    if (items.empty()) return NoPickle("an object of no class");
    return PushInner(Kind::kObject, items[0]);
  }

  // What an object would do with its state is not done. That of an OrderedDict is attributes, such
  // as `_metadata`; that of a tensor would be other values.
  absl::Status Build() {
    GS_RETURN_IF_ERROR(Pop().status());
    GS_ASSIGN_OR_RETURN(PickleValue* const object, Top());
    if (object->kind != Kind::kTensor) return absl::OkStatus();
    object->kind = Kind::kObject;
    object->inner = nullptr;
    object->text = "a tensor with a state of its own";
    return absl::OkStatus();
  }

  const absl::string_view all_;
  absl::string_view left_;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // stack sizes
  std::unordered_map<uint32_t, PickleValue*> memo_;
  PickleValue* empty_tuple_ = nullptr;
  bool done_ = false;
};

absl::StatusOr<Pickle> Pickle::Parse(absl::string_view bytes) { return Unpickler(bytes).Run(); }

}  // namespace gradsync
