#include "worker/metrics.h"

#include <sys/resource.h>

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/base/write_file.h"
#include "core/group/mesh.h"
#include "core/plan/codec.h"
#include "core/plan/job_spec.h"
#include "core/plan/pipeline_schedule.h"
#include "core/plan/sharding.h"
#include "core/program/flags.h"
#include "core/program/version.h"
#include "google/protobuf/util/json_util.h"
#include "gradsync/join/backend_record.h"
#include "gradsync/join/nccl_settings.h"
#include "gradsync/join/open_device.h"
#include "proto/run_record.pb.h"
#include "worker/data/sampler.h"
#include "worker/pipeline/stage_link.h"
#include "worker/train/compute_options.h"
#include "worker/train/step_times.h"

namespace gradsync {
namespace {

double PeakResidentBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

void FillSteps(const TrainingResult& result, proto::WorkerMetrics* metrics) {
  metrics->set_step_stride(static_cast<int32_t>(result.step_stride));
  metrics->set_measured_steps(static_cast<int32_t>(result.measured_steps));
  metrics->mutable_loss()->Assign(result.losses.begin(), result.losses.end());
  metrics->mutable_lr()->Assign(result.learning_rates.begin(), result.learning_rates.end());
  for (absl::Duration end : result.step_ends) {
    metrics->add_step_end_seconds(absl::ToDoubleSeconds(end));
  }
  for (const StepTimes& times : result.times) {
    metrics->add_step_ms(absl::ToDoubleMilliseconds(times.total));
    metrics->add_data_ms(absl::ToDoubleMilliseconds(times.data));
    metrics->add_forward_ms(absl::ToDoubleMilliseconds(times.forward));
    metrics->add_backward_ms(absl::ToDoubleMilliseconds(times.backward));
    metrics->add_exposed_ms(absl::ToDoubleMilliseconds(times.exposed));
    metrics->add_update_ms(absl::ToDoubleMilliseconds(times.update));
  }
}

void FillJob(const JobOptions& options, const Plan& plan, proto::WorkerMetrics* metrics) {
  metrics->set_rank(options.join.meet.rank);
  metrics->set_world_size(options.join.meet.world_size);
  metrics->set_compression(CodecName(plan.codec()));
  metrics->set_device(DescribeDevice(options.trainer.gpu.get()));
  if (options.join.sync.nccl != nullptr) {
    metrics->set_nccl_version(NcclVersionName(options.join.sync.nccl->version()));
    metrics->set_nccl_asked(options.join.sync.nccl->algorithm());
  }
  metrics->set_model(options.trainer.model.name);
  metrics->set_activation_checkpointing(options.trainer.model.activation_checkpointing);
  metrics->set_data(EscapedAsUtf8(options.trainer.data));
  metrics->set_batch_size(static_cast<int32_t>(options.trainer.batch_size));
  metrics->set_threads(options.trainer.threads);
  metrics->set_precision(PrecisionName(options.trainer.compute.precision));
  metrics->set_channels_last(options.trainer.compute.channels_last);
  metrics->set_tf32(options.trainer.allow_tf32);
  metrics->set_cudnn_benchmark(options.trainer.gpu != nullptr && options.trainer.cudnn_benchmark);
  metrics->set_straggler(options.trainer.straggler.text());
  metrics->set_warmup_steps(static_cast<int32_t>(options.trainer.warmup_steps));
  int64_t parameters = 0;
  for (const TensorSpec& tensor : plan.tensors()) parameters += tensor.numel();
  metrics->set_parameters(static_cast<double>(parameters));
  metrics->set_gradient_bytes(static_cast<double>(plan.total_bytes()));
  metrics->set_bucket_bytes(static_cast<double>(options.trainer.plan.bucket_bytes));
  metrics->set_chunk_bytes(static_cast<double>(plan.chunk_bytes()));
  metrics->set_buckets(static_cast<int32_t>(plan.buckets().size()));
}

void FillFlags(const std::vector<FlagRecord>& flags, proto::WorkerMetrics* metrics) {
  metrics->set_gradsync_version(VersionName());
  for (const FlagRecord& flag : flags) {
    proto::FlagValue& value = *metrics->add_flags();
    value.set_name(flag.name);
    value.set_value(EscapedAsUtf8(flag.value));
    value.set_origin(flag.origin);
  }
}

void FillRecipe(const JobOptions& options, const TrainingResult& result,
                proto::WorkerMetrics* metrics) {
  metrics->set_accumulate(static_cast<int32_t>(options.trainer.accumulate));
  metrics->set_label_smoothing(options.trainer.label_smoothing);
  metrics->set_ema_decay(options.trainer.ema_decay);
  metrics->set_weights_test_loss(result.weights_test_loss);
  metrics->set_weights_test_accuracy(result.weights_test_accuracy);
  metrics->set_moment_exchanges(static_cast<double>(result.moment_exchanges));
  metrics->set_moment_wait_seconds(absl::ToDoubleSeconds(result.moment_wait));
  for (const EpochPoint& epoch : result.epochs) {
    proto::EpochPoint& point = *metrics->add_epochs();
    point.set_epoch(static_cast<int32_t>(epoch.epoch));
    point.set_steps(static_cast<int32_t>(epoch.steps));
    point.set_samples(static_cast<double>(epoch.samples));
    point.set_loss(epoch.loss);
    point.set_accuracy(epoch.accuracy);
    point.set_global_loss(epoch.global_loss);
    point.set_global_accuracy(epoch.global_accuracy);
  }
}

// Of a stage.
void FillPipeline(const JobOptions& options, const PipelinePlace* place, const Trainer& trainer,
                  const TrainingResult& result, proto::WorkerMetrics* metrics) {
  if (place == nullptr) return;
  const double steps = std::max<double>(1, static_cast<double>(result.measured_steps));
  metrics->set_mesh(options.join.mesh.ToString());
  metrics->set_pipeline_schedule(
      std::string(PipelineScheduleName(options.trainer.pipeline.schedule)));
  metrics->set_micro_batches(static_cast<int32_t>(options.trainer.accumulate));
  metrics->set_split(trainer.split());
  metrics->set_stage(place->link->stage());
  using Neighbour = StageLink::Neighbour;
  for (const Neighbour neighbour : {Neighbour::kBefore, Neighbour::kBehind}) {
    if (!place->link->Has(neighbour)) continue;
    metrics->add_stage_links(LinkName(place->link->SharesMemory(neighbour)
                                          ? Link::kShm
                                          : FrameLinkOf(options.model_links.stages)));
  }
  metrics->set_stage_tx_bytes_per_step(static_cast<double>(result.share_traffic.tx_bytes) / steps);
  metrics->set_stage_rx_bytes_per_step(static_cast<double>(result.share_traffic.rx_bytes) / steps);
  metrics->set_stage_wait_seconds(absl::ToDoubleSeconds(result.share_traffic.waited));
}

// Of a slice.
void FillSlice(const JobOptions& options, const TrainingResult& result,
               proto::WorkerMetrics* metrics) {
  if (!options.join.mesh.has_slices()) return;
  const double steps = std::max<double>(1, static_cast<double>(result.measured_steps));
  metrics->set_mesh(options.join.mesh.ToString());
  metrics->set_micro_batches(static_cast<int32_t>(options.trainer.accumulate));
  metrics->set_slice(options.join.mesh.Coordinate(options.join.meet.rank, MeshDimension::kTensor));
  metrics->set_slice_tx_bytes_per_step(static_cast<double>(result.share_traffic.tx_bytes) / steps);
  metrics->set_slice_rx_bytes_per_step(static_cast<double>(result.share_traffic.rx_bytes) / steps);
  metrics->set_slice_wait_seconds(absl::ToDoubleSeconds(result.share_traffic.waited));
}

// Of a process with several replicas.
void FillReplicas(const JobOptions& options, const TrainingResult& result,
                  proto::WorkerMetrics* metrics) {
  metrics->set_data_parallel(options.trainer.data_parallel);
  if (options.trainer.data_parallel == 1) return;
  ReplicaTimes sum;
  for (const StepTimes& times : result.times) {
    const ReplicaTimes& own = times.replicas;
    metrics->add_replicate_ms(absl::ToDoubleMilliseconds(own.replicate));
    metrics->add_scatter_ms(absl::ToDoubleMilliseconds(own.scatter));
    metrics->add_apply_ms(absl::ToDoubleMilliseconds(own.apply));
    metrics->add_gather_ms(absl::ToDoubleMilliseconds(own.gather));
    metrics->add_reduce_ms(absl::ToDoubleMilliseconds(own.reduce));
    sum += own;
  }
  const double steps = std::max<double>(1, static_cast<double>(result.times.size()));
  metrics->set_device0_share(sum.FirstShare());
  metrics->set_device0_tx_bytes_per_step(static_cast<double>(sum.tx_bytes) / steps);
  metrics->set_device0_rx_bytes_per_step(static_cast<double>(sum.rx_bytes) / steps);
}

// Of a process with several stages.
void FillLocalStages(const JobOptions& options, const Trainer& trainer,
                     const TrainingResult& result, proto::WorkerMetrics* metrics) {
  metrics->set_model_parallel(options.trainer.model_parallel);
  if (options.trainer.model_parallel == 1) return;
  metrics->set_pipeline_schedule(
      std::string(PipelineScheduleName(options.trainer.pipeline.schedule)));
  metrics->set_micro_batches(static_cast<int32_t>(options.trainer.accumulate));
  metrics->set_split(trainer.split());
  for (const double share : StageBusyShares(result.times)) metrics->add_stage_busy_share(share);
}

}  // namespace

absl::Status WriteWorkerMetrics(const JobOptions& options, const GradientSync& sync,
                                const Trainer& trainer, const TrainingResult& result,
                                const PipelinePlace* place, int64_t side_channel_bytes,
                                const std::string& path) {
  proto::WorkerMetrics metrics;
  RecordBackend(sync, &metrics);
  metrics.set_zero(ZeroOf(trainer.plan().slots(), sync.update_site()));
  FillJob(options, trainer.plan(), &metrics);
  FillFlags(options.flags.flags, &metrics);
  FillPipeline(options, place, trainer, result, &metrics);
  FillSlice(options, result, &metrics);
  FillReplicas(options, result, &metrics);
  FillLocalStages(options, trainer, result, &metrics);
  FillSteps(result, &metrics);
  metrics.set_loader_threads(trainer.loader_threads());
  metrics.set_data_wait_share(DataWaitShare(result.times));
  metrics.set_sampler(std::string(SampleOrderName(options.trainer.sampler)));
  metrics.set_mean_first_loss(result.first_loss);
  metrics.set_mean_final_loss(result.final_loss);
  metrics.set_skipped_steps(static_cast<int32_t>(result.skipped_steps));
  metrics.set_loss_scale(result.loss_scale);
  metrics.set_first_step(static_cast<int32_t>(result.first_step));
  metrics.set_checkpoints(result.checkpoints);
  metrics.set_checkpoint_seconds(absl::ToDoubleSeconds(result.checkpoint_time));
  metrics.set_test_samples(static_cast<double>(result.test_samples));
  metrics.set_test_loss(result.test_loss);
  metrics.set_test_accuracy(result.test_accuracy);
  const double steps = std::max(1.0, static_cast<double>(result.measured_steps));
  metrics.set_wire_tx_bytes_per_step(static_cast<double>(result.wire.tx_bytes) / steps);
  metrics.set_wire_rx_bytes_per_step(static_cast<double>(result.wire.rx_bytes) / steps);
  metrics.set_side_channel_bytes(static_cast<double>(side_channel_bytes));
  metrics.set_cpu_seconds(absl::ToDoubleSeconds(result.cpu));
  metrics.set_measured_seconds(absl::ToDoubleSeconds(result.measured));
  metrics.set_max_resident_bytes(PeakResidentBytes());
  metrics.set_peak_tensor_bytes(static_cast<double>(result.peak_tensor_bytes));
  metrics.set_params_sha256(result.params_sha256);
  FillRecipe(options, result, &metrics);
  for (const EvaluationPoint& evaluation : result.evaluations) {
    proto::CurvePoint& point = *metrics.add_accuracy_curve();
    point.set_seconds(absl::ToDoubleSeconds(evaluation.time));
    point.set_step(static_cast<double>(evaluation.step));
    point.set_loss(evaluation.tested.judged().loss);
    point.set_accuracy(evaluation.tested.judged().accuracy);
    point.set_weights_accuracy(evaluation.tested.weights.accuracy);
  }
  metrics.set_max_staleness(static_cast<int32_t>(result.staleness.max()));
  for (int64_t steps : result.staleness.histogram) {
    metrics.add_staleness_histogram(static_cast<double>(steps));
  }

  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(metrics, &json, print);
  if (!printed.ok()) return absl::InternalError(printed.ToString());
  return WriteFileAtomically(path, json);
}

}  // namespace gradsync
