#include "worker/train/batch_source.h"

#include <utility>

#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "worker/data/augment.h"
#include "worker/train/precision.h"

namespace gradsync {

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
