#include "benchmarks/options/command_line.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/options/job_sweep.h"
#include "core/base/utf8.h"
#include "core/program/version.h"
#include "torch/version.h"

namespace gradsync {

std::string CommandLine(absl::string_view target, int argc, const char* const* argv) {
  std::string command = absl::StrCat("bazel run //benchmarks:", target);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool plain = argument.find_first_of(" \t\n'\"\\$*?;&|<>()`#~") == std::string::npos;
    absl::StrAppend(&command, i == 1 ? " -- " : " ",
                    plain && !argument.empty() ? argument : absl::StrCat("'", argument, "'"));
  }
  return EscapedAsUtf8(command);  // Records are JSON.
}

std::vector<FlagTopic> BenchmarkTopics() {
  return {
      {"What is measured", {"train", "record", "replay", "contestants", "pytorch"}},
      {"Jobs",
       {"topology", "link", "workers", "data_parallel", "servers", "replicas", "placement",
        "server_weights", "update", "zero", "consistency", "compression", "connections"}},
      {"Stages and slices of a model on several ranks",
       {"mesh", "pipeline_schedule", "micro_batches", "split", "sequence_parallel"}},
      {"Network",
       {"bandwidth", "emulate", "burst", "congestion_control", "tcp_rmem", "tcp_wmem", "tcp"}},
      {"Who may connect", {"tls_cert", "tls_key", "tls_ca", "secret_file", "insecure"}},
      {"Model and data",
       {"model", "stem", "classes", "gpt_width", "gpt_layers", "gpt_heads", "gpt_context",
        "activation_checkpointing", "profile", "data", "pixels", "batch_size", "global_batch_size",
        "lr", "seed"}},
      {"Sizes of exchanges, buckets and chunks",
       {"bytes", "min_bytes", "max_bytes", "factor", "bucket_bytes", "first_bucket_bytes",
        "chunk_bytes"}},
      {"Device and precision",
       {"device", "offload", "ranks_per_gpu", "precision", "tf32", "channels_last",
        "cudnn_benchmark", "threads", "loader_threads"}},
      {"Slower and faster workers", {"straggler", "compute_scale"}},
      {"Rounds, steps and time limits",
       {"rounds", "iterations", "warmup", "steps", "warmup_steps", "steps_per_round", "timeout",
        "peer_timeout"}},
      {"Predictions",
       {"predict", "probe", "cores", "rate_factor", "latency", "message_cost", "device_bandwidth",
        "step_overhead", "advise"}},
      {"Output", {"out", "json"}},
      {"Programs and other libraries",
       {"worker_binary", "server_binary", "nccl_tests", "peers_folder", "peer_huge_pages",
        "python"}},
  };
}

std::vector<std::string> ParseBenchmarkFlags(int argc, const char* const* argv,
                                             const std::string& usage,
                                             std::vector<std::string> passed_on) {
  FlagOptions options;
  options.usage = usage;
  options.aliases = SweepAliases();
  options.topics = BenchmarkTopics();
  options.passed_on = std::move(passed_on);
  const std::string program = argv[0];
  options.version = VersionText(program.substr(program.rfind('/') + 1), TORCH_VERSION);
  return ParseFlagsOrExit(argc, argv, options);
}

void ParseFlagsOnly(const char* program, int argc, const char* const* argv,
                    const std::string& usage) {
  const std::vector<std::string> positional = ParseBenchmarkFlags(argc, argv, usage);
  if (positional.empty()) return;
  std::fprintf(stderr, "%s: expected flags only, found \"%s\"\n", program, positional[0].c_str());
  std::exit(2);
}

}  // namespace gradsync
