// The part of NCCL's ABI that a tuner plugin meets, versions 2 to 6, declared here so that no header of NCCL is needed.
// tests/test_nccl_tuner.py compares it with NCCL's own headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace teccl::nccl {

// ncclResult_t, ncclFunc_t, ncclDebugLogLevel and ncclDebugLogSubSys: enums of C, passed as int.
constexpr int kSuccess = 0;
constexpr int kBroadcast = 0, kReduce = 1, kAllGather = 2, kReduceScatter = 3, kAllReduce = 4;
constexpr int kCollectives = 5;
constexpr int kTree = 0, kRing = 1, kCollnetDirect = 2, kCollnetChain = 3, kNvls = 4, kNvlsTree = 5, kPat = 6;
constexpr int kAlgorithms = 7;
constexpr int kLL = 0, kLL128 = 1, kSimple = 2;
constexpr int kProtocols = 3;
constexpr float kIgnore = -1.0f;  // an entry of the cost table that cannot be used
constexpr int kLogWarn = 2, kLogInfo = 3;
constexpr unsigned long kLogTuning = 64;

using Logger = void (*)(int level, unsigned long subsystems, const char* file, int line, const char* format, ...);

// getCollInfo of version 2 names one algorithm and protocol; later ones edit a table of µs, algorithms × protocols
// (which NCCL declares float** and passes as float[][protocols]).
using CollInfoV2 = int (*)(void* context, int collective, std::size_t bytes, int collnet, int nvls, int operations,
                           int* algorithm, int* protocol, int* channels);
using CollInfoV3 = int (*)(void* context, int collective, std::size_t bytes, int operations, float** table,
                           int algorithms, int protocols, int* channels);
using CollInfoV4 = int (*)(void* context, int collective, std::size_t bytes, int operations, float** table,
                           int algorithms, int protocols, int registered, int* channels);
using ChunkSize = int (*)(void* context, int collective, std::size_t bytes, int algorithm, int protocol, int channels,
                          std::size_t* chunk_bytes);
using InitV2 = int (*)(std::size_t ranks, std::size_t nodes, Logger log, void** context);
using Finish = int (*)(void* context);

struct NvlDomainInfoV5 {
  int domains, min_ranks, max_ranks;
};

struct ConstantsV5 {
  double base_latencies[7][3], hw_latencies[3][7][3];
  double ll_max[4][3], ring_ll128_max[4][3], tree_ll128_max[4][3], tree_max[4][3], nvls_tree_max[4][3];
};

using InitV5 = int (*)(void** context, std::uint64_t communicator, std::size_t ranks, std::size_t nodes, Logger log,
                       NvlDomainInfoV5* domains, ConstantsV5* constants);

struct TunerV2 {
  const char* name;
  InitV2 init;
  CollInfoV2 collective_info;
  Finish finish;
};
struct TunerV3 {
  const char* name;
  InitV2 init;
  CollInfoV3 collective_info;
  Finish finish;
};
struct TunerV4 {
  const char* name;
  InitV2 init;
  CollInfoV4 collective_info;
  Finish finish;
};
struct TunerV5 {
  const char* name;
  InitV5 init;
  CollInfoV4 collective_info;
  Finish finish;
};
struct TunerV6 {
  const char* name;
  InitV5 init;
  CollInfoV4 collective_info;
  Finish finish;
  ChunkSize chunk_size;
};

}  // namespace teccl::nccl
