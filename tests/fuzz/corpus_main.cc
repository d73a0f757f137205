// Writes the inputs to begin with, a folder for each target: tools/fuzz.
//
//   bazel run //tests/fuzz:corpus -- FOLDER

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "tests/fuzz/targets.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "%s: expected a folder, found %d arguments\n", argv[0], argc - 1);
    return 2;
  }
  for (const gradsync::FuzzTarget& target : gradsync::FuzzTargets()) {
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / target.name;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    int number = 0;
    for (const std::string& seed : target.seeds()) {
      std::ofstream file(folder / ("seed" + std::to_string(number++)), std::ios::binary);
      if (!file.write(seed.data(), static_cast<std::streamsize>(seed.size()))) {
        std::fprintf(stderr, "%s: expected a folder to write to, found %s\n", argv[0], argv[1]);
        return 1;
      }
    }
  }
  return 0;
}
