#include "benchmarks/profiles/mesh_stages.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/profiles/step_profile.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

SlicedGpt SlicedGptOf(const proto::StepProfile& profile) {
  SlicedGpt gpt;
  gpt.slices = profile.slices();
  gpt.split_sequence = profile.split_sequence();
  gpt.layers = profile.gpt().layers();
  gpt.width = profile.gpt().width();
  gpt.context = profile.gpt().context();
  return gpt;
}

double Parts(const proto::StepProfile& profile, int64_t samples) {
  return static_cast<double>(samples) / std::max(1, profile.batch_size());
}

int64_t TimesSamples(double bytes, int64_t samples) {
  return static_cast<int64_t>(std::llround(bytes * static_cast<double>(samples)));
}

// `meetings` of a block that takes [begin, begin + length) of its pass.
void Place(const std::vector<SliceMeeting>& meetings, double begin, double length,
           std::vector<RecordedMeeting>* placed) {
  for (const SliceMeeting& meeting : meetings) {
    placed->push_back({begin + length * meeting.at, meeting});
  }
}

// Adds the times of the block, and of a slice its meetings.
void AddForward(const proto::StepProfile& profile, int b, int64_t samples, double factor,
                RecordedPass* pass) {
  const double length = factor * profile.blocks(b).forward_us();
  if (profile.slices() > 1) {
    Place(ForwardMeetings(SlicedGptOf(profile), b, samples), pass->forward_us, length,
          &pass->forward_meetings);
  }
  pass->forward_us += length;
}

void AddBackward(const proto::StepProfile& profile, int b, int64_t samples, double factor,
                 RecordedPass* pass) {
  const proto::ProfiledBlock& block = profile.blocks(b);
  const double length = factor * block.backward_us();
  if (profile.slices() > 1) {
    const SlicedGpt gpt = SlicedGptOf(profile);
    const bool again = profile.activation_checkpointing() && block.recomputes();
    const double recomputed = again ? factor * block.forward_us() : 0;
    if (again) {
      Place(ForwardMeetings(gpt, b, samples), pass->backward_us, recomputed,
            &pass->backward_meetings);
    }
    Place(BackwardMeetings(gpt, b, samples), pass->backward_us + recomputed, length - recomputed,
          &pass->backward_meetings);
  }
  pass->backward_us += length;
}

RecordedPass PassOf(const proto::StepProfile& profile, BlockRange blocks, int64_t samples,
                    double scale) {
  RecordedPass pass;
  const double factor = scale * Parts(profile, samples);
  for (int b = blocks.first; b < blocks.end; ++b) AddForward(profile, b, samples, factor, &pass);
  for (int b = blocks.end; b-- > blocks.first;) AddBackward(profile, b, samples, factor, &pass);
  const auto bytes_behind = [&](int block) {
    return TimesSamples(profile.blocks(block).output_bytes(), samples);
  };
  if (blocks.first > 0) pass.input_bytes = bytes_behind(blocks.first - 1);
  if (blocks.end < profile.blocks_size()) pass.output_bytes = bytes_behind(blocks.end - 1);
  return pass;
}

int64_t KeptBytes(const proto::StepProfile& profile, BlockRange blocks, int64_t samples) {
  // The input that was received is kept too.
  double bytes = blocks.first > 0 ? profile.blocks(blocks.first - 1).output_bytes() : 0;
  for (int b = blocks.first; b < blocks.end; ++b) bytes += profile.blocks(b).kept_bytes();
  return TimesSamples(bytes, samples);
}

// One block at a time.
int64_t RecomputedBytes(const proto::StepProfile& profile, BlockRange blocks, int64_t samples) {
  double most = 0;
  for (int b = blocks.first; b < blocks.end; ++b) {
    most = std::max(most, profile.blocks(b).recomputed_bytes());
  }
  return TimesSamples(most, samples);
}

// By bucket of `part`, whose tensors are `members` of the profile.
std::vector<double> BucketReady(const proto::StepProfile& profile, const Plan& part,
                                const std::vector<int>& members, BlockRange blocks, double factor) {
  const std::vector<int> block_of = BlocksOfTensors(profile);
  const std::vector<double> in_block = ReadyInBlockUs(profile);
  std::vector<double> begin(profile.blocks_size(), 0);  // of backward, by block
  double before = 0;
  for (int b = blocks.end - 1; b >= blocks.first; --b) {
    begin[b] = before;
    before += profile.blocks(b).backward_us();
  }
  std::vector<double> ready;
  double latest = 0;
  for (const BucketPlan& bucket : part.buckets()) {
    for (const PlacedTensor& placed : bucket.tensors) {
      const int tensor = members[placed.tensor];
      latest = std::max(latest, begin[block_of[tensor]] + in_block[tensor]);
    }
    ready.push_back(factor * latest);
  }
  return ready;
}

