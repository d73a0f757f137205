// Reads Python's pickles as data: nothing in them is looked up, called or run.

#ifndef GRADSYNC_WORKER_CHECKPOINT_UNPICKLER_H_
#define GRADSYNC_WORKER_CHECKPOINT_UNPICKLER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// A value of a pickle. Which fields mean something depends on `kind`. Values refer to one another,
// in a circle even, and texts are parts of the pickle's bytes.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,     // integer
    kInteger,  // integer, of 64 bits
    kFloat,    // number
    kText,     // text
    kTuple,    // items
    kList,     // items
    kDict,     // items: key, value, key, value, ...; an OrderedDict or a defaultdict too
    kGlobal,   // items: module and name, two texts
    kStorage,  // inner: the tuple that names it
    kTensor,   // inner: the arguments of _rebuild_tensor_v2, a tuple of at least 4
    kObject,   // anything else. inner: what was called to make it; or null, and text says what
  };

  Kind kind = Kind::kNone;
  union {
    int64_t integer = 0;
    double number;
    const PickleValue* inner;
  };
  absl::string_view text;
  std::vector<const PickleValue*> items;

  bool IsText(absl::string_view expected) const { return kind == Kind::kText && text == expected; }
  bool IsGlobal(absl::string_view module, absl::string_view name) const {
    return kind == Kind::kGlobal && items[0]->text == module && items[1]->text == name;
  }
};

// An array of numpy, whose values are not read.
bool IsNumpyArray(const PickleValue& value);

// "a dict", "an object of argparse Namespace": for messages, so of bounded length.
std::string Describe(const PickleValue& value);

class Pickle {
 public:
  // Knows all operations of protocols 0 to 5. What is not made of numbers, strings, tuples, lists,
  // dicts and tensors is a kObject: its function or class is not called, and the state that it would
  // get is dropped. `bytes` must outlive the pickle. Takes at most some hundred bytes of memory for
  // each byte, and no more than most_values() allow.
  // Errors: INVALID_ARGUMENT for an unknown operation, or for more than most_values(); DATA_LOSS for
  // bytes that are no pickle.
  static absl::StatusOr<Pickle> Parse(absl::string_view bytes);

  // How many values a pickle may have. A checkpoint of a large model and its optimizer has some
  // hundred thousand.
  static constexpr int64_t most_values() { return int64_t{8} << 20; }

  const PickleValue& root() const { return *root_; }

 private:
  friend class Unpickler;

  std::unique_ptr<std::deque<PickleValue>> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_UNPICKLER_H_
