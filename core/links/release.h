// What has to be done when lent memory comes back.

#ifndef GRADSYNC_CORE_LINKS_RELEASE_H_
#define GRADSYNC_CORE_LINKS_RELEASE_H_

#include <memory>
#include <type_traits>
#include <utility>

namespace gradsync {

// A call that is made exactly once: when asked for, or at the latest when this object goes away.
// Two words, as gRPC keeps them for a slice that it sends, so that handing one on allocates
// nothing. Movable, thread-compatible.
class Release {
 public:
  using Function = void (*)(void*);

  Release() = default;

  // Calls `function(argument)`. Allocates nothing.
  Release(Function function, void* argument) : function_(function), argument_(argument) {}

  // Calls `callable()`, which is kept on the heap until then.
  template <typename F, typename = std::enable_if_t<!std::is_same<std::decay_t<F>, Release>::value>>
  Release(F&& callable)  // NOLINT: as a std::function, from what it calls
      : function_([](void* boxed) {
          const std::unique_ptr<std::decay_t<F>> owned(static_cast<std::decay_t<F>*>(boxed));
          (*owned)();
        }),
        argument_(new std::decay_t<F>(std::forward<F>(callable))) {}

  Release(Release&& other) noexcept
      : function_(std::exchange(other.function_, nullptr)), argument_(other.argument_) {}
  Release& operator=(Release&& other) noexcept {
    if (this == &other) return *this;
    Run();
    function_ = std::exchange(other.function_, nullptr);
    argument_ = other.argument_;
    return *this;
  }
  ~Release() { Run(); }

  explicit operator bool() const { return function_ != nullptr; }

  // Makes the call, if there is one that was not made yet.
  void Run() {
    if (const Function function = std::exchange(function_, nullptr)) function(argument_);
  }

  // For C interfaces: whoever takes the pair calls `first(second)` once. Null when there is nothing
  // to do.
  std::pair<Function, void*> Take() && { return {std::exchange(function_, nullptr), argument_}; }

 private:
  Function function_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_RELEASE_H_
