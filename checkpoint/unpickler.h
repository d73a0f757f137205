// Reads the pickles of PyTorch's state dicts, as data: nothing in them is looked up or run.

#ifndef GRADSYNC_CHECKPOINT_UNPICKLER_H_
#define GRADSYNC_CHECKPOINT_UNPICKLER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// A value of a pickle. Which fields mean something depends on `kind`.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,  // integer
    kInteger,
    kFloat,    // number
    kText,     // text, strings and bytes
    kTuple,    // items
    kList,     // items
    kDict,     // pairs, an OrderedDict too
    kGlobal,   // text: "module name"
    kStorage,  // items: what names it, a tuple's
    kTensor,   // items: storage, offset, sizes, strides, ...
  };

  Kind kind = Kind::kNone;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<const PickleValue*> items;
  std::vector<std::pair<const PickleValue*, const PickleValue*>> pairs;
};

// A pickle's values, which refer to one another, in a circle even.
class Pickle {
 public:
  // Knows the operations of protocols 2 to 4 that tensors, numbers, strings and their tuples, lists
  // and dicts need, and of all functions only those that rebuild an OrderedDict, a tensor or a
  // parameter. An object's own state (BUILD, such as `_metadata`) is dropped.
  // Errors: INVALID_ARGUMENT naming the function or operation that is none of these; DATA_LOSS for
  // bytes that are no pickle.
  static absl::StatusOr<Pickle> Parse(absl::string_view bytes);

  const PickleValue& root() const { return *root_; }

 private:
  friend class Unpickler;

  std::unique_ptr<std::deque<PickleValue>> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace gradsync

#endif  // GRADSYNC_CHECKPOINT_UNPICKLER_H_
