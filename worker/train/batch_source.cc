#include "worker/train/batch_source.h"

#include <cstddef>
#include <exception>
#include <utility>

#include "ATen/ops/from_blob.h"
#include "ATen/record_function.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "c10/core/TensorOptions.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/tensor_over.h"
#include "worker/data/augment.h"
#include "worker/train/compute_options.h"

namespace gradsync {
namespace {

size_t Bytes(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel()) * tensor.element_size();
}

absl::Status ExpectTokens(const Batch& batch, const BatchUploadOptions& options) {
  const std::vector<int64_t> sizes = {batch.images.size(0), options.context};
  if (batch.images.scalar_type() == at::kLong && batch.images.sizes() == at::IntArrayRef(sizes) &&
      sizes[0] <= options.batch_size && batch.labels.sizes() == batch.images.sizes()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "copying a batch to the GPU: expected at most ", options.batch_size, " sequences of ",
      options.context, " tokens, found ", at::toString(batch.images.scalar_type()), " of ",
      batch.images.numel(), " values"));
}

absl::Status Expect(const Batch& batch, const BatchUploadOptions& options) {
  if (options.context > 0) return ExpectTokens(batch, options);
  const ImageShape& shape = options.shape;
  const std::vector<int64_t> sizes = {batch.images.size(0), shape.channels, shape.height,
                                      shape.width};
  if (batch.images.scalar_type() == at::kByte && batch.images.sizes() == at::IntArrayRef(sizes) &&
      sizes[0] <= options.batch_size && batch.labels.numel() == sizes[0]) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "copying a batch to the GPU: expected bytes of at most ", options.batch_size, " images of ",
      shape.bytes(), " values, found ", at::toString(batch.images.scalar_type()), " of ",
      batch.images.numel(), " values"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchUpload>> BatchUpload::Create(
    std::shared_ptr<GpuApi> gpu, DataLoader* loader, const BatchUploadOptions& options) {
  std::unique_ptr<BatchUpload> upload(new BatchUpload(std::move(gpu), loader, options));
  if (upload->gpu_ != nullptr) GS_RETURN_IF_ERROR(upload->Allocate());
  return upload;
}

// Memory must not be given back while a stream may use it, whatever failed before.
BatchUpload::~BatchUpload() {
  if (stream_.get() == nullptr) return;
  Await(stream_.get()).IgnoreError();
  Await(gpu_->ComputeStream()).IgnoreError();
}

absl::Status BatchUpload::Await(GpuStream stream) {
  GS_ASSIGN_OR_RETURN(const ScopedEvent done, ScopedEvent::Create(gpu_));
  GS_RETURN_IF_ERROR(gpu_->Record(done.get(), stream));
  return gpu_->Synchronize(done.get());
}

absl::Status BatchUpload::AllocateImages() {
  const int64_t n = options_.batch_size, c = options_.shape.channels;
  const int64_t h = options_.shape.height, w = options_.shape.width;
  const std::vector<int64_t> strides = options_.channels_last
                                           ? std::vector<int64_t>{h * w * c, 1, w * c, c}
                                           : std::vector<int64_t>{c * h * w, h * w, w, 1};
  GS_ASSIGN_OR_RETURN(images_, NewTensor({n, c, h, w}, strides, options_.type));
  GS_ASSIGN_OR_RETURN(labels_, NewTensor({n}, {1}, at::kLong));
  return absl::OkStatus();
}

absl::Status BatchUpload::Allocate() {
  if (of_tokens()) {
    const std::vector<int64_t> sizes = {options_.batch_size, options_.context};
    GS_ASSIGN_OR_RETURN(images_, NewTensor(sizes, {options_.context, 1}, at::kLong));
    GS_ASSIGN_OR_RETURN(labels_, NewTensor(sizes, {options_.context, 1}, at::kLong));
  } else {
    GS_RETURN_IF_ERROR(AllocateImages());
  }
  // Of an image each value crosses as a byte.
  const size_t bytes = of_tokens() ? Bytes(images_) : static_cast<size_t>(images_.numel());
  for (Buffer& buffer : buffers_) {
    GS_ASSIGN_OR_RETURN(buffer.images, GpuMemory::OnDevice(gpu_, bytes));
    GS_ASSIGN_OR_RETURN(buffer.labels, GpuMemory::OnDevice(gpu_, Bytes(labels_)));
    GS_ASSIGN_OR_RETURN(buffer.read, ScopedEvent::Create(gpu_));
  }
  GS_ASSIGN_OR_RETURN(stream_, ScopedStream::Create(gpu_));
  return of_tokens() ? absl::OkStatus() : StartTable();
}

absl::StatusOr<at::Tensor> BatchUpload::NewTensor(const std::vector<int64_t>& sizes,
                                                  const std::vector<int64_t>& strides,
                                                  at::ScalarType type) {
  size_t bytes = c10::elementSize(type);
  for (int64_t size : sizes) bytes *= static_cast<size_t>(size);
  GS_ASSIGN_OR_RETURN(std::shared_ptr<GpuMemory> memory, GpuMemory::OnDevice(gpu_, bytes));
  void* const data = memory->data();
  try {
    return at::from_blob(
        data, sizes, strides, [memory = std::move(memory)](void*) {},
        at::TensorOptions().dtype(type).device(TensorDevice(gpu_.get())));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("a batch on the GPU: LibTorch: ", e.what()));
  }
}

