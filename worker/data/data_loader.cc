#include "worker/data/data_loader.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/base/thread.h"
#include "core/gpu/gpu_resources.h"
#include "worker/data/loader_threads.h"

namespace gradsync {
namespace {

// A thread takes so many samples at a time that several threads share even the first batch.
int64_t SamplesPerClaim(const DataLoaderOptions& options) {
  const int64_t threads = std::max(options.threads, options.most_threads);
  return std::clamp<int64_t>(options.batch_size / (2 * threads), 1, 16);
}

struct Buffer {
  at::Tensor images;
  at::Tensor labels;

  // Whether nobody else can reach this memory. Views have a tensor of their own on the same
  // storage, copies the same tensor. No new reference can come from elsewhere while we hold the
  // only one.
  bool unshared() const { return Unshared(images) && Unshared(labels); }

 private:
  static bool Unshared(const at::Tensor& t) {
    return t.use_count() == 1 && t.storage().use_count() == 1;
  }
};

absl::Status Check(int64_t dataset_size, const RankSampler& sampler, const DataLoaderOptions& o) {
  const int64_t share = sampler.samples_per_rank();
  if (sampler.options().dataset_size != dataset_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("data loader: expected a sampler for the dataset's ", dataset_size,
                     " samples, found one for ", sampler.options().dataset_size));
  }
  for (const auto& [name, value] :
       {std::make_pair("batch_size", o.batch_size), std::make_pair("threads", int64_t{o.threads}),
        std::make_pair("depth", int64_t{o.depth})}) {
    if (value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("data loader: expected ", name, " of at least 1, found ", value));
    }
  }
  if (o.batch_size > share) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data loader: batch_size ", o.batch_size, " is larger than this rank's share of ", share,
        " samples (", dataset_size, " samples over ", sampler.options().world_size,
        " ranks); use a batch_size of at most ", share));
  }
  if (o.start_epoch < 0 || o.start_epoch > o.end_epoch || o.start_position < 0 ||
      o.start_position > share) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data loader: expected a start in epochs 0 to ", o.end_epoch, " and positions 0 to ", share,
        ", found epoch ", o.start_epoch, " position ", o.start_position));
  }
  return absl::OkStatus();
}

}  // namespace

// Slots form a ring: batch number k (counted from the start) lives in slot k % depth. The consumer
// takes batch take_; threads plan batches up to take_ + depth and fill the oldest first.
class DataLoader::Impl {
 public:
  Impl(std::shared_ptr<const ImageDataset> dataset, const RankSampler& sampler,
       const DataLoaderOptions& options)
      : dataset_(std::move(dataset)),
        sampler_(sampler),
        options_(options),
        shape_(dataset_->shape()),
        augmenter_(shape_, options.augmentation),
        samples_per_claim_(SamplesPerClaim(options)),
        crops_(options.augment && !dataset_->augments()),
        slots_(options.depth),
        epoch_(options.start_epoch),
        position_(options.start_position) {}

  Impl(std::shared_ptr<const TokenDataset> tokens, const RankSampler& sampler,
       const DataLoaderOptions& options)
      : tokens_(std::move(tokens)),
        sampler_(sampler),
        options_(options),
        augmenter_(shape_, options.augmentation),
        samples_per_claim_(SamplesPerClaim(options)),
        crops_(false),
        slots_(options.depth),
        epoch_(options.start_epoch),
        position_(options.start_position) {}

  // Before the last reference of the consumer is gone. Whoever is at a sample is waited for, unless
  // it hangs there.
  void Stop() {
    MutexLock lock(&mutex_);
    stop_ = true;
    work_.SignalAll();
    while (std::any_of(threads_.begin(), threads_.end(), [](const std::unique_ptr<Thread>& thread) {
      return !thread->ended && thread->Reading() < kHangs;
    })) {
      ended_.WaitWithDeadline(&mutex_, Deadline::In(kLook));
    }
    std::vector<std::thread> over;
    for (const std::unique_ptr<Thread>& thread : threads_) {
      if (thread->ended) {
        over.push_back(std::move(thread->thread));
      } else {
        thread->thread.detach();
      }
    }
    mutex_.Unlock();
    for (std::thread& thread : over) thread.join();
    mutex_.Lock();
  }

