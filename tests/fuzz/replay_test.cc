// Every target with what it begins with, with what was once found, and with some damage done to
// both. What fuzzers find goes to the target's folder of tests/fuzz/corpus.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/targets.h"

namespace gradsync {
namespace {

std::vector<std::string> InputsOf(const FuzzTarget& target) {
  std::vector<std::string> inputs = target.seeds();
  std::error_code none;  // no folder: nothing was found yet
  std::vector<std::filesystem::path> files;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string("tests/fuzz/corpus/") + target.name, none)) {
    files.push_back(file.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

void Feed(const FuzzTarget& target, const std::string& input) {
  // On the heap, and no longer than it is, so that a sanitizer sees what is read beyond.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  target.run(bytes.data(), bytes.size());
}

std::string Damage(std::string input, std::mt19937_64& random) {
  for (int times = 1 + static_cast<int>(random() % 4); times > 0 && !input.empty(); --times) {
    const size_t at = random() % input.size();
    switch (random() % 4) {
      case 0:
        input[at] = static_cast<char>(input[at] ^ (1 << (random() % 8)));
        break;
      case 1:
        input[at] = static_cast<char>("\0\xff\x7f\x80"[random() % 4]);
        break;
      case 2:
        input.resize(at);
        break;
      default:
        input.insert(at, input.substr(at, random() % 16));
    }
  }
  return input;
}

TEST(ReplayTest, NoInputHarmsAnyTarget) {
  for (const FuzzTarget& target : FuzzTargets()) {
    std::mt19937_64 random(1);
    Feed(target, "");
    for (const std::string& input : InputsOf(target)) {
      Feed(target, input);
      for (int i = 0; i < 1000; ++i) Feed(target, Damage(input, random));
    }
  }
}

}  // namespace
}  // namespace gradsync