// In another order two profiles of one model have other plans.
absl::Status CheckOneModel(const std::vector<proto::StepProfile>& profiles) {
  for (const proto::StepProfile& profile : profiles) {
    if (profile.model() == profiles[0].model() && profile.slices() == profiles[0].slices() &&
        profile.blocks_size() == profiles[0].blocks_size()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("profiles: expected those of one model, found ",
                                                   profiles[0].model(), " and ", profile.model()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MicroBatches> CutBatch(int64_t samples, int64_t count) {
  MicroBatches batches;
  batches.count = count;
  if (count >= 1 && samples >= count) {
    batches.each = (samples + count - 1) / count;
    batches.last = samples - (count - 1) * batches.each;
    if (batches.last >= 1) return batches;
  }
  return FlagError("micro_batches",
                   absl::StrCat("a number that leaves each some of ", samples, " samples"),
                   absl::StrCat(count));
}

absl::StatusOr<std::vector<proto::StepProfile>> ProfilesOfSlices(
    const std::vector<proto::StepProfile>& profiles, int slices, bool split_sequence) {
  std::vector<proto::StepProfile> found;
  for (const proto::StepProfile& profile : profiles) {
    if (std::max(1, profile.slices()) != slices) continue;
    if (slices == 1 || profile.split_sequence() == split_sequence) found.push_back(profile);
  }
  if (!found.empty()) return found;
  return FlagError("profile",
                   slices == 1 ? std::string("one of a whole model")
                               : absl::StrCat("one recorded with --mesh=tensor=", slices,
                                              split_sequence ? " --sequence_parallel" : ""),
                   absl::StrCat("none of ", profiles.empty() ? "any" : profiles[0].model()));
}

const proto::StepProfile& ProfileNear(const std::vector<proto::StepProfile>& profiles,
                                      int64_t samples) {
  const auto distance = [samples](const proto::StepProfile& profile) {
    return std::abs(std::log(Parts(profile, samples)));
  };
  return *std::min_element(profiles.begin(), profiles.end(),
                           [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
}

absl::StatusOr<StageSplit> SplitOf(const proto::StepProfile& profile, const std::string& split,
                                   int stages) {
  GS_RETURN_IF_ERROR(CheckHasBlocks(profile));
  if (split != "auto") return ParseSplit(split, profile.blocks_size(), stages);
  std::vector<double> times;
  for (const proto::ProfiledBlock& block : profile.blocks()) {
    times.push_back(block.forward_us() + block.backward_us());
  }
  return BalanceBlocks(times, stages);
}

absl::StatusOr<std::vector<RecordedStage>> StagesOf(const std::vector<proto::StepProfile>& profiles,
                                                    const StageSplit& split,
                                                    const MicroBatches& batches, double scale,
                                                    const PlanOptions& options, double momentum) {
  GS_RETURN_IF_ERROR(CheckOneModel(profiles));
  const proto::StepProfile& each = ProfileNear(profiles, batches.each);
  const proto::StepProfile& last = ProfileNear(profiles, batches.last);
  // One plan whatever the micro-batches are.
  GS_ASSIGN_OR_RETURN(const Plan whole, ProfilePlan(profiles[0], options, momentum));
  const std::vector<int> block_of = BlocksOfTensors(profiles[0]);
  const auto all = static_cast<double>(whole.total_bytes());
  std::vector<RecordedStage> stages;
  for (const BlockRange blocks : split) {
    std::vector<int> members;
    for (int tensor = 0; tensor < static_cast<int>(block_of.size()); ++tensor) {
      if (block_of[tensor] >= blocks.first && block_of[tensor] < blocks.end) {
        members.push_back(tensor);
      }
    }
    if (members.empty()) {
      return FlagError("split", "parameters in every stage",
                       absl::StrCat("none in blocks ", blocks.first, " to ", blocks.end - 1));
    }
    RecordedStage& stage = stages.emplace_back();
    stage.blocks = blocks;
    stage.each = PassOf(each, blocks, batches.each, scale);
    stage.last = PassOf(last, blocks, batches.last, scale);
    GS_ASSIGN_OR_RETURN(stage.plan, whole.Part(members));
    stage.bucket_ready_us = BucketReady(profiles[0], stage.plan, members, blocks, 1);
    // Of the last micro-batch, which another profile may have the times of.
    const RecordedPass own = PassOf(profiles[0], blocks, profiles[0].batch_size(), 1);
    const double factor = own.backward_us > 0 ? stage.last.backward_us / own.backward_us : 0;
    for (double& ready : stage.bucket_ready_us) ready *= factor;
    stage.update_us =
        scale * profiles[0].update_us() * static_cast<double>(stage.plan.total_bytes()) / all;
    stage.kept_bytes = KeptBytes(each, blocks, batches.each);
    stage.recomputed_bytes = RecomputedBytes(each, blocks, batches.each);
  }
  return stages;
}

}  // namespace gradsync