  // `self`: this.
  absl::Status Start(const std::shared_ptr<Impl>& self) {
    self_ = self;
    {
      MutexLock lock(&mutex_);
      for (Slot& slot : slots_) {
        GS_ASSIGN_OR_RETURN(Buffer buffer, Allocate());
        slot.Use(std::move(buffer));
      }
    }
    for (int i = 0; i < options_.threads; ++i) GS_RETURN_IF_ERROR(StartThread());
    return absl::OkStatus();
  }

  absl::StatusOr<Batch> Next() {
    const MonotonicTime asked = MonotonicTime::Now();
    absl::StatusOr<Batch> batch = Take();
    const MonotonicTime had = MonotonicTime::Now();
    // The first batch is always waited for: it says nothing.
    const bool grow =
        last_ != MonotonicTime::InfinitePast() && growth_.Grow(had - asked, had - last_);
    last_ = had;
    // A thread that cannot be had is done without.
    if (grow && threads() < options_.most_threads) StartThread().IgnoreError();
    return batch;
  }

  bool Ready() const {
    MutexLock lock(&mutex_);
    return take_ < plan_ && SlotOf(take_).ready();
  }

  int64_t batches_per_epoch() const {
    const int64_t share = sampler_.samples_per_rank(), b = options_.batch_size;
    return options_.drop_last_batch ? share / b : (share + b - 1) / b;
  }

  int threads() const { return static_cast<int>(threads_.size()); }

  int64_t buffers_allocated() const { return buffers_allocated_; }

 private:
  struct Slot {
    void Use(Buffer new_buffer) {
      buffer = std::move(new_buffer);
      images = buffer.images.data_ptr();
      labels = buffer.labels.data_ptr<int64_t>();
    }
    bool ready() const { return finished == batch.next_position - batch.position; }

    Buffer buffer;
    void* images = nullptr;
    int64_t* labels = nullptr;
    Batch batch;  // Without its tensors.
    std::shared_ptr<const std::vector<int64_t>> share;
    int64_t claimed = 0;   // Samples that a thread has taken.
    int64_t finished = 0;  // Samples that are written.
    absl::Status error;
    int64_t error_sample = 0;  // Position of the sample that `error` is about.
  };

  // One of those that prepare batches, and what it is at.
  struct Thread {
    void Begin(int64_t index) {
      since.store(absl::ToInt64Nanoseconds(MonotonicTime::Now().since_origin()));
      sample.store(index);
    }
    void End() { sample.store(kNone); }
    // For how long it has been at its sample.
    absl::Duration Reading() const {
      if (sample.load() == kNone) return absl::ZeroDuration();
      return MonotonicTime::Now().since_origin() - absl::Nanoseconds(since.load());
    }

    static constexpr int64_t kNone = -1;
    std::thread thread;
    std::atomic<int64_t> sample{kNone};  // its index
    std::atomic<int64_t> since{0};       // nanoseconds
    bool ended = false;                  // guarded by mutex_
  };

  static constexpr absl::Duration kLook = absl::Milliseconds(100);
  static constexpr absl::Duration kHangs = absl::Seconds(2);

  absl::Status StartThread() {
    auto thread = std::make_unique<Thread>();
    try {
      // What a thread that hangs may still use is there as long as it is.
      const RefusableThreads refusable;
      thread->thread = std::thread([self = self_.lock(), own = thread.get()] { self->Work(own); });
      threads_.push_back(std::move(thread));
    } catch (const std::exception& e) {
      return absl::ResourceExhaustedError(absl::StrCat("data loader: cannot start thread ",
                                                       threads_.size(), " of ", options_.threads,
                                                       ": ", e.what()));
    }
    return absl::OkStatus();
  }