// Arrives on the upload stream before the first batch does.
absl::Status BatchUpload::StartTable() {
  const Augmenter augmenter(options_.shape, options_.augmentation);
  const Augmenter::ByteValues& values = augmenter.values();
  const int64_t numel = 256 * static_cast<int64_t>(values.size());
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(options_.type);
  GS_ASSIGN_OR_RETURN(pinned_table_, GpuMemory::Pinned(gpu_, bytes));
  GS_ASSIGN_OR_RETURN(table_, GpuMemory::OnDevice(gpu_, bytes));
  try {
    // from_blob() takes no pointer to const.
    const at::Tensor floats =
        at::from_blob(const_cast<float*>(values[0].data()), {numel}, at::kFloat);
    at::from_blob(pinned_table_->data(), {numel}, options_.type).copy_(floats);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("values of bytes: LibTorch: ", e.what()));
  }
  return gpu_->Copy(table_->data(), pinned_table_->data(), bytes, stream_.get());
}

absl::StatusOr<Batch> BatchUpload::Next() {
  if (gpu_ == nullptr) return loader_->Next();
  if (started_ == taken_) {
    GS_ASSIGN_OR_RETURN(Batch batch, loader_->Next());
    GS_RETURN_IF_ERROR(Start(std::move(batch)));
  }
  GS_RETURN_IF_ERROR(QueueValues(copying_.back(), buffers_[taken_++ % buffers_.size()]));
  Batch batch = copying_.back().batch;
  const int64_t size = batch.labels.size(0);
  batch.images = images_.narrow(0, 0, size);
  batch.labels = labels_.narrow(0, 0, size);
  return batch;
}

absl::Status BatchUpload::Prefetch() {
  if (gpu_ == nullptr || started_ != taken_ || !loader_->Ready()) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(Batch batch, loader_->Next());
  return Start(std::move(batch));
}

absl::Status BatchUpload::Start(Batch batch) {
  GS_RETURN_IF_ERROR(Expect(batch, options_));
  GS_RETURN_IF_ERROR(LetGoOfCopied());
  if (spare_events_.empty()) {
    GS_ASSIGN_OR_RETURN(ScopedEvent event, ScopedEvent::Create(gpu_));
    spare_events_.push_back(std::move(event));
  }
  // Kept before anything is queued: what fails below may have queued a part.
  copying_.push_back({std::move(batch), std::move(spare_events_.back())});
  spare_events_.pop_back();
  return QueueCopies(copying_.back(), buffers_[started_++ % buffers_.size()]);
}

absl::Status BatchUpload::QueueCopies(const Copying& copying, const Buffer& buffer) {
  // In a trace, what is copied here is input and no exchange of gradients (tools/trace_check).
  RECORD_USER_SCOPE("gradsync::upload");
  const GpuStream stream = stream_.get();
  GS_RETURN_IF_ERROR(gpu_->StreamWait(stream, buffer.read.get()));
  const at::Tensor& images = copying.batch.images;
  const at::Tensor& labels = copying.batch.labels;
  GS_RETURN_IF_ERROR(gpu_->Copy(buffer.images->data(), images.data_ptr(), Bytes(images), stream));
  GS_RETURN_IF_ERROR(gpu_->Copy(buffer.labels->data(), labels.data_ptr(), Bytes(labels), stream));
  return gpu_->Record(copying.done.get(), stream);
}

