#include "core/gpu/fake_gpu.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/kernels.h"
#include "core/base/status_macros.h"
#include "core/gpu/fold_operands.h"

namespace gradsync {
namespace {

// A point in a stream's work, which others wait for.
class Milestone {
 public:
  void Reach(MonotonicTime now) {
    MutexLock lock(&mutex_);
    reached_ = true;
    time_ = now;
    changed_.SignalAll();
  }
  bool reached() const {
    MutexLock lock(&mutex_);
    return reached_;
  }
  void Await() const {
    MutexLock lock(&mutex_);
    while (!reached_) changed_.Wait(&mutex_);
  }
  MonotonicTime time() const {
    MutexLock lock(&mutex_);
    return time_;
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool reached_ ABSL_GUARDED_BY(mutex_) = false;
  MonotonicTime time_ ABSL_GUARDED_BY(mutex_);
};

class FakeStream {
 public:
  FakeStream() : thread_([this] { Run(); }) {}
  ~FakeStream() {
    Close();
    thread_.join();
  }

  // Its thread ends when it has worked off what is queued.
  void Close() {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }

  void Enqueue(std::function<void()> work) {
    MutexLock lock(&mutex_);
    queue_.push_back(std::move(work));
    ++queued_;
    changed_.SignalAll();
  }

