// libnccl-tuner-teccl.so: NCCL's choice among its own algorithms by the simulated times of this machine.
//
// $TECCL_TUNER_COSTS names the file that `store export --tuner` writes, $TECCL_TUNER_FILE a user's overrides (both:
// tuner_costs.hpp). Whatever is wrong with them is one line in NCCL's log, and NCCL decides as it would without us: no
// function here ever fails a communicator.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "tuner_abi.hpp"
#include "tuner_costs.hpp"

namespace teccl::nccl {
namespace {

constexpr char kName[] = "teccl";
constexpr std::size_t kMostFileBytes = 64u << 20;

void log(Logger logger, int level, const std::string& line) {
  if (logger) logger(level, kLogTuning, __FILE__, __LINE__, "TUNER/teccl: %s", line.c_str());
}

std::string text_of(const char* path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), std::fclose);
  std::string text;
  char part[65536];
  for (std::size_t got; file && (got = std::fread(part, 1, sizeof part, file.get())) > 0;) {
    text.append(part, got);
    if (text.size() > kMostFileBytes) throw std::invalid_argument(std::string(path) + ": too large for a cost file");
  }
  if (!file || std::ferror(file.get()))
    throw std::invalid_argument(std::string(path) + ": cannot be read; check the path");
  return text;
}

// Null, and one line in the log, where there is nothing for such a communicator.
std::unique_ptr<Costs> costs_for(std::size_t ranks, std::size_t nodes, Logger logger) try {
  auto costs = std::make_unique<Costs>();
  std::string looked_in;
  bool known = false;
  for (const char* variable : {"TECCL_TUNER_COSTS", "TECCL_TUNER_FILE"}) {
    const char* path = std::getenv(variable);
    if (!path || !*path) continue;
    looked_in += (looked_in.empty() ? "" : ", ") + std::string(path);
    known |= read_costs(text_of(path), path, ranks, nodes, *costs);
  }
  const std::string shape = std::to_string(ranks) + " ranks on " + std::to_string(nodes) + " nodes";
  if (known) {
    log(logger, kLogInfo, shape + ": times of " + (costs->machine.empty() ? "no machine" : costs->machine) + ", " +
                              std::to_string(costs->overrides.size()) + " overrides (" + looked_in + ")");
    return costs;
  }
  if (looked_in.empty())
    log(logger, kLogInfo, "neither TECCL_TUNER_COSTS nor TECCL_TUNER_FILE is set; NCCL decides");
  else
    log(logger, kLogInfo, "nothing for " + shape + " in " + looked_in + "; NCCL decides");
  return nullptr;
} catch (const std::exception& error) {
  log(logger, kLogWarn, std::string(error.what()) + "; NCCL decides");
  return nullptr;
}

struct Choice {
  int algorithm, protocol;
  bool ours;  // its time is, and its channels may be
};

// The table of version 3 and later: our µs in the place of NCCL's where NCCL could use the entry. An algorithm for
// which we have no times keeps NCCL's, which are µs too.
class Table {
 public:
  Table(float** table, int algorithms, int protocols)
      : costs_(reinterpret_cast<float*>(table)), algorithms_(algorithms), protocols_(protocols) {}
  bool usable(int algorithm, int protocol) const {
    return algorithm < algorithms_ && protocol < protocols_ && at(algorithm, protocol) != kIgnore;
  }
  float at(int algorithm, int protocol) const { return costs_[algorithm * protocols_ + protocol]; }
  void set(int algorithm, int protocol, float time_us) { costs_[algorithm * protocols_ + protocol] = time_us; }

 private:
  float* costs_;
  int algorithms_, protocols_;
};

bool known(int collective) { return collective >= 0 && collective < kCollectives; }

int edit(void* context, int collective, std::size_t bytes, float** table_of_nccl, int algorithms, int protocols,
         int* channels) {
  const auto* costs = static_cast<const Costs*>(context);
  if (!costs || !known(collective) || !table_of_nccl) return kSuccess;
  Table table(table_of_nccl, algorithms, protocols);
  if (const Override* chosen = costs->override_for(collective, bytes);
      chosen && table.usable(chosen->algorithm, chosen->protocol)) {
    table.set(chosen->algorithm, chosen->protocol, 0);
    if (channels && chosen->channels) *channels = chosen->channels;
    return kSuccess;
  }
  Choice cheapest{-1, -1, false};
  for (int algorithm = 0; algorithm < algorithms; ++algorithm) {
    for (int protocol = 0; protocol < protocols; ++protocol) {
      if (!table.usable(algorithm, protocol)) continue;
      const bool named = algorithm < kAlgorithms && protocol < kProtocols;
      const double time_us = named ? costs->time_us(collective, algorithm, protocol, bytes) : -1;
      if (time_us > 0) table.set(algorithm, protocol, static_cast<float>(time_us));
      if (cheapest.algorithm < 0 ||
          table.at(algorithm, protocol) < table.at(cheapest.algorithm, cheapest.protocol))
        cheapest = {algorithm, protocol, time_us > 0};
    }
  }
  if (channels && cheapest.ours)
    if (const int wanted = costs->nearest(collective, cheapest.algorithm, cheapest.protocol, bytes)->channels)
      *channels = wanted;
  return kSuccess;
}