  // The next batch, which is waited for.
  absl::StatusOr<Batch> Take() {
    GS_ASSIGN_OR_RETURN(Buffer spare, TakeSpare());

    MutexLock lock(&mutex_);
    while (!HeadDecided()) {
      if (options_.while_waiting == nullptr) {
        ready_.Wait(&mutex_);
      } else if (ready_.WaitWithDeadline(&mutex_, Deadline::In(kLook))) {
        mutex_.Unlock();
        const absl::Status go_on = LookAtThreads();
        mutex_.Lock();
        if (!go_on.ok()) {
          lent_.push_back(std::move(spare));
          return go_on;
        }
      }
    }
    if (take_ == plan_) {
      lent_.push_back(std::move(spare));
      return absl::OutOfRangeError(absl::StrCat(
          "data loader: no batch after the last one before epoch ", options_.end_epoch));
    }
    Slot& slot = SlotOf(take_++);
    Buffer& buffer = slot.buffer;
    Batch batch = slot.batch;
    absl::Status error = std::move(slot.error);
    slot.error = absl::OkStatus();
    const int64_t size = batch.next_position - batch.position;
    batch.images = buffer.images.narrow(0, 0, size);
    batch.labels = buffer.labels.narrow(0, 0, size);
    lent_.push_back(std::move(buffer));
    slot.Use(std::move(spare));
    work_.SignalAll();
    if (!error.ok()) return error;
    return batch;
  }

  absl::Status LookAtThreads() const {
    absl::Duration longest;
    int64_t sample = Thread::kNone;
    for (const std::unique_ptr<Thread>& thread : threads_) {
      const absl::Duration reading = thread->Reading();
      if (reading <= longest) continue;
      longest = reading;
      sample = thread->sample.load();
    }
    if (sample == Thread::kNone) return options_.while_waiting("", absl::ZeroDuration());
    return options_.while_waiting(
        dataset_ != nullptr ? dataset_->name(sample) : absl::StrCat("sample ", sample), longest);
  }

  absl::StatusOr<Buffer> Allocate() {
    ++buffers_allocated_;
    Buffer buffer;
    if (tokens_ != nullptr) {
      const std::vector<int64_t> sizes = {options_.batch_size, tokens_->context()};
      GS_ASSIGN_OR_RETURN(buffer.images, NewTensor(sizes, at::kLong));
      GS_ASSIGN_OR_RETURN(buffer.labels, NewTensor(sizes, at::kLong));
      return buffer;
    }
    GS_ASSIGN_OR_RETURN(buffer.images, NewTensor({options_.batch_size, shape_.channels,
                                                  shape_.height, shape_.width},
                                                 options_.as_bytes ? at::kByte : at::kFloat));
    GS_ASSIGN_OR_RETURN(buffer.labels, NewTensor({options_.batch_size}, at::kLong));
    return buffer;
  }

