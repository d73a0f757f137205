#include "benchmarks/peer_libraries/peer_rank.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "benchmarks/exchange/exact_input.h"
#include "benchmarks/ranks/start_line.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr int64_t kBlock = 4096;  // floats that are generated at a time: they stay in the L1 cache
constexpr size_t kHugePage = size_t{2} << 20;

std::string JsonList(const std::vector<double>& values) {
  return absl::StrCat("[",
                      absl::StrJoin(values, ", ",
                                    [](std::string* out, double value) {
                                      absl::StrAppendFormat(out, "%.3f", value);
                                    }),
                      "]");
}

absl::Status SetOption(absl::string_view name, absl::string_view value, PeerRankOptions* options) {
  const auto number = [&](auto* out) {
    return absl::SimpleAtoi(value, out)
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat("--", name, ": expected a number, found \"", value, "\""));
  };
  if (name == "rank") return number(&options->rank);
  if (name == "world_size") return number(&options->world_size);
  if (name == "bytes") return number(&options->bytes);
  if (name == "iterations") return number(&options->iterations);
  if (name == "warmup") return number(&options->warmup);
  if (name == "huge_pages") {
    options->huge_pages = value == "1";
  } else if (name == "variant") {
    options->variant = std::string(value);
  } else if (name == "start_line") {
    options->start_line = std::string(value);
  } else if (name == "folder") {
    options->folder = std::string(value);
  } else if (name != "timeout" || !absl::ParseDuration(value, &options->timeout)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected an argument of peer_rank.h, found \"--", name, "=", value, "\""));
  }
  return absl::OkStatus();
}

class Measurement {
 public:
  Measurement(const PeerRankOptions& options, const PeerExchange& exchange)
      : options_(options), exchange_(exchange), size_(options.bytes / 4) {}

  absl::Status Run() {
    GS_ASSIGN_OR_RETURN(line_, StartLine::Open(options_.start_line, options_.world_size));
    GS_RETURN_IF_ERROR(Wait());
    SpreadOverCores();
    for (int64_t step = 1; step <= options_.warmup + options_.iterations; ++step) {
      GS_RETURN_IF_ERROR(Step(step, step > options_.warmup));
    }
    GS_RETURN_IF_ERROR(Write());
    return Wait();
  }

 private:
  absl::Status Wait() { return line_->Wait(Deadline::In(options_.timeout)); }

  absl::Status Step(int64_t number, bool measured) {
    FillContribution(options_.rank, number, 0,
                     absl::MakeSpan(exchange_.input, static_cast<size_t>(size_)));
    GS_RETURN_IF_ERROR(Wait());
    // Who was early at the first has slept, and would be late; ours pass it twice, too.
    GS_RETURN_IF_ERROR(Wait());
    const double cpu = CpuSeconds();
    const double begin = MonotonicMicroseconds();
    const absl::Status ran = exchange_.run();
    const double end = MonotonicMicroseconds();
    const double cpu_used = CpuSeconds() - cpu;
    GS_RETURN_IF_ERROR(ran);
    GS_RETURN_IF_ERROR(Wait());
    if (measured) {
      begins_.push_back(begin);
      ends_.push_back(end);
      cpu_seconds_ += cpu_used;
    }
    wrong_ += CountWrongElements(number);
    return absl::OkStatus();
  }

  int64_t CountWrongElements(int64_t step) {
    int64_t wrong = 0;
    std::vector<float> expected(kBlock);
    std::vector<float> found(kBlock);
    const int n = options_.world_size;
    const bool sum = exchange_.result == PeerResult::kSum;
    const int source =
        exchange_.result == PeerResult::kOwnInput ? options_.rank : (options_.rank + n - 1) % n;
    const float scale = sum ? 1.0f / static_cast<float>(n) : 1.0f;
    for (int64_t at = 0; at < size_; at += kBlock) {
      const size_t size = static_cast<size_t>(std::min(kBlock, size_ - at));
      const absl::Span<float> block(expected.data(), size);
      if (sum) {
        FillMean(n, step, at, block);
      } else {
        FillContribution(source, step, at, block);
      }
      for (size_t i = 0; i < size; ++i) found[i] = exchange_.output[at + i] * scale;
      wrong += CountWrong({found.data(), size}, block);
    }
    return wrong;
  }

  // ExchangeMetrics of proto/run_record.proto; by hand, since not all of these programs link
  // protobuf.
  absl::Status Write() const {
    const std::string path = absl::StrCat(options_.folder, "/rank.", options_.rank, ".json");
    std::ofstream file(path);
    file << absl::StrFormat(
        "{\"rank\": %d, \"bytes\": %d, \"wrong\": %d, \"cpu_seconds\": %.6f, "
        "\"wire_tx_bytes_per_step\": %.0f, \"begin_us\": %s, \"end_us\": %s}\n",
        options_.rank, options_.bytes, wrong_, cpu_seconds_, exchange_.wire_bytes,
        JsonList(begins_), JsonList(ends_));
    file.close();
    if (file.fail()) return absl::UnavailableError(absl::StrCat("cannot write ", path));
    return absl::OkStatus();
  }

  const PeerRankOptions& options_;
  const PeerExchange& exchange_;
  const int64_t size_;
  std::unique_ptr<StartLine> line_;
  std::vector<double> begins_;
  std::vector<double> ends_;
  double cpu_seconds_ = 0;
  int64_t wrong_ = 0;
};

absl::StatusOr<PeerRankOptions> ParseOptions(int argc, char** argv) {
  PeerRankOptions options;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    if (!absl::StartsWith(argument, "--") || equals == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected --name=value, found \"", argument, "\""));
    }
    GS_RETURN_IF_ERROR(
        SetOption(argument.substr(2, equals - 2), argument.substr(equals + 1), &options));
  }
  if (options.world_size < 1 || options.rank >= options.world_size || options.bytes < 4 ||
      options.bytes % 4 != 0 || options.iterations < 1 || options.warmup < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected --world_size above --rank, --bytes a multiple of 4, --iterations at least 1, "
        "found ",
        options.world_size, ", ", options.rank, ", ", options.bytes, ", ", options.iterations));
  }
  return options;
}

float* Allocate(const PeerRankOptions& options) {
  const size_t size = static_cast<size_t>(options.bytes);
  const size_t pages = (size + kHugePage - 1) / kHugePage;
  float* const memory = static_cast<float*>(std::aligned_alloc(kHugePage, pages * kHugePage));
  if (memory == nullptr) {
    std::fprintf(stderr, "no memory for %lld floats\n", static_cast<long long>(size / 4));
    std::exit(1);
  }
  madvise(memory, pages * kHugePage, options.huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::fill(memory, memory + size / 4, 0.0f);
  return memory;
}

}  // namespace

PeerExchange::PeerExchange(const PeerRankOptions& options, bool in_place) {
  for (int i = 0; i < (in_place ? 1 : 2); ++i) memory.emplace_back(Allocate(options), &std::free);
  input = memory.front().get();
  output = memory.back().get();
}

absl::Status MeasurePeer(const PeerRankOptions& options, const PeerExchange& exchange) {
  return Measurement(options, exchange).Run();
}

int PeerMain(absl::string_view program, int argc, char** argv,
             const std::function<absl::Status(PeerRankOptions& options)>& run) {
  absl::StatusOr<PeerRankOptions> options = ParseOptions(argc, argv);
  absl::Status status = options.status();
  try {
    if (status.ok()) status = run(*options);
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "%.*s: rank %d: %s\n", static_cast<int>(program.size()), program.data(),
               options.ok() ? options->rank : -1, std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace gradsync