int edit_v4(void* context, int collective, std::size_t bytes, int, float** table, int algorithms, int protocols, int,
            int* channels) {
  return edit(context, collective, bytes, table, algorithms, protocols, channels);
}

int edit_v3(void* context, int collective, std::size_t bytes, int, float** table, int algorithms, int protocols,
            int* channels) {
  return edit(context, collective, bytes, table, algorithms, protocols, channels);
}

// Version 2 shows no table: the cheapest of what we know and NCCL says it supports is named.
int name_v2(void* context, int collective, std::size_t bytes, int collnet, int nvls, int, int* algorithm, int* protocol,
            int* channels) {
  const auto* costs = static_cast<const Costs*>(context);
  if (!costs || !known(collective)) return kSuccess;
  const auto supported = [&](int each) {
    if (each == kCollnetDirect || each == kCollnetChain) return collnet != 0;
    if (each == kNvls || each == kNvlsTree) return nvls != 0;
    return each != kPat;
  };
  int best_algorithm = -1, best_protocol = -1, best_channels = 0;
  if (const Override* chosen = costs->override_for(collective, bytes); chosen && supported(chosen->algorithm)) {
    best_algorithm = chosen->algorithm;
    best_protocol = chosen->protocol;
    best_channels = chosen->channels;
  } else {
    double least = -1;
    for (int a = 0; a < kAlgorithms; ++a) {
      for (int p = 0; p < kProtocols; ++p) {
        const double time_us = supported(a) ? costs->time_us(collective, a, p, bytes) : -1;
        if (time_us < 0 || (least >= 0 && time_us >= least)) continue;
        least = time_us;
        best_algorithm = a;
        best_protocol = p;
      }
    }
    if (least >= 0) best_channels = costs->nearest(collective, best_algorithm, best_protocol, bytes)->channels;
  }
  if (best_algorithm < 0) return kSuccess;
  if (algorithm) *algorithm = best_algorithm;
  if (protocol) *protocol = best_protocol;
  if (channels && best_channels) *channels = best_channels;
  return kSuccess;
}

// Whole grains of the protocol, as NCCL cuts a channel's share: 16 bytes, a warp's LL128 lines, 512 bytes.
std::size_t grains(std::size_t bytes, int protocol) {
  constexpr std::size_t grain[kProtocols] = {16, 1920, 512};
  const std::size_t one = grain[protocol];
  return bytes < one ? one : bytes / one * one;
}

int chunk_v6(void* context, int collective, std::size_t bytes, int algorithm, int protocol, int, std::size_t* chunk) {
  const auto* costs = static_cast<const Costs*>(context);
  if (!costs || !chunk || !known(collective) || algorithm < 0 || algorithm >= kAlgorithms || protocol < 0 ||
      protocol >= kProtocols)
    return kSuccess;
  std::size_t wanted = 0;
  if (const Override* chosen = costs->override_for(collective, bytes);
      chosen && chosen->algorithm == algorithm && chosen->protocol == protocol)
    wanted = chosen->chunk_bytes;
  else if (const Sample* sample = costs->nearest(collective, algorithm, protocol, bytes))
    wanted = sample->chunk_bytes;
  if (wanted) *chunk = grains(wanted, protocol);
  return kSuccess;
}

int init(std::size_t ranks, std::size_t nodes, Logger logger, void** context) {
  *context = costs_for(ranks, nodes, logger).release();
  return kSuccess;
}

int init_v5(void** context, std::uint64_t, std::size_t ranks, std::size_t nodes, Logger logger, NvlDomainInfoV5*,
            ConstantsV5*) {
  return init(ranks, nodes, logger, context);
}

int finish(void* context) {
  delete static_cast<Costs*>(context);
  return kSuccess;
}

}  // namespace
}  // namespace teccl::nccl

#define TECCL_EXPORTED extern "C" __attribute__((visibility("default")))
TECCL_EXPORTED const teccl::nccl::TunerV2 ncclTunerPlugin_v2{
    teccl::nccl::kName, teccl::nccl::init, teccl::nccl::name_v2, teccl::nccl::finish};
TECCL_EXPORTED const teccl::nccl::TunerV3 ncclTunerPlugin_v3{
    teccl::nccl::kName, teccl::nccl::init, teccl::nccl::edit_v3, teccl::nccl::finish};
TECCL_EXPORTED const teccl::nccl::TunerV4 ncclTunerPlugin_v4{
    teccl::nccl::kName, teccl::nccl::init, teccl::nccl::edit_v4, teccl::nccl::finish};
TECCL_EXPORTED const teccl::nccl::TunerV5 ncclTunerPlugin_v5{
    teccl::nccl::kName, teccl::nccl::init_v5, teccl::nccl::edit_v4, teccl::nccl::finish};
TECCL_EXPORTED const teccl::nccl::TunerV6 ncclTunerPlugin_v6{
    teccl::nccl::kName, teccl::nccl::init_v5, teccl::nccl::edit_v4, teccl::nccl::finish, teccl::nccl::chunk_v6};