  bool current() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Waits for what is queued now.
  void Await() {
    MutexLock lock(&mutex_);
    for (const int64_t queued = queued_; done_ < queued;) changed_.Wait(&mutex_);
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(&mutex_);
        while (queue_.empty() && !closing_) changed_.Wait(&mutex_);
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
      work = nullptr;
      MutexLock lock(&mutex_);
      ++done_;
      changed_.SignalAll();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses all of the above
};

class FakeEvent {
 public:
  void Set(std::shared_ptr<Milestone> milestone) {
    MutexLock lock(&mutex_);
    milestone_ = std::move(milestone);
  }
  // Null: never recorded.
  std::shared_ptr<Milestone> milestone() const {
    MutexLock lock(&mutex_);
    return milestone_;
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<Milestone> milestone_ ABSL_GUARDED_BY(mutex_);
};

// The thread's compute stream within WithComputeStream(); null: the calling thread.
thread_local GpuStream compute_stream = nullptr;

using FakeGraph = std::vector<GpuEvent>;

FakeGraph* Of(GpuGraph graph) { return reinterpret_cast<FakeGraph*>(graph); }

// What all fakes of this process, which stand for GPUs of processes of one host, have in common.
struct FakeHost {
  // For flags too, so that what one stream wrote before a flag is there for one that saw it,
  // whatever addresses the two have mapped it at. Nobody signals what the host stores, so those who
  // wait also look from time to time.
  Mutex mutex;
  CondVar changed;
  std::multiset<void*> imported ABSL_GUARDED_BY(mutex);
};

FakeHost& Host() {
  static FakeHost* const host = new FakeHost;
  return *host;
}

// What ExportMemory() returns, as bytes.
struct Exported {
  void* memory = nullptr;
  size_t bytes = 0;
};

uint32_t ReadFlag(const uint32_t* flag) {
  return reinterpret_cast<const std::atomic<uint32_t>*>(flag)->load(std::memory_order_seq_cst);
}

FakeStream* Of(GpuStream stream) { return reinterpret_cast<FakeStream*>(stream); }
FakeEvent* Of(GpuEvent event) { return reinterpret_cast<FakeEvent*>(event); }

void FoldOnHost(const FoldPiece& piece, std::vector<const float*> from, std::vector<float*> to,
                float a, float b) {
  std::rotate(from.begin(), from.begin() + piece.first, from.end());
  for (const float*& source : from) source += piece.offset;
  for (float*& destination : to) destination += piece.offset;
  FoldMean(to.data(), static_cast<int>(to.size()), from.data(), static_cast<int>(from.size()),
           static_cast<size_t>(piece.count), a, b);
}

}  // namespace

FakeGpu::~FakeGpu() {
  assert(live_objects() == 0);
  for (const GpuStream stream : destroyed_) delete Of(stream);
  for (void* const memory : freed_in_use_) std::free(memory);
  for (const std::string& misuse : misuses_) {
    std::fprintf(stderr, "the fake GPU %d: %s\n", device_, misuse.c_str());
  }
  if (!misuses_.empty()) std::abort();
}

void FakeGpu::Enqueue(GpuStream stream, std::function<void()> work, std::vector<Use> uses) {
  if (stream == nullptr) return work();
  if (uses.empty()) return Of(stream)->Enqueue(std::move(work));
  int64_t number = 0;
  {
    MutexLock lock(&mutex_);
    number = next_work_++;
    uses_[number] = std::move(uses);
  }
  Of(stream)->Enqueue([this, number, work = std::move(work)] {
    work();
    MutexLock lock(&mutex_);
    uses_.erase(number);
  });
}

std::vector<std::string> FakeGpu::TakeMisuses() {
  MutexLock lock(&mutex_);
  return std::exchange(misuses_, {});
}

bool FakeGpu::Misused(absl::string_view method, const void* memory, size_t bytes) {
  const char* const begin = static_cast<const char*>(memory);
  for (const auto& [number, uses] : uses_) {
    for (const Use& use : uses) {
      const char* const used = static_cast<const char*>(use.memory);
      if (used >= begin + bytes || used + use.bytes <= begin) continue;
      misuses_.push_back(absl::StrCat(method, ": queued work uses ", use.bytes, " bytes of it"));
      return true;
    }
  }
  return false;
}

bool FakeGpu::ReleaseAtOnce(void* memory) {
  MutexLock lock(&mutex_);
  const auto found = memory_.find(reinterpret_cast<uintptr_t>(memory));
  const bool misused = Misused("a release that waits for nothing", memory, found->second);
  memory_.erase(found);
  if (misused) {
    freed_in_use_.push_back(memory);
  } else {
    std::free(memory);
  }
  return !misused;
}

void FakeGpu::AwaitAll(absl::string_view method) {
  std::vector<GpuStream> streams;
  {
    MutexLock lock(&mutex_);
    streams = streams_;
    streams.insert(streams.end(), destroyed_.begin(), destroyed_.end());
  }
  for (const GpuStream stream : streams) {
    if (!Of(stream)->current()) continue;
    MutexLock lock(&mutex_);
    misuses_.push_back(absl::StrCat(method, ": called by work of a stream"));
    return;
  }
  for (const GpuStream stream : streams) Of(stream)->Await();
}

absl::Status FakeGpu::SynchronizeDevice() {
  GS_RETURN_IF_ERROR(Call("SynchronizeDevice"));
  ++synchronizations_;
  AwaitAll("SynchronizeDevice");
  return absl::OkStatus();
}

void FakeGpu::FailNext(absl::string_view method, absl::Status status) {
  MutexLock lock(&mutex_);
  failures_[std::string(method)] = std::move(status);
}

int FakeGpu::calls(absl::string_view method) const {
  MutexLock lock(&mutex_);
  const auto found = calls_.find(std::string(method));
  return found == calls_.end() ? 0 : found->second;
}

int FakeGpu::live_objects() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(live_.size() + memory_.size() + registered_.size() + imported_.size());
}

size_t FakeGpu::most_device_bytes() const {
  MutexLock lock(&mutex_);
  return most_device_bytes_;
}

std::vector<GpuStream> FakeGpu::streams() const {
  MutexLock lock(&mutex_);
  return streams_;
}

absl::Status FakeGpu::Call(absl::string_view method) {
  MutexLock lock(&mutex_);
  ++calls_[std::string(method)];
  const auto found = failures_.find(std::string(method));
  if (found == failures_.end()) return absl::OkStatus();
  absl::Status status = std::move(found->second);
  failures_.erase(found);
  return status;
}

GpuStream FakeGpu::ComputeStream() { return compute_stream; }

void FakeGpu::WithComputeStream(GpuStream stream, const std::function<void()>& call) {
  const GpuStream before = std::exchange(compute_stream, stream);
  call();
  compute_stream = before;
}

absl::StatusOr<GpuGraph> FakeGpu::Capture(const std::function<absl::Status()>& queue) {
  GS_RETURN_IF_ERROR(Call("Capture"));
  auto graph = std::make_unique<FakeGraph>();
  {
    MutexLock lock(&mutex_);
    assert(capturing_ == nullptr);
    capturing_ = graph.get();
  }
  absl::Status queued = queue();
  MutexLock lock(&mutex_);
  capturing_ = nullptr;
  GS_RETURN_IF_ERROR(queued);
  live_.insert(graph.get());
  return reinterpret_cast<GpuGraph>(graph.release());
}

absl::Status FakeGpu::LaunchGraph(GpuGraph graph) {
  GS_RETURN_IF_ERROR(Call("LaunchGraph"));
  for (GpuEvent event : *Of(graph)) GS_RETURN_IF_ERROR(Record(event, ComputeStream()));
  return absl::OkStatus();
}

void FakeGpu::DestroyGraph(GpuGraph graph) {
  {
    MutexLock lock(&mutex_);
    const size_t erased = live_.erase(graph);
    assert(erased == 1);
    static_cast<void>(erased);
  }
  delete Of(graph);
}

absl::Status FakeGpu::RecordInGraph(GpuEvent event, GpuStream /*stream*/) {
  GS_RETURN_IF_ERROR(Call("RecordInGraph"));
  MutexLock lock(&mutex_);
  if (capturing_ == nullptr) return absl::InternalError("RecordInGraph: nothing is captured");
  capturing_->push_back(event);
  return absl::OkStatus();
}

absl::StatusOr<GpuStream> FakeGpu::CreateStream() {
  GS_RETURN_IF_ERROR(Call("CreateStream"));
  auto* const stream = new FakeStream;
  MutexLock lock(&mutex_);
  live_.insert(stream);
  streams_.push_back(reinterpret_cast<GpuStream>(stream));
  return streams_.back();
}

void FakeGpu::DestroyStream(GpuStream stream) {
  Of(stream)->Close();
  MutexLock lock(&mutex_);
  live_.erase(stream);
  streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
  destroyed_.push_back(stream);
}

absl::StatusOr<GpuEvent> FakeGpu::CreateEvent() {
  GS_RETURN_IF_ERROR(Call("CreateEvent"));
  auto* const event = new FakeEvent;
  MutexLock lock(&mutex_);
  live_.insert(event);
  return reinterpret_cast<GpuEvent>(event);
}

void FakeGpu::DestroyEvent(GpuEvent event) {
  delete Of(event);
  MutexLock lock(&mutex_);
  live_.erase(event);
}

absl::Status FakeGpu::Record(GpuEvent event, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("Record"));
  auto milestone = std::make_shared<Milestone>();
  Of(event)->Set(milestone);
  Enqueue(stream, [milestone, clock = clock_] { milestone->Reach(clock()); });
  return absl::OkStatus();
}

absl::Status FakeGpu::StreamWait(GpuStream stream, GpuEvent event) {
  GS_RETURN_IF_ERROR(Call("StreamWait"));
  const std::shared_ptr<Milestone> milestone = Of(event)->milestone();
  if (milestone != nullptr) Enqueue(stream, [milestone] { milestone->Await(); });
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeGpu::Done(GpuEvent event) {
  GS_RETURN_IF_ERROR(Call("Done"));
  const std::shared_ptr<Milestone> milestone = Of(event)->milestone();
  return milestone == nullptr || milestone->reached();
}

absl::Status FakeGpu::Synchronize(GpuEvent event) {
  GS_RETURN_IF_ERROR(Call("Synchronize"));
  ++synchronizations_;
  const std::shared_ptr<Milestone> milestone = Of(event)->milestone();
  if (milestone != nullptr) milestone->Await();
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> FakeGpu::Elapsed(GpuEvent from, GpuEvent to) {
  GS_RETURN_IF_ERROR(Call("Elapsed"));
  const std::shared_ptr<Milestone> begin = Of(from)->milestone();
  const std::shared_ptr<Milestone> end = Of(to)->milestone();
  if (begin == nullptr || end == nullptr || !begin->reached() || !end->reached()) {
    return absl::InternalError("Elapsed: expected events that are done, found one that is not");
  }
  return end->time() - begin->time();
}

absl::StatusOr<void*> FakeGpu::Allocate(absl::string_view method, size_t bytes) {
  GS_RETURN_IF_ERROR(Call(method));
  constexpr size_t kAlignment = 256;
  const size_t size = std::max<size_t>((bytes + kAlignment - 1) / kAlignment, 1) * kAlignment;
  constexpr size_t kCapacity = size_t{1} << 40;
  void* const memory = size > kCapacity ? nullptr : std::aligned_alloc(kAlignment, size);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the fake GPU: no memory for ", bytes, " bytes"));
  }
  std::memset(memory, 0, size);
  MutexLock lock(&mutex_);
  memory_[reinterpret_cast<uintptr_t>(memory)] = size;
  return memory;
}

absl::Status FakeGpu::RegisterHost(void* memory, size_t bytes) {
  GS_RETURN_IF_ERROR(Call("RegisterHost"));
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  if (begin % kPage != 0 || bytes % kPage != 0 || bytes == 0) {
    return absl::InternalError("RegisterHost: expected whole pages");
  }
  MutexLock lock(&mutex_);
  const auto next = registered_.lower_bound(begin);
  if ((next != registered_.end() && next->first < begin + bytes) ||
      (next != registered_.begin() && std::prev(next)->first + std::prev(next)->second > begin)) {
    return absl::InternalError("RegisterHost: expected pages that are not registered yet");
  }
  registered_[begin] = bytes;
  return absl::OkStatus();
}

void FakeGpu::UnregisterHost(void* memory) {
  MutexLock lock(&mutex_);
  const auto found = registered_.find(reinterpret_cast<uintptr_t>(memory));
  Misused("UnregisterHost", memory, found->second);
  registered_.erase(found);
}

// Whether a copy of a GPU could reach it: memory of the device, or pinned.
bool FakeGpu::Known(const void* memory, size_t bytes) const {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  MutexLock lock(&mutex_);
  for (const auto* known : {&memory_, &registered_, &imported_}) {
    const auto next = known->upper_bound(begin);
    if (next == known->begin()) continue;
    const auto [first, size] = *std::prev(next);
    if (begin + bytes <= first + size) return true;
  }
  return false;
}

absl::StatusOr<void*> FakeGpu::AllocateDevice(size_t bytes) {
  GS_ASSIGN_OR_RETURN(void* const memory, Allocate("AllocateDevice", bytes));
  MutexLock lock(&mutex_);
  size_t all = 0;
  for (const auto& [begin, size] : memory_) all += pinned_.count(begin) > 0 ? 0 : size;
  most_device_bytes_ = std::max(most_device_bytes_, all);
  return memory;
}

void FakeGpu::ReleaseDevice(void* memory) {
  {
    MutexLock lock(&Host().mutex);
    if (Host().imported.count(memory) > 0) ++early_releases_;
  }
  AwaitAll("ReleaseDevice");
  ReleaseAtOnce(memory);
}

absl::StatusOr<void*> FakeGpu::AllocatePinned(size_t bytes) {
  GS_ASSIGN_OR_RETURN(void* const memory, Allocate("AllocatePinned", bytes));
  MutexLock lock(&mutex_);
  pinned_.insert(reinterpret_cast<uintptr_t>(memory));
  return memory;
}

void FakeGpu::ReleasePinned(void* memory) {
  {
    MutexLock lock(&mutex_);
    pinned_.erase(reinterpret_cast<uintptr_t>(memory));
  }
  ReleaseAtOnce(memory);
}

absl::Status FakeGpu::Copy(void* to, const void* from, size_t bytes, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("Copy"));
  if (!Known(to, bytes) || !Known(from, bytes)) ++unpinned_copies_;
  Enqueue(stream, [=] { std::memcpy(to, from, bytes); }, {{to, bytes}, {from, bytes}});
  return absl::OkStatus();
}

absl::Status FakeGpu::RunOnHost(std::function<void()> call, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("RunOnHost"));
  Enqueue(stream, std::move(call));
  return absl::OkStatus();
}

absl::Status FakeGpu::ScaleTwice(float* x, size_t n, float a, float b, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("ScaleTwice"));
  Enqueue(stream, [=] { gradsync::ScaleTwice(x, n, a, b); }, {Floats(x, n)});
  return absl::OkStatus();
}

