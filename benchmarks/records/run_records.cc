#include "benchmarks/records/run_records.h"

#include "benchmarks/options/flag_checks.h"
#include "benchmarks/records/proto_json.h"

namespace gradsync {

absl::Status WriteRecords(const std::string& path, const proto::RunRecords& records) {
  if (path.empty()) return absl::OkStatus();
  const absl::Status written = WriteJson(path, records);
  return written.ok() ? written : Named("json", written);
}

}  // namespace gradsync
