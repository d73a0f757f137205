#include "worker/trace/perfetto_file.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/base/trace_recorder.h"
#include "proto/perfetto_trace.pb.h"

namespace gradsync {
namespace {

// A chunk's way from one process to another in one step; or the simulator's idea of it.
using FlowKey = std::tuple<bool, int, int, int, int64_t, int, int>;

struct Slice {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t flow = 0;  // 0: none
  int64_t step = 0;
  int64_t bytes = 0;
  bool instant = false;
};

// In the order in which they are shown.
enum Rank { kSteps, kCompute, kExposed, kReady, kBuckets, kTo, kFrom, kFolds, kUpdates, kCopies };

struct LaneName {
  int rank = 0;
  int peer = -1;
  bool operator<(const LaneName& other) const {
    return std::tie(rank, peer) < std::tie(other.rank, other.peer);
  }
};

using Lanes = std::map<LaneName, std::vector<Slice>>;

TraceSpan WhatOf(const proto::ProcessTrace& trace, int i) {
  return static_cast<TraceSpan>(trace.what(i));
}

FlowKey KeyOf(const proto::ProcessTrace& trace, int i) {
  int from = trace.process(), to = trace.peer(i);
  if (WhatOf(trace, i) == TraceSpan::kReceive) std::swap(from, to);
  return {trace.predicted(), from, to, trace.way(i), trace.step(i), trace.bucket(i), trace.slot(i)};
}

int64_t BeginOf(const proto::ProcessTrace& trace, int i) {
  return trace.begin_ns(i) + trace.offset_ns();
}

class File {
 public:
  explicit File(const std::vector<proto::ProcessTrace>& processes) : processes_(processes) {
    for (const proto::ProcessTrace& trace : processes_) {
      names_[{trace.predicted(), trace.process()}] = trace.name();
      for (int i = 0; i < EventsOf(trace); ++i) {
        if (WhatOf(trace, i) == TraceSpan::kSend) {
          sent_.insert({KeyOf(trace, i), {sent_.size() + 1, BeginOf(trace, i)}});
        }
      }
    }
  }

  std::string Write() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      AddProcess(processes_[i], static_cast<int>(i) + 1);
    }
    return trace_.SerializeAsString();
  }

 private:
  struct Sent {
    uint64_t flow = 0;
    int64_t begin = 0;
  };

  perfetto::TracePacket* NewPacket() {
    perfetto::TracePacket* const packet = trace_.add_packet();
    packet->set_trusted_packet_sequence_id(1);
    return packet;
  }

  // The place of an event, and what is written there.
  static LaneName LaneOf(const proto::ProcessTrace& trace, int i) {
    switch (WhatOf(trace, i)) {
      case TraceSpan::kStep:
        return {kSteps};
      case TraceSpan::kData:
      case TraceSpan::kForward:
      case TraceSpan::kBackward:
      case TraceSpan::kUpdate:
      case TraceSpan::kReplicate:
      case TraceSpan::kScatter:
      case TraceSpan::kGather:
      case TraceSpan::kReduce:
        return {kCompute};
      case TraceSpan::kExposed:
        return {kExposed};
      case TraceSpan::kReady:
        return {kReady};
      case TraceSpan::kBucket:
        return {kBuckets};
      case TraceSpan::kSend:
        return {kTo, trace.peer(i)};
      case TraceSpan::kReceive:
        return {kFrom, trace.peer(i)};
      case TraceSpan::kFold:
        return {kFolds};
      case TraceSpan::kOptimize:
        return {kUpdates};
      case TraceSpan::kCopy:
        return {kCopies};
    }
    return {kCopies};
  }

  std::string TitleOf(const proto::ProcessTrace& trace, const LaneName& lane) const {
    static const char* const kTitles[] = {"steps", "compute", "exposed", "ready",   "buckets",
                                          "to ",   "from ",   "folds",   "updates", "copies"};
    std::string title = kTitles[lane.rank];
    if (lane.rank == kTo || lane.rank == kFrom) {
      const auto name = names_.find({trace.predicted(), lane.peer});
      absl::StrAppend(&title, name != names_.end() ? name->second : absl::StrCat(lane.peer));
    }
    return title;
  }

  static std::string NameOf(const proto::ProcessTrace& trace, int i) {
    const std::string bucket =
        trace.bucket(i) < 0 ? std::string() : absl::StrCat(" ", trace.bucket(i));
    const std::string chunk = absl::StrCat(bucket, ".", trace.slot(i));
    switch (WhatOf(trace, i)) {
      case TraceSpan::kStep:
        return absl::StrCat("step ", trace.step(i));
      case TraceSpan::kData:
        return "data";
      case TraceSpan::kForward:
        return "forward";
      case TraceSpan::kBackward:
        return "backward";
      case TraceSpan::kExposed:
        return absl::StrCat("exposed", bucket);
      case TraceSpan::kUpdate:
        return absl::StrCat("update", bucket);
      case TraceSpan::kReady:
        return absl::StrCat("ready", bucket);
      case TraceSpan::kBucket:
        return absl::StrCat("bucket", bucket);
      case TraceSpan::kSend:
      case TraceSpan::kReceive:
        return absl::StrCat(
            trace.way(i) == static_cast<int>(ChunkWay::kBack) ? "result" : "gradient", chunk);
      case TraceSpan::kFold:
        return absl::StrCat("fold", chunk);
      case TraceSpan::kOptimize:
        return absl::StrCat("update", chunk);
      case TraceSpan::kCopy:
        return absl::StrCat("copy", chunk);
      case TraceSpan::kReplicate:
        return "replicate";
      case TraceSpan::kScatter:
        return "scatter";
      case TraceSpan::kGather:
        return "gather";
      case TraceSpan::kReduce:
        return "reduce";
    }
    return "";
  }