absl::Status FakeGpu::SgdStep(const SgdCoefficients& c, float* param, const float* grad,
                              float* momentum_buffer, size_t n, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("SgdStep"));
  Enqueue(stream, [=] { gradsync::SgdStep(c, param, grad, momentum_buffer, n); },
          {Floats(param, n), Floats(grad, n), Floats(momentum_buffer, n)});
  return absl::OkStatus();
}

absl::Status FakeGpu::AdamStep(const AdamCoefficients& c, float* param, const float* grad,
                               float* exp_avg, float* exp_avg_sq, size_t n, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("AdamStep"));
  Enqueue(stream, [=] { gradsync::AdamStep(c, param, grad, exp_avg, exp_avg_sq, n); },
          {Floats(param, n), Floats(grad, n), Floats(exp_avg, n), Floats(exp_avg_sq, n)});
  return absl::OkStatus();
}

absl::Status FakeGpu::ScaleBy(float* x, size_t n, const float* factor, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("ScaleBy"));
  Enqueue(stream, [=] { gradsync::Scale(x, n, *factor); }, {Floats(x, n), Floats(factor, 1)});
  return absl::OkStatus();
}

absl::Status FakeGpu::SumOfSquares(const float* x, size_t n, double* sum, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("SumOfSquares"));
  Enqueue(stream, [=] { *sum = gradsync::SumOfSquares(x, n); },
          {Floats(x, n), {sum, sizeof(*sum)}});
  return absl::OkStatus();
}

