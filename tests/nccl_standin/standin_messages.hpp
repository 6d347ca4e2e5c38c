// Messages between ranks that share a file: what waits between them, and how it moves. Of standin_nccl.cpp only.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "reduction_kernel.h"
#include "standin_cuda.hpp"

namespace standin {

constexpr int most_ranks = 16;
constexpr std::size_t chunk = 16384;

struct Box {  // from one rank to another
  std::atomic<std::uint32_t> full;
  std::uint64_t total;            // bytes of the message
  std::uint32_t kind, index, of;  // what call, and which of how many in its group between the two
  std::uint32_t bytes;
  char data[chunk];
};

struct Shared {
  std::atomic<int> joined;
  std::atomic<int> pids[most_ranks];
  struct {
    std::atomic<int> came;
    int color[most_ranks], key[most_ranks];
  } splits[16];
  std::atomic<int> grown;
  char grow_id[NCCL_UNIQUE_ID_BYTES];
  Box boxes[2][most_ranks][most_ranks];  // point-to-point, collectives
};

inline std::atomic<long> sends{0}, collective_calls{0};

}  // namespace standin

struct ncclComm {
  std::string name;
  int rank, nranks, device;
  bool blocking;
  standin::Shared* shared = nullptr;
  std::atomic<int> error{ncclSuccess};
  std::atomic<bool> aborted{false}, ended{false};
  int splits = 0, children = 0;
  std::map<int, float> operators;
};

namespace standin {

struct Transfer {
  bool send;
  int peer;
  std::uint32_t kind, index, of;
  char* at;
  std::uint64_t total, done = 0;
  bool waiting = false;  // a sent chunk is to be taken
};

struct Request {
  ncclComm_t comm;
  cudaStream_t stream;
  std::vector<Transfer> transfers;   // of point-to-point calls
  std::function<void()> collective;  // or one of these
};

struct Thread {
  int depth = 0;
  std::vector<Request> requests;
  std::vector<std::pair<ncclComm_t*, std::function<ncclComm_t()>>> births;
  ncclResult_t error = ncclSuccess;
};
inline thread_local Thread here;

inline std::size_t bytes_of(ncclDataType_t type) {
  static const std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return static_cast<unsigned>(type) < 12 ? sizes[type] : 0;
}

// Moves what can be moved now; whether anything was.
inline bool moved(ncclComm_t comm, int plane, Transfer& transfer) {
  Box& box = transfer.send ? comm->shared->boxes[plane][comm->rank][transfer.peer]
                           : comm->shared->boxes[plane][transfer.peer][comm->rank];
  const bool full = box.full.load(std::memory_order_acquire) != 0;
  if (transfer.send) {
    if (full) return false;
    if (transfer.waiting) {
      transfer.waiting = false;
      if (transfer.done == transfer.total) return true;
    }
    box.total = transfer.total;
    box.kind = transfer.kind;
    box.index = transfer.index;
    box.of = transfer.of;
    box.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk, transfer.total - transfer.done));
    std::memcpy(box.data, transfer.at + transfer.done, box.bytes);
    transfer.done += box.bytes;
    transfer.waiting = true;
    box.full.store(1, std::memory_order_release);
    return true;
  }
  if (!full) return false;
  if (box.total != transfer.total || box.kind != transfer.kind)
    standin::misuse("a message of another size or type than its receive");
  if (box.index != transfer.index || box.of != transfer.of)
    standin::misuse("a message of another group than its receive");
  std::memcpy(transfer.at + transfer.done, box.data, box.bytes);
  transfer.done += box.bytes;
  box.full.store(0, std::memory_order_release);
  return true;
}

inline bool over(const Transfer& transfer) { return transfer.done == transfer.total && !transfer.waiting; }

// Everything at once; between two ranks, in order.
inline void progress(ncclComm_t comm, int plane, std::vector<Transfer> transfers) {
  std::mt19937 random(static_cast<unsigned>(comm->rank + transfers.size()));
  std::map<std::pair<bool, int>, std::vector<Transfer*>> lines;
  for (Transfer& transfer : transfers) lines[{transfer.send, transfer.peer}].push_back(&transfer);
  std::vector<std::vector<Transfer*>> order;
  for (auto& [key, line] : lines) {
    std::reverse(line.begin(), line.end());
    order.push_back(line);
  }
  int idle = 0;
  bool lost = false;  // a peer is gone: what it has done is to be seen once more
  // After an abort, or a peer's loss, nothing moves: the next message would meet the rest of one that was cut short.
  while (!order.empty() && !comm->aborted && comm->error != ncclRemoteError) {
    bool any = false;
    std::shuffle(order.begin(), order.end(), random);
    for (auto& line : order) {
      if (moved(comm, plane, *line.back())) any = true;
      if (over(*line.back())) line.pop_back();
    }
    order.erase(std::remove_if(order.begin(), order.end(), [](const auto& line) { return line.empty(); }), order.end());
    if (any) {
      idle = 0;
      lost = false;
      continue;
    }
    if (order.empty()) return;
    if (lost) {
      comm->error = ncclRemoteError;
      return;
    }
    std::this_thread::yield();
    if (++idle < 200) continue;
    usleep(100);
    for (const auto& line : order) {
      const int pid = comm->shared->pids[line.back()->peer];
      lost = lost || (pid > 0 && kill(pid, 0) != 0);
    }
  }
}

}  // namespace standin
