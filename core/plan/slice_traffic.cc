#include "core/plan/slice_traffic.h"

#include <utility>

namespace gradsync {
namespace {

constexpr int64_t kBytes = 4;  // of a number

// Of the loss: the largest logit and its class, then the sum of exponentials and the target's
// logit.
constexpr int64_t kLossNumbers = 2;

// The exchanges where the computation of all slices becomes that of each ("enter"), and back
// ("leave"); worker/models/slices.h.
class Meetings {
 public:
  Meetings(const SlicedGpt& gpt, int64_t samples)
      : gpt_(gpt), positions_(samples * gpt.context), activations_(positions_ * gpt.width) {}

  void EnterForward(double at) {
    if (gpt_.split_sequence) Add(SliceCall::kGather, activations_ / gpt_.slices, at);
  }
  void LeaveForward(double at) { AddUp(at); }
  void EnterBackward(double at) { AddUp(at); }
  void LeaveBackward(double at) { EnterForward(at); }

  // The gradient of a parameter of which each slice uses all, for its part of the sequence.
  void SharedBackward(int64_t numbers, double at) {
    if (gpt_.split_sequence) Add(SliceCall::kSum, numbers, at);
  }
  void NormBackward(double at) {
    SharedBackward(gpt_.width, at);
    SharedBackward(gpt_.width, at);
  }

  void Loss(double at) {
    Add(SliceCall::kGather, kLossNumbers * positions_, at);
    Add(SliceCall::kSum, kLossNumbers * positions_, at);
  }

  std::vector<SliceMeeting> Take() { return std::move(meetings_); }

 private:
  void AddUp(double at) {
    Add(gpt_.split_sequence ? SliceCall::kSumPart : SliceCall::kSum, activations_, at);
  }
  void Add(SliceCall call, int64_t numbers, double at) { meetings_.push_back({call, numbers, at}); }

  const SlicedGpt gpt_;
  const int64_t positions_;
  const int64_t activations_;
  std::vector<SliceMeeting> meetings_;
};

// One of the parts that a flat tensor is cut into, whose sizes differ by at most one.
int64_t PartOf(int64_t numbers, int slices, int part) {
  return numbers * (part + 1) / slices - numbers * part / slices;
}

int64_t TxBytes(const std::vector<SliceMeeting>& meetings, int slices, int slice) {
  int64_t bytes = 0;
  for (const SliceMeeting& meeting : meetings) {
    for (int round = 0; round < SliceRounds(meeting.call, slices); ++round) {
      for (int to = 0; to < slices; ++to) {
        if (to != slice) bytes += SliceMessageBytes(meeting, slices, round, slice, to);
      }
    }
  }
  return bytes;
}

}  // namespace

std::vector<SliceMeeting> ForwardMeetings(const SlicedGpt& gpt, int64_t block, int64_t samples) {
  Meetings meetings(gpt, samples);
  if (block == 0) {
    meetings.LeaveForward(1);
  } else if (block <= gpt.layers) {
    for (double begin : {0.0, 0.5}) {
      meetings.EnterForward(begin);
      meetings.LeaveForward(begin + 0.5);
    }
  } else {
    meetings.EnterForward(0);
    meetings.Loss(1);
  }
  return meetings.Take();
}

std::vector<SliceMeeting> BackwardMeetings(const SlicedGpt& gpt, int64_t block, int64_t samples) {
  Meetings meetings(gpt, samples);
  if (block == 0) {
    meetings.SharedBackward(gpt.context * gpt.width, 0);
    meetings.LeaveBackward(0);
  } else if (block <= gpt.layers) {
    for (double begin : {0.0, 0.5}) {
      meetings.SharedBackward(gpt.width, begin);  // the bias behind the sum
      meetings.LeaveBackward(begin);
      meetings.EnterBackward(begin + 0.5);
      meetings.NormBackward(begin + 0.5);
    }
  } else {
    meetings.EnterBackward(1);
    meetings.NormBackward(1);
  }
  return meetings.Take();
}

int SliceRounds(SliceCall call, int slices) {
  if (slices == 1) return 0;
  return call == SliceCall::kSum && slices > 2 ? 2 : 1;
}

int64_t SliceMessageBytes(const SliceMeeting& meeting, int slices, int round, int from, int to) {
  switch (meeting.call) {
    case SliceCall::kSum:
      if (slices == 2) return kBytes * meeting.numbers;
      return kBytes * PartOf(meeting.numbers, slices, round == 0 ? to : from);
    case SliceCall::kSumPart:
      return kBytes * meeting.numbers / slices;
    case SliceCall::kGather:
      return kBytes * meeting.numbers;
  }
  return 0;
}

int64_t SliceTxBytes(const SlicedGpt& gpt, int64_t samples, bool recomputes, int slice) {
  int64_t bytes = 0;
  for (int64_t block = 0; block < gpt.blocks(); ++block) {
    const bool again = recomputes && block > 0 && block <= gpt.layers;
    const int64_t forward = TxBytes(ForwardMeetings(gpt, block, samples), gpt.slices, slice);
    bytes += (again ? 2 : 1) * forward +
             TxBytes(BackwardMeetings(gpt, block, samples), gpt.slices, slice);
  }
  return bytes;
}

}  // namespace gradsync
