// Plays NCCL to the tuner plugin, for the sanitizers: every version of its struct, good files, damaged ones and none.
// Exits with 1 and a line when an answer is wrong.
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "nccl/tuner_abi.hpp"

using namespace teccl::nccl;
extern "C" {
extern const TunerV2 ncclTunerPlugin_v2;
extern const TunerV3 ncclTunerPlugin_v3;
extern const TunerV4 ncclTunerPlugin_v4;
extern const TunerV5 ncclTunerPlugin_v5;
extern const TunerV6 ncclTunerPlugin_v6;
}

namespace {

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::exit(1);
}

std::string logged;

void logger(int, unsigned long, const char*, int, const char* format, ...) {
  char line[4096];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  logged += line + std::string("\n");
}

const std::string good =
    "machine box ranks=4 nodes=1\n"
    "cost allreduce 1000 ring ll 10 channels=2 chunk=4000\n"
    "cost allreduce 3000 ring ll 30 channels=8\n"
    "cost allreduce 1000 nvls simple 5 # only where NVLS is\n"
    "use allreduce 5000- tree simple channels=3 chunk=1000\n";

std::string file_of(const std::string& text) {
  const std::string path = std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/teccl_tuner_" +
                           std::to_string(getpid());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

struct Tabled {
  float table[kAlgorithms][kProtocols];
  int channels = 0;
  Tabled() {
    for (auto& row : table)
      for (float& each : row) each = 100;
    for (float& each : table[kNvls]) each = kIgnore;
  }
  float** pointer() { return reinterpret_cast<float**>(table); }
};

// One communicator's life under every version; whether the tables were touched.
bool live(std::size_t ranks, std::size_t bytes) {
  void* context = nullptr;
  NvlDomainInfoV5 domains{1, 4, 4};
  ConstantsV5 constants{};
  bool touched = false;
  const auto look = [&](const Tabled& tabled) {
    for (float each : tabled.table[kNvls]) require(each == kIgnore, "an ignored entry was touched");
    for (int a = 0; a < kAlgorithms; ++a)
      for (float each : tabled.table[a]) touched |= a != kNvls && each != 100;
  };

  int algorithm = -1, protocol = -1, channels = 0;
  require(ncclTunerPlugin_v2.init(ranks, 1, logger, &context) == kSuccess, "init fails");
  ncclTunerPlugin_v2.collective_info(context, kAllReduce, bytes, 0, 0, 1, &algorithm, &protocol, &channels);
  require(algorithm != kNvls, "v2 names NVLS where there is none");
  ncclTunerPlugin_v2.finish(context);

  Tabled three, four, five, six;
  ncclTunerPlugin_v3.init(ranks, 1, logger, &context);
  ncclTunerPlugin_v3.collective_info(context, kAllReduce, bytes, 1, three.pointer(), 7, 3, &three.channels);
  ncclTunerPlugin_v3.finish(context);
  ncclTunerPlugin_v4.init(ranks, 1, logger, &context);
  ncclTunerPlugin_v4.collective_info(context, kAllReduce, bytes, 1, four.pointer(), 7, 3, 0, &four.channels);
  ncclTunerPlugin_v4.finish(context);
  ncclTunerPlugin_v5.init(&context, 1, ranks, 1, logger, &domains, &constants);
  ncclTunerPlugin_v5.collective_info(context, kAllReduce, bytes, 1, five.pointer(), 7, 3, 0, &five.channels);
  ncclTunerPlugin_v5.finish(context);
  ncclTunerPlugin_v6.init(&context, 1, ranks, 1, logger, &domains, &constants);
  ncclTunerPlugin_v6.collective_info(context, kAllReduce, bytes, 1, six.pointer(), 7, 3, 0, &six.channels);
  std::size_t chunk = 77;
  ncclTunerPlugin_v6.chunk_size(context, kAllReduce, bytes, kRing, kLL, 2, &chunk);
  ncclTunerPlugin_v6.finish(context);
  for (const Tabled& each : {three, four, five, six}) look(each);
  require((algorithm >= 0) == touched, "versions differ");
  require(touched || (chunk == 77 && six.channels == 0), "an unknown machine was given channels or chunks");
  return touched;
}

}  // namespace

int main() {
  unsetenv("TECCL_TUNER_FILE");
  unsetenv("TECCL_TUNER_COSTS");
  require(!live(4, 2000) && !logged.empty(), "no file, yet the table was touched");

  setenv("TECCL_TUNER_COSTS", file_of(good).c_str(), 1);
  for (std::size_t bytes : {1, 1000, 2000, 3000, 5000, 1 << 30}) require(live(4, bytes), "a known machine is not served");
  require(!live(8, 2000), "another machine is served");

  setenv("TECCL_TUNER_FILE", "/nonexistent/file", 1);
  logged.clear();
  require(!live(4, 2000) && logged.find("cannot be read") != std::string::npos, "a missing file is not told");
  unsetenv("TECCL_TUNER_FILE");

  // Whatever a file holds, a communicator lives.
  std::mt19937 draw(1);
  for (int round = 0; round < 300; ++round) {
    std::string damaged = good;
    for (int change = 0; change <= round % 5; ++change) {
      const std::size_t at = draw() % damaged.size();
      if (draw() % 3 == 0) damaged.erase(at, draw() % 20);
      else damaged[at] = static_cast<char>(draw() % 256);
      if (damaged.empty()) damaged = "x";
    }
    setenv("TECCL_TUNER_COSTS", file_of(damaged).c_str(), 1);
    live(4, 2000);
  }
  std::remove(file_of("").c_str());
  std::puts("tuner: every version answers");
}