  absl::StatusOr<at::Tensor> NewTensor(const std::vector<int64_t>& sizes, at::ScalarType type) {
    if (options_.pin_for != nullptr) {
      size_t bytes = c10::elementSize(type);
      for (int64_t size : sizes) bytes *= static_cast<size_t>(size);
      GS_ASSIGN_OR_RETURN(std::shared_ptr<GpuMemory> memory,
                          GpuMemory::Pinned(options_.pin_for, bytes));
      void* const data = memory->data();
      return at::from_blob(
          data, sizes, [memory = std::move(memory)](void*) {}, type);
    }
    try {
      return at::empty(sizes, type);
    } catch (const std::exception& e) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "data loader: no memory for a batch of ", options_.batch_size, " samples of ",
          tokens_ != nullptr ? tokens_->context() : shape_.bytes(), " values"));
    }
  }

  absl::StatusOr<Buffer> TakeSpare() {
    for (auto it = lent_.begin(); it != lent_.end(); ++it) {
      if (!it->unshared()) continue;
      Buffer buffer = std::move(*it);
      lent_.erase(it);
      return buffer;
    }
    return Allocate();
  }

  Slot& SlotOf(int64_t batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return slots_[batch % options_.depth];
  }
  const Slot& SlotOf(int64_t batch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return slots_[batch % options_.depth];
  }

  // Skips to the next epoch when what is left of this one makes no batch.
  void SkipToNextBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t left = sampler_.samples_per_rank() - position_;
    if (left >= (options_.drop_last_batch ? options_.batch_size : 1)) return;
    ++epoch_;
    position_ = 0;
  }

  bool AtEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return epoch_ >= options_.end_epoch; }

  bool CanPlan() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !planning_ && !AtEnd() && plan_ < take_ + options_.depth;
  }

  Slot* Claimable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int64_t k = take_; k < plan_; ++k) {
      Slot& slot = SlotOf(k);
      if (slot.claimed < slot.batch.next_position - slot.batch.position) return &slot;
    }
    return nullptr;
  }

  bool HasWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return Claimable() != nullptr || CanPlan();
  }

  bool HeadDecided() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return take_ < plan_ ? SlotOf(take_).ready() : AtEnd() && !planning_;
  }

  void Work(Thread* own) {
    std::vector<uint8_t> scratch(shape_.bytes());
    MutexLock lock(&mutex_);
    while (!stop_) {
      if (!HasWork()) {
        work_.Wait(&mutex_);
      } else if (Slot* slot = Claimable()) {
        FillSome(*slot, absl::MakeSpan(scratch), own);
      } else {
        Plan();
      }
    }
    own->ended = true;
    ended_.SignalAll();
  }

  // Decides what the next batch consists of. The permutation of a new epoch is computed without the
  // lock, so that batches that are ready can be taken meanwhile.
  void Plan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    planning_ = true;
    SkipToNextBatch();
    if (!AtEnd()) {
      if (share_ == nullptr || share_epoch_ != epoch_) {
        const int64_t epoch = epoch_;
        mutex_.Unlock();
        auto share = std::make_shared<const std::vector<int64_t>>(sampler_.Indices(epoch));
        mutex_.Lock();
        share_ = std::move(share);
        share_epoch_ = epoch;
      }
      const int64_t share_size = sampler_.samples_per_rank();
      Slot& slot = SlotOf(plan_);
      slot.share = share_;
      slot.claimed = slot.finished = 0;
      slot.batch.epoch = epoch_;
      slot.batch.position = position_;
      position_ = std::min(position_ + options_.batch_size, share_size);
      slot.batch.next_position = position_;
      SkipToNextBatch();
      slot.batch.last_of_epoch = epoch_ != slot.batch.epoch;
      ++plan_;
    }
    planning_ = false;
    work_.SignalAll();
    ready_.Signal();
  }

  void FillSome(Slot& slot, absl::Span<uint8_t> scratch, Thread* own)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t size = slot.batch.next_position - slot.batch.position;
    const int64_t begin = slot.claimed;
    const int64_t end = std::min(begin + samples_per_claim_, size);
    slot.claimed = end;
    mutex_.Unlock();
    // Until `finished` reaches the batch's size, nobody else touches the fields read here.
    absl::Status error;
    int64_t error_sample = begin;
    for (int64_t i = begin; i < end && error.ok(); ++i) {
      error_sample = i;
      own->Begin((*slot.share)[slot.batch.position + i]);
      error = FillOne(slot, i, scratch);
    }
    own->End();
    mutex_.Lock();
    if (!error.ok() && (slot.error.ok() || error_sample < slot.error_sample)) {
      slot.error = std::move(error);
      slot.error_sample = error_sample;
    }
    slot.finished += end - begin;
    if (slot.ready()) ready_.Signal();
  }

  absl::Status FillOne(const Slot& slot, int64_t i, absl::Span<uint8_t> scratch) const {
    const int64_t index = (*slot.share)[slot.batch.position + i];
    if (tokens_ != nullptr) {
      const int64_t length = tokens_->context();
      tokens_->Get(index,
                   {static_cast<int64_t*>(slot.images) + i * length, static_cast<size_t>(length)},
                   {slot.labels + i * length, static_cast<size_t>(length)});
      return absl::OkStatus();
    }
    const AugmentKey key = {options_.augment_seed, slot.batch.epoch, index};
    const absl::StatusOr<ImageExample> example =
        options_.augment ? dataset_->GetAugmented(key, scratch) : dataset_->Get(index, scratch);
    if (!example.ok()) return example.status();
    if (options_.as_bytes) {
      WriteBytes(key, example->pixels, static_cast<uint8_t*>(slot.images) + i * shape_.bytes());
    } else {
      WriteFloats(key, example->pixels, static_cast<float*>(slot.images) + i * shape_.bytes());
    }
    slot.labels[i] = example->label;
    return absl::OkStatus();
  }

  void WriteBytes(const AugmentKey& key, const uint8_t* pixels, uint8_t* out) const {
    if (crops_) return augmenter_.TrainBytes(key, pixels, out);
    std::copy(pixels, pixels + shape_.bytes(), out);
  }

  void WriteFloats(const AugmentKey& key, const uint8_t* pixels, float* out) const {
    if (crops_) return augmenter_.Train(key, pixels, out);
    augmenter_.Evaluate(pixels, out);
  }

  const std::shared_ptr<const ImageDataset> dataset_;  // null for tokens
  const std::shared_ptr<const TokenDataset> tokens_;   // null for images
  const RankSampler sampler_;
  const DataLoaderOptions options_;
  const ImageShape shape_;
  const Augmenter augmenter_;
  const int64_t samples_per_claim_;
  const bool crops_;  // by augmenter_, whether or not it also normalises

  // The consumer's alone.
  std::weak_ptr<Impl> self_;
  std::vector<std::unique_ptr<Thread>> threads_;
  LoaderGrowth growth_;
  MonotonicTime last_ = MonotonicTime::InfinitePast();  // when it had its last batch
  std::vector<Buffer> lent_;                            // Handed out; free again once unshared().
  int64_t buffers_allocated_ = 0;

  mutable Mutex mutex_;
  CondVar work_;   // For the threads: a batch to plan or samples to fill, or stop_.
  CondVar ready_;  // For the consumer: the oldest batch may be ready, or the end reached.
  CondVar ended_;  // For Stop(): a thread has ended.
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  int64_t take_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t plan_ ABSL_GUARDED_BY(mutex_) = 0;
  // Where the next batch to be planned begins, and the rank's indices of that epoch.
  int64_t epoch_ ABSL_GUARDED_BY(mutex_);
  int64_t position_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const std::vector<int64_t>> share_ ABSL_GUARDED_BY(mutex_);
  int64_t share_epoch_ ABSL_GUARDED_BY(mutex_) = -1;
  bool planning_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<DataLoader>> DataLoader::Create(
    std::shared_ptr<const ImageDataset> dataset, const RankSampler& sampler,
    const DataLoaderOptions& options) {
  GS_RETURN_IF_ERROR(Check(dataset->size(), sampler, options));
  std::unique_ptr<DataLoader> loader(
      new DataLoader(std::make_shared<Impl>(std::move(dataset), sampler, options)));
  GS_RETURN_IF_ERROR(loader->impl_->Start(loader->impl_));
  return loader;
}

absl::StatusOr<std::unique_ptr<DataLoader>> DataLoader::Create(
    std::shared_ptr<const TokenDataset> dataset, const RankSampler& sampler,
    const DataLoaderOptions& options) {
  GS_RETURN_IF_ERROR(Check(dataset->size(), sampler, options));
  std::unique_ptr<DataLoader> loader(
      new DataLoader(std::make_shared<Impl>(std::move(dataset), sampler, options)));
  GS_RETURN_IF_ERROR(loader->impl_->Start(loader->impl_));
  return loader;
}

DataLoader::DataLoader(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
DataLoader::~DataLoader() { impl_->Stop(); }

absl::StatusOr<Batch> DataLoader::Next() { return impl_->Next(); }
bool DataLoader::Ready() const { return impl_->Ready(); }
int64_t DataLoader::batches_per_epoch() const { return impl_->batches_per_epoch(); }
int DataLoader::threads() const { return impl_->threads(); }
int64_t DataLoader::buffers_allocated() const { return impl_->buffers_allocated(); }

}  // namespace gradsync
