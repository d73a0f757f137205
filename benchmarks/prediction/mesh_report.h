// What `predict` prints of meshes.

#ifndef GRADSYNC_BENCHMARKS_PREDICTION_MESH_REPORT_H_
#define GRADSYNC_BENCHMARKS_PREDICTION_MESH_REPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// A table of predicted runs of meshes. Of those with the same workers and bandwidth the one with
// most samples per second is marked, or all within 1 % of it. Pure.
std::string MeshTable(const google::protobuf::RepeatedPtrField<proto::Run>& runs);

// One sentence: which arrangement of the workers is fastest at the bandwidth of the last run, and
// what it gains over data parallelism alone, if that is among them. Arrangements within 1 % count as
// equal, and of these the one with the fewest stages, then the fewest hosts, then the one that
// keeps least in memory wins. Errors: INVALID_ARGUMENT for no runs.
absl::StatusOr<std::string> AdviseMesh(const google::protobuf::RepeatedPtrField<proto::Run>& runs);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PREDICTION_MESH_REPORT_H_