absl::Status FakeGpu::FoldMean(const FoldPiece* pieces, size_t num_pieces,
                               absl::Span<const float* const> sources,
                               absl::Span<float* const> destinations, float a, float b,
                               GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("FoldMean"));
  GS_RETURN_IF_ERROR(CheckFoldOperands(sources.size(), destinations.size()));
  const auto fold = [=, from = std::vector<const float*>(sources.begin(), sources.end()),
                     to = std::vector<float*>(destinations.begin(), destinations.end())] {
    for (const FoldPiece* piece = pieces; piece < pieces + num_pieces; ++piece) {
      FoldOnHost(*piece, from, to, a, b);
    }
  };
  // What it uses of the operands is known when the pieces are read; their begin stands for them.
  std::vector<Use> uses = {{pieces, num_pieces * sizeof(FoldPiece)}};
  for (const float* const source : sources) uses.push_back(Floats(source, 1));
  for (const float* const destination : destinations) uses.push_back(Floats(destination, 1));
  Enqueue(stream, fold, std::move(uses));
  return absl::OkStatus();
}

absl::Status FakeGpu::SumsOfSquares(const SquaresPiece* pieces, size_t num_pieces, double* sums,
                                    GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("SumsOfSquares"));
  Enqueue(stream, [=] {
    for (size_t i = 0; i < num_pieces; ++i) {
      sums[i] = gradsync::SumOfSquares(pieces[i].x, static_cast<size_t>(pieces[i].count));
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<std::string> FakeGpu::ExportMemory(void* memory) {
  GS_RETURN_IF_ERROR(Call("ExportMemory"));
  MutexLock lock(&mutex_);
  const auto found = memory_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == memory_.end() || found->second % kSharedPage != 0) {
    return absl::InternalError("ExportMemory: expected device memory of whole pages to share");
  }
  const Exported exported = {memory, found->second};
  return std::string(reinterpret_cast<const char*>(&exported), sizeof(exported));
}

absl::StatusOr<void*> FakeGpu::ImportMemory(const std::string& handle) {
  GS_RETURN_IF_ERROR(Call("ImportMemory"));
  Exported exported;
  if (handle.size() != sizeof(exported)) {
    return absl::InternalError("ImportMemory: expected what a fake has exported");
  }
  std::memcpy(&exported, handle.data(), sizeof(exported));
  {
    MutexLock lock(&Host().mutex);
    Host().imported.insert(exported.memory);
  }
  MutexLock lock(&mutex_);
  imported_[reinterpret_cast<uintptr_t>(exported.memory)] = exported.bytes;
  return exported.memory;
}

void FakeGpu::CloseImported(void* memory) {
  {
    MutexLock lock(&mutex_);
    const auto found = imported_.find(reinterpret_cast<uintptr_t>(memory));
    assert(found != imported_.end());
    Misused("CloseImported", memory, found->second);
    imported_.erase(found);
  }
  MutexLock lock(&Host().mutex);
  Host().imported.erase(Host().imported.find(memory));
}

absl::StatusOr<uint32_t*> FakeGpu::FlagOnDevice(void* registered) {
  GS_RETURN_IF_ERROR(Call("FlagOnDevice"));
  if (!Known(registered, sizeof(uint32_t))) {
    return absl::InternalError("FlagOnDevice: expected registered memory");
  }
  return static_cast<uint32_t*>(registered);
}

absl::Status FakeGpu::WriteFlag(uint32_t* flag, uint32_t value, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("WriteFlag"));
  if (!Known(flag, sizeof(*flag))) {
    return absl::InternalError("WriteFlag: expected registered memory");
  }
  const auto write = [=] {
    MutexLock lock(&Host().mutex);
    reinterpret_cast<std::atomic<uint32_t>*>(flag)->store(value, std::memory_order_seq_cst);
    Host().changed.SignalAll();
  };
  Enqueue(stream, write, {{flag, sizeof(*flag)}});
  return absl::OkStatus();
}

absl::Status FakeGpu::WaitFlag(const uint32_t* flag, uint32_t value, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("WaitFlag"));
  if (!Known(flag, sizeof(*flag))) {
    return absl::InternalError("WaitFlag: expected registered memory");
  }
  const auto wait = [=] {
    MutexLock lock(&Host().mutex);
    while (static_cast<int32_t>(ReadFlag(flag) - value) < 0) {
      Host().changed.WaitWithDeadline(&Host().mutex, Deadline::In(absl::Milliseconds(1)));
    }
  };
  Enqueue(stream, wait, {{flag, sizeof(*flag)}});
  return absl::OkStatus();
}

absl::Status FakeGpu::LookUpBytes(const ImageLayout& layout, const uint8_t* bytes,
                                  const void* table, void* values, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("LookUpBytes"));
  Enqueue(stream, [=] {
    const size_t size = layout.element_bytes;
    for (size_t image = 0; image < layout.images; ++image) {
      for (size_t channel = 0; channel < layout.channels; ++channel) {
        for (size_t pixel = 0; pixel < layout.pixels; ++pixel) {
          const size_t entry = 256 * channel + bytes[layout.ByteIndex(image, channel, pixel)];
          std::memcpy(static_cast<char*>(values) + size * layout.ValueIndex(image, channel, pixel),
                      static_cast<const char*>(table) + size * entry, size);
        }
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace gradsync