absl::Status BatchUpload::QueueValues(const Copying& copying, const Buffer& buffer) {
  const GpuStream compute = gpu_->ComputeStream();
  GS_RETURN_IF_ERROR(gpu_->StreamWait(compute, copying.done.get()));
  if (of_tokens()) {
    GS_RETURN_IF_ERROR(gpu_->Copy(images_.data_ptr(), buffer.images->data(),
                                  Bytes(copying.batch.images), compute));
  } else {
    ImageLayout layout;
    layout.images = static_cast<size_t>(copying.batch.labels.numel());
    layout.channels = static_cast<size_t>(options_.shape.channels);
    layout.pixels = static_cast<size_t>(options_.shape.height) * options_.shape.width;
    layout.element_bytes = c10::elementSize(options_.type);
    layout.channels_last = options_.channels_last;
    GS_RETURN_IF_ERROR(gpu_->LookUpBytes(layout, static_cast<const uint8_t*>(buffer.images->data()),
                                         table_->data(), images_.data_ptr(), compute));
  }
  GS_RETURN_IF_ERROR(
      gpu_->Copy(labels_.data_ptr(), buffer.labels->data(), Bytes(copying.batch.labels), compute));
  return gpu_->Record(buffer.read.get(), compute);
}

absl::Status BatchUpload::LetGoOfCopied() {
  while (!copying_.empty()) {
    GS_ASSIGN_OR_RETURN(const bool done, gpu_->Done(copying_.front().done.get()));
    if (!done) break;
    spare_events_.push_back(std::move(copying_.front().done));
    copying_.pop_front();
  }
  return absl::OkStatus();
}

BatchSource::BatchSource(
    const TrainerOptions& options, int world_size, const JobInputs& inputs,
    std::function<absl::Status(absl::string_view, absl::Duration)> while_waiting)
    : options_(options),
      inputs_(inputs),
      threads_(ChooseLoaderThreads(options.loader_threads, options.gpu != nullptr, AvailableCores(),
                                   options.ranks_on_host > 0 ? options.ranks_on_host : world_size)),
      while_waiting_(std::move(while_waiting)) {}

absl::Status BatchSource::Open(int64_t epoch, int64_t position) {
  upload_.reset();
  DataLoaderOptions loader;
  loader.start_epoch = epoch;
  loader.start_position = position;
  loader.batch_size = options_.batch_size;
  loader.threads = threads_.first;
  loader.most_threads = threads_.most;
  loader.augment_seed = options_.seed;
  loader.while_waiting = while_waiting_;
  loader.pin_for = options_.gpu;
  loader.as_bytes = options_.gpu != nullptr;
  BatchUploadOptions upload;
  if (inputs_.train_tokens != nullptr) {
    loader.depth =
        PrefetchDepth(BatchBytes(loader, *inputs_.train_tokens), options_.prefetch_bytes);
    GS_ASSIGN_OR_RETURN(loader_,
                        DataLoader::Create(inputs_.train_tokens, *inputs_.sampler, loader));
    upload.context = inputs_.train_tokens->context();
  } else {
    loader.augmentation = AugmentationOf(*inputs_.train);
    loader.depth = PrefetchDepth(BatchBytes(loader, *inputs_.train), options_.prefetch_bytes);
    GS_ASSIGN_OR_RETURN(loader_, DataLoader::Create(inputs_.train, *inputs_.sampler, loader));
    upload.shape = inputs_.train->shape();
  }
  upload.batch_size = loader.batch_size;
  upload.type = ScalarTypeOf(options_.compute.precision);
  upload.channels_last = options_.compute.channels_last;
  upload.augmentation = loader.augmentation;
  GS_ASSIGN_OR_RETURN(upload_, BatchUpload::Create(options_.gpu, loader_.get(), upload));
  return absl::OkStatus();
}

}  // namespace gradsync
