#include "benchmarks/prediction/mesh_report.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/records/table.h"
#include "core/group/mesh.h"

namespace gradsync {
namespace {

// Differences below it are not worth a sentence.
constexpr double kEqual = 0.01;

bool Together(const proto::Run& a, const proto::Run& b) {
  return a.workers() == b.workers() && a.bandwidth() == b.bandwidth();
}

int Size(const proto::Run& run, MeshDimension dimension) {
  const absl::StatusOr<Mesh> mesh = Mesh::Parse(run.mesh(), run.workers());
  return mesh.ok() ? mesh->size(dimension) : 1;
}

int Stages(const proto::Run& run) { return Size(run, MeshDimension::kPipeline); }

// Ranks that have parts of one model.
int Parts(const proto::Run& run) { return Stages(run) * Size(run, MeshDimension::kTensor); }

// Beside those of the workers.
int ServerHosts(const proto::Run& run) {
  return run.placement() == "dedicated" ? run.servers() : 0;
}

std::string Servers(const proto::Run& run) {
  return run.servers() > 0 ? absl::StrCat(run.servers(), " ", run.placement()) : "-";
}

std::vector<std::string> Row(const proto::Run& run, const std::string& mark) {
  const double bytes = std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node());
  return {run.mesh(),
          run.topology(),
          Servers(run),
          run.update(),
          absl::StrCat(run.zero()),
          Stages(run) > 1 ? run.pipeline_schedule() : "-",
          absl::StrCat(run.micro_batches(), " x ", run.batch_size()),
          run.split().empty() ? "-" : run.split(),
          run.bandwidth(),
          Ms(run.step_ms_p50()),
          Percent(run.bubble_share()),
          Percent(run.scaling_efficiency()),
          absl::StrFormat("%.1f", run.samples_per_s()),
          absl::StrFormat("%.1f", 1e-6 * bytes),
          absl::StrFormat("%.1f", 1e-6 * run.activation_bytes()),
          absl::StrFormat("%.1f", 1e-6 * run.worker_memory_bytes()),
          mark};
}

// "data=2,pipeline=4 (1f1b, 8 micro-batches of 16, cut before 2,5,9), ring".
std::string Arrangement(const proto::Run& run) {
  std::string text = run.mesh();
  const std::string batches =
      run.micro_batches() == 1
          ? ""
          : absl::StrCat(run.micro_batches(), " micro-batches of ", run.batch_size());
  if (Stages(run) > 1) {
    absl::StrAppend(&text, " (", run.pipeline_schedule(), ", ", batches.empty() ? "" : batches,
                    batches.empty() ? "" : ", ", "cut before ", run.split(), ")");
  } else if (!batches.empty()) {
    absl::StrAppend(&text, " (", batches, ")");
  }
  absl::StrAppend(&text, ", ", run.topology());
  if (run.servers() > 0) {
    absl::StrAppend(&text, " with ", Count(run.servers(), "server"), " ", run.placement());
  }
  return text;
}

}  // namespace

std::string MeshTable(const google::protobuf::RepeatedPtrField<proto::Run>& runs) {
  std::vector<std::vector<std::string>> rows;
  for (const proto::Run& run : runs) {
    int rivals = 0, equals = 0;
    bool fastest = true;
    for (const proto::Run& other : runs) {
      if (!Together(run, other)) continue;
      const double ratio = other.samples_per_s() / run.samples_per_s();
      ++rivals;
      equals += ratio >= 1 - kEqual;
      fastest &= ratio <= 1 + kEqual;
    }
    rows.push_back(Row(run, !fastest || rivals == 1 ? ""
                            : equals == 1           ? "fastest"
                                                    : "among the fastest"));
  }
  return FormatTable({{"mesh", Align::kLeft},
                      {"topology", Align::kLeft},
                      {"servers", Align::kLeft},
                      {"update", Align::kLeft},
                      {"zero"},
                      {"schedule", Align::kLeft},
                      {"micro-\nbatches"},
                      {"split", Align::kLeft},
                      {"bandwidth", Align::kRight},
                      {"step\nms"},
                      {"bubble"},
                      {"effi-\nciency"},
                      {"samples/s"},
                      {"busiest host\nMB per step"},
                      {"activations\nMB"},
                      {"worker keeps\nMB"},
                      {"", Align::kLeft}},
                     rows);
}

absl::StatusOr<std::string> AdviseMesh(const google::protobuf::RepeatedPtrField<proto::Run>& runs) {
  if (runs.empty()) return absl::InvalidArgumentError("advice: expected runs, found none");
  const proto::Run& asked = runs[runs.size() - 1];
  double most = 0;
  const proto::Run* alone = nullptr;  // the best of those that do not cut the model
  for (const proto::Run& run : runs) {
    if (!Together(run, asked)) continue;
    most = std::max(most, run.samples_per_s());
    if (Parts(run) > 1) continue;
    if (alone == nullptr || run.samples_per_s() > alone->samples_per_s()) alone = &run;
  }
  const auto price = [](const proto::Run& run) {
    return std::make_tuple(Parts(run), ServerHosts(run), run.activation_bytes());
  };
  const proto::Run* best = nullptr;
  for (const proto::Run& run : runs) {
    if (!Together(run, asked) || run.samples_per_s() < most * (1 - kEqual)) continue;
    if (best == nullptr || price(run) < price(*best)) best = &run;
  }
  const std::string use =
      absl::StrCat("For ", best->model(), " on ", Count(best->workers(), "worker"), " at ",
                   best->bandwidth(), " use ", Arrangement(*best), ": ",
                   absl::StrFormat("%.1f samples per s, %s ms per step", best->samples_per_s(),
                                   Ms(best->step_ms_p50())));
  if (alone == nullptr) return absl::StrCat(use, ".");
  if (Parts(*best) == 1) return absl::StrCat(use, "; no mesh that cuts the model gains more.");
  return absl::StrFormat("%s, %.0f%% more than data parallelism alone, %s (%.1f samples per s).",
                         use, 100 * (best->samples_per_s() / alone->samples_per_s() - 1),
                         Arrangement(*alone), alone->samples_per_s());
}

}  // namespace gradsync
