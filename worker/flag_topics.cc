#include "worker/flag_topics.h"

namespace gradsync {

std::vector<FlagTopic> WorkerTopics() {
  return {
      {"Who this worker is and where the others are",
       {"rank", "world_size", "local_rank", "master", "port_file", "interface", "run_id", "attempt",
        "servers", "num_servers", "server_tasks"}},
      {"How gradients are exchanged",
       {"topology", "link", "update", "consistency", "compression", "server_weights", "owners",
        "connections", "zero"}},
      {"Parts of a model on several ranks",
       {"mesh", "pipeline_schedule", "micro_batches", "split", "pipeline_link", "sequence_parallel",
        "tensor_link"}},
      {"Replicas or stages in one process", {"data_parallel", "model_parallel"}},
      {"Model and data", {"model",        "stem",
                          "gpt_width",    "gpt_layers",
                          "gpt_heads",    "gpt_context",
                          "dropout",      "activation_checkpointing",
                          "classes",      "describe_model",
                          "data",         "image_size",
                          "crop",         "scaled_decoding",
                          "skip_damaged", "check_data",
                          "sampler",      "prefetch_bytes",
                          "batch_size",   "steps",
                          "epochs",       "warmup_steps",
                          "seed"}},
      {"Optimizer, loss and weights",
       {"optimizer", "momentum", "nesterov", "weight_decay", "no_weight_decay", "max_norm",
        "accumulate", "label_smoothing", "sync_batchnorm", "ema_decay", "allow_nonfinite"}},
      {"Learning rate",
       {"lr", "lr_scaling", "lr_reference_batch", "schedule", "lr_milestones", "lr_gamma",
        "lr_final", "lr_power", "lr_warmup", "lr_warmup_steps", "lr_warmup_start"}},
      {"Checkpoints",
       {"checkpoint", "checkpoint_every", "checkpoint_keep", "checkpoint_best", "resume",
        "init_from", "init_key", "init_skip"}},
      {"Device and precision",
       {"device", "offload", "precision", "tf32", "channels_last", "fused_norm", "weight_copies",
        "cuda_graph", "cudnn_benchmark", "threads", "loader_threads"}},
      {"Sizes of buckets and chunks", {"bucket_bytes", "first_bucket_bytes", "chunk_bytes"}},
      {"Evaluation and records",
       {"evaluate", "evaluate_every", "evaluate_only", "log_every", "metrics_json", "tensorboard", "trace",
        "trace_steps", "trace_bandwidth", "trace_placement"}},
      {"Watching a job from outside",
       {"metrics_port", "metrics_host", "metrics_port_file", "log_format", "reflection"}},
      {"Job files", {"config", "print_config", "write_config"}},
      {"Who may connect", {"tls_cert", "tls_key", "tls_ca", "secret_file", "insecure"}},
      {"Lost peers and slow workers", {"timeout", "failure_timeout", "straggler"}},
  };
}

}  // namespace gradsync