  Slice SliceOf(const proto::ProcessTrace& trace, int i) const {
    Slice slice;
    slice.name = NameOf(trace, i);
    slice.begin = BeginOf(trace, i);
    slice.end = slice.begin + std::max<int64_t>(0, trace.length_ns(i));
    slice.step = trace.step(i);
    slice.bytes = trace.bytes(i);
    const TraceSpan what = WhatOf(trace, i);
    slice.instant = what == TraceSpan::kReady;
    if (what != TraceSpan::kSend && what != TraceSpan::kReceive) return slice;
    const auto sent = sent_.find(KeyOf(trace, i));
    if (sent == sent_.end()) return slice;
    slice.flow = sent->second.flow;
    if (what == TraceSpan::kReceive) slice.begin = std::min(slice.end, sent->second.begin);
    return slice;
  }

  // What comes from one process comes one after the other.
  static void Serialise(std::vector<Slice>* slices) {
    std::sort(slices->begin(), slices->end(),
              [](const Slice& a, const Slice& b) { return a.end < b.end; });
    for (size_t i = 1; i < slices->size(); ++i) {
      (*slices)[i].begin = std::max((*slices)[i].begin, (*slices)[i - 1].end);
    }
  }

  void AddProcess(const proto::ProcessTrace& trace, int number) {
    const uint64_t uuid = static_cast<uint64_t>(number) << 32;
    perfetto::TrackDescriptor& process = *NewPacket()->mutable_track_descriptor();
    process.set_uuid(uuid);
    process.mutable_process()->set_pid(number);
    process.mutable_process()->set_process_name(trace.name());
    process.set_child_ordering(perfetto::TrackDescriptor::EXPLICIT);
    Lanes lanes;
    int64_t first = INT64_MAX;
    for (int i = 0; i < EventsOf(trace); ++i) {
      lanes[LaneOf(trace, i)].push_back(SliceOf(trace, i));
      first = std::min(first, BeginOf(trace, i));
    }
    uint64_t track = uuid;
    for (auto& [name, slices] : lanes) {
      if (name.rank == kFrom) Serialise(&slices);
      AddLane(uuid, TitleOf(trace, name), std::move(slices), &track);
    }
    if (!trace.predicted() && !lanes.empty()) AddClock(trace, uuid, first);
  }

  // The slices of a lane, on as many tracks as they need; `track` is the last one that there is.
  void AddLane(uint64_t process, const std::string& title, std::vector<Slice> slices,
               uint64_t* track) {
    std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    std::vector<int64_t> ends;  // by track
    const uint64_t first = *track + 1;
    for (const Slice& slice : slices) {
      const auto free = std::find_if(ends.begin(), ends.end(),
                                     [&slice](int64_t end) { return end <= slice.begin; });
      const size_t at = free - ends.begin();
      if (free == ends.end()) {
        ends.push_back(0);
        perfetto::TrackDescriptor& lane = *NewPacket()->mutable_track_descriptor();
        lane.set_uuid(++*track);
        lane.set_parent_uuid(process);
        lane.set_name(at == 0 ? title : absl::StrCat(title, " (", at + 1, ")"));
        lane.set_sibling_order_rank(static_cast<int32_t>(*track - process));
      }
      ends[at] = slice.end;
      AddSlice(first + at, title, slice);
    }
  }

  void AddSlice(uint64_t track, const std::string& category, const Slice& slice) {
    perfetto::TracePacket& packet = *NewPacket();
    packet.set_timestamp(static_cast<uint64_t>(slice.begin));
    perfetto::TrackEvent& event = *packet.mutable_track_event();
    event.set_type(slice.instant ? perfetto::TrackEvent::TYPE_INSTANT
                                 : perfetto::TrackEvent::TYPE_SLICE_BEGIN);
    event.set_track_uuid(track);
    event.set_name(slice.name);
    event.add_categories(category);
    if (slice.flow != 0) event.add_flow_ids(slice.flow);
    Annotate(&event, "step", slice.step);
    if (slice.bytes > 0) Annotate(&event, "bytes", slice.bytes);
    if (slice.instant) return;
    perfetto::TracePacket& last = *NewPacket();
    last.set_timestamp(static_cast<uint64_t>(slice.end));
    last.mutable_track_event()->set_type(perfetto::TrackEvent::TYPE_SLICE_END);
    last.mutable_track_event()->set_track_uuid(track);
  }

  void AddClock(const proto::ProcessTrace& trace, uint64_t track, int64_t time) {
    perfetto::TracePacket& packet = *NewPacket();
    packet.set_timestamp(static_cast<uint64_t>(time));
    perfetto::TrackEvent& event = *packet.mutable_track_event();
    event.set_type(perfetto::TrackEvent::TYPE_INSTANT);
    event.set_track_uuid(track);
    event.set_name("clock");
    Annotate(&event, "offset_ns", trace.offset_ns());
    Annotate(&event, "error_ns", trace.error_ns());
    Annotate(&event, "dropped", trace.dropped());
  }

  static void Annotate(perfetto::TrackEvent* event, const char* name, int64_t value) {
    perfetto::DebugAnnotation& annotation = *event->add_debug_annotations();
    annotation.set_name(name);
    annotation.set_int_value(value);
  }

  const std::vector<proto::ProcessTrace>& processes_;
  std::map<std::pair<bool, int>, std::string> names_;  // by predicted and process
  std::map<FlowKey, Sent> sent_;
  perfetto::Trace trace_;
};

}  // namespace

std::string PerfettoFile(const std::vector<proto::ProcessTrace>& processes) {
  return File(processes).Write();
}

}  // namespace gradsync
