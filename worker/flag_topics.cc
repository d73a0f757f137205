#include "worker/flag_topics.h"

namespace gradsync {

std::vector<FlagTopic> WorkerTopics() {
  return {
      {"Who this worker is and where the others are",
       {"rank", "world_size", "local_rank", "master", "port_file", "interface", "run_id", "servers",
        "num_servers"}},
      {"How gradients are exchanged",
       {"topology", "link", "update", "consistency", "compression", "server_weights", "owners",
        "connections"}},
      {"Model and data",
       {"model", "stem", "data", "batch_size", "steps", "epochs", "warmup_steps", "seed"}},
      {"Optimizer and learning rate",
       {"optimizer", "momentum", "nesterov", "weight_decay", "max_norm", "lr", "schedule",
        "lr_milestones", "lr_gamma", "lr_final", "lr_warmup_steps"}},
      {"Device and precision",
       {"device", "precision", "tf32", "channels_last", "fused_norm", "cuda_graph",
        "cudnn_benchmark", "threads", "loader_threads"}},
      {"Sizes of buckets and chunks", {"bucket_bytes", "first_bucket_bytes", "chunk_bytes"}},
      {"Evaluation and records",
       {"evaluate", "evaluate_every", "log_every", "metrics_json", "tensorboard", "trace",
        "trace_steps", "trace_bandwidth", "trace_placement"}},
      {"Lost peers and slow workers", {"timeout", "straggler"}},
  };
}

}  // namespace gradsync
