#include "core/program/other_names.h"

#include "absl/strings/str_split.h"

namespace gradsync {
namespace {

struct OtherNames {
  absl::string_view here;    // separated by spaces
  absl::string_view others;  // likewise
};

constexpr OtherNames kTable[] = {
    // Who takes part, as launchers have it.
    {"workers world_size",
     "n np nproc nprocs nproc_per_node procs_per_node num_proc num_procs num_processes ntasks "
     "ntasks_per_node num_worker world_size nranks num_ranks g ngpus"},
    {"workers world_size loader_threads", "num_workers"},
    {"loader_threads workers world_size", "workers j dataloader_num_workers dataloader_workers"},
    {"servers num_servers", "ps num_ps num_server num_servers s"},
    {"rank", "node_rank global_rank machine_rank task_id"},
    {"local_rank", "local_process_index"},
    {"master", "master_addr master_address master_port rdzv_endpoint dist_url init_method store"},
    {"run_id", "rdzv_id job_id run_name"},
    {"max_restarts", "restarts retries"},
    {"link topology", "backend dist_backend ddp_backend distributed_backend"},
    {"topology", "strategy kvstore distribution_strategy"},
    {"servers", "pservers parameter_servers"},
    // Model, data, length.
    {"model", "arch a network net model_name model_name_or_path"},
    {"data",
     "dataset data_dir data_path data_root dataset_name dataset_dir train_dir train_data "
     "train_file input"},
    {"batch_size",
     "b bs batch train_batch_size per_device_train_batch_size micro_batch_size local_batch_size "
     "mbs"},
    {"epochs", "epoch num_epochs num_train_epochs max_epochs n_epochs nepochs"},
    {"steps iterations",
     "step max_steps num_steps iterations iters num_iterations max_iters train_iters niters"},
    {"image_size", "img_size input_size resolution crop_size train_crop_size"},
    {"seed", "random_seed manual_seed"},
    // How it learns.
    {"lr", "learning_rate base_lr blr initial_lr"},
    {"weight_decay", "wd l2 decay"},
    {"optimizer", "opt optim"},
    {"schedule", "sched scheduler lr_scheduler lr_scheduler_type lr_schedule lr_decay_style"},
    {"lr_milestones", "milestones lr_steps decay_milestones"},
    {"lr_gamma", "gamma decay_rate"},
    {"lr_final", "min_lr lr_min"},
    {"lr_warmup", "warmup warmup_epochs lr_warmup_epochs lr_warmup_iters"},
    {"warmup warmup_steps", "warmup_iters"},
    {"lr_warmup_start", "warmup_lr lr_warmup_decay"},
    {"accumulate",
     "grad_accum gradient_accumulation_steps accumulation_steps accumulate_grad_batches accum_iter "
     "grad_accum_steps update_freq"},
    {"max_norm", "clip_grad clip_grad_norm max_grad_norm gradient_clip_val clip"},
    {"label_smoothing", "smoothing"},
    {"dropout", "drop drop_rate"},
    {"sync_batchnorm", "sync_bn syncbn"},
    {"ema_decay", "model_ema model_ema_decay ema"},
    // What it computes with, and who keeps what.
    {"device", "gpu gpus cuda accelerator gpu_id"},
    {"precision", "amp fp16 bf16 mixed_precision dtype"},
    {"channels_last", "memory_format"},
    {"threads", "cpus num_threads intra_op_threads"},
    {"activation_checkpointing",
     "gradient_checkpointing grad_checkpointing recompute recompute_activations"},
    {"zero", "zero_stage fsdp sharded_ddp"},
    {"offload", "cpu_offload offload_optimizer"},
    {"mesh", "tensor_model_parallel_size pipeline_model_parallel_size tp pp"},
    {"compression", "gradient_compression fp16_allreduce grad_compression"},
    {"bucket_bytes", "bucket_cap_mb fusion_threshold_mb bucket_size"},
    // Of nccl-tests.
    {"min_bytes", "minbytes"},
    {"max_bytes", "maxbytes"},
    {"factor", "stepfactor"},
    // What is kept and said.
    {"checkpoint", "output output_dir save save_dir checkpoint_dir ckpt ckpt_dir out_dir"},
    {"checkpoint_every", "save_every save_interval save_steps save_freq ckpt_every"},
    {"checkpoint_keep", "save_total_limit checkpoint_hist keep_last"},
    {"resume", "resume_from resume_from_checkpoint load restore"},
    {"init_from", "pretrained weights finetune initial_checkpoint init_checkpoint"},
    {"evaluate", "eval test_only eval_only validate"},
    {"evaluate_every", "eval_every eval_interval eval_steps val_interval"},
    {"log_every", "print_freq log_interval log_freq logging_steps log_steps print_every"},
    {"metrics_json", "log_file json_output"},
    {"tensorboard", "tb log_dir logdir tensorboard_dir"},
    {"trace", "profile profiler"},
    {"config", "config_file cfg c"},
    {"interface", "ifname network_interface nic"},
};

constexpr OtherNames kWithoutCounterpart[] = {
    {"results are checked in every run", "c check"},
    {"what is exchanged is fp32", "d datatype"},
    {"what is done with gradients is to average them", "o op r root"},
    {"each rank is a process", "t nthreads p parallel_init"},
    {"sizes grow by --factor alone", "i stepbytes"},
    {"each iteration is timed by itself", "m agg_iters a average z blocking"},
};

}  // namespace

absl::string_view NcclTestsHas(absl::string_view name) {
  for (const OtherNames& row : kWithoutCounterpart) {
    for (absl::string_view other : absl::StrSplit(row.others, ' ')) {
      if (other == name) return row.here;
    }
  }
  return "";
}

std::vector<std::string> FlagsHereFor(absl::string_view name) {
  std::vector<std::string> here;
  for (const OtherNames& row : kTable) {
    for (absl::string_view other : absl::StrSplit(row.others, ' ')) {
      if (other != name) continue;
      for (absl::string_view flag : absl::StrSplit(row.here, ' ')) here.emplace_back(flag);
    }
  }
  return here;
}

}  // namespace gradsync
