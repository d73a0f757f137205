#include "worker/trace/trace_reader.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/perfetto_trace.pb.h"

namespace gradsync {
namespace {

using perfetto::TrackEvent;

struct Lane {
  std::string process;
  std::string name;
  bool open = false;
  size_t last = 0;  // slice
  int64_t end = 0;
};

absl::Status Wrong(const Lane& lane, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(lane.process, ", ", lane.name, ": ", what));
}

int64_t Annotation(const TrackEvent& event, absl::string_view name) {
  for (const perfetto::DebugAnnotation& annotation : event.debug_annotations()) {
    if (annotation.name() == name) return annotation.int_value();
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::vector<ReadSlice>> ReadTrace(absl::string_view bytes) {
  perfetto::Trace trace;
  if (!trace.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("expected a trace");
  }
  std::map<uint64_t, Lane> lanes;
  std::vector<ReadSlice> slices;
  for (const perfetto::TracePacket& packet : trace.packet()) {
    if (packet.has_track_descriptor()) {
      const perfetto::TrackDescriptor& track = packet.track_descriptor();
      Lane& lane = lanes[track.uuid()];
      lane.name = track.name();
      lane.process =
          track.has_process() ? track.process().process_name() : lanes[track.parent_uuid()].process;
      continue;
    }
    const TrackEvent& event = packet.track_event();
    const auto found = lanes.find(event.track_uuid());
    if (found == lanes.end() || found->second.process.empty()) {
      return absl::DataLossError("an event of a lane that was not described");
    }
    Lane& lane = found->second;
    const int64_t time = static_cast<int64_t>(packet.timestamp());
    if (event.type() == TrackEvent::TYPE_SLICE_END) {
      if (!std::exchange(lane.open, false)) return Wrong(lane, "an end without a begin");
      if (time < slices[lane.last].begin) return Wrong(lane, "a slice ends before it begins");
      slices[lane.last].end = lane.end = time;
      continue;
    }
    if (lane.open) return Wrong(lane, "a slice begins in another");
    if (time < lane.end) return Wrong(lane, "a slice begins before the one before it ends");
    ReadSlice slice;
    slice.process = lane.process;
    slice.lane = lane.name;
    slice.name = event.name();
    slice.step = Annotation(event, "step");
    slice.begin = slice.end = time;
    if (event.flow_ids_size() > 0) slice.flow = event.flow_ids(0);
    lane.open = event.type() == TrackEvent::TYPE_SLICE_BEGIN;
    lane.last = slices.size();
    slices.push_back(std::move(slice));
  }
  for (const auto& [uuid, lane] : lanes) {
    if (lane.open) return Wrong(lane, "a begin without an end");
  }
  return slices;
}

}  // namespace gradsync
