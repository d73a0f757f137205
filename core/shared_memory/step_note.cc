#include "core/shared_memory/step_note.h"

#include <cstring>

namespace gradsync {
namespace {

uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

double FromBits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

std::array<uint64_t, 4> NoteOf(const StepOptions& step) {
  return {static_cast<uint64_t>(step.step), BitsOf(step.lr), BitsOf(step.max_norm),
          BitsOf(step.inverse_loss_scale)};
}

StepOptions StepOf(const std::array<uint64_t, 4>& note) {
  StepOptions step;
  step.step = static_cast<int64_t>(note[0]);
  step.lr = FromBits(note[1]);
  step.max_norm = FromBits(note[2]);
  step.inverse_loss_scale = FromBits(note[3]);
  return step;
}

}  // namespace gradsync
