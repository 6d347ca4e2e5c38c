// Host memory in the place of NCCL: ranks are processes (or threads) that share a file. Messages are taken as late as
// NCCL may take them: a send is over when its receive is. Misuse — mismatched counts, groups that pair otherwise on
// the two sides, a use after the end — ends the process. A rank that has died is an asynchronous ncclRemoteError.
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

namespace {

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

std::atomic<long> sends{0}, collective_calls{0};

}  // namespace

struct ncclComm {
  std::string name;
  int rank, nranks, device;
  bool blocking;
  Shared* shared = nullptr;
  std::atomic<int> error{ncclSuccess};
  std::atomic<bool> aborted{false}, ended{false};
  int splits = 0, children = 0;
  std::map<int, float> operators;
};

namespace {

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
thread_local Thread here;

std::size_t bytes_of(ncclDataType_t type) {
  static const std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return static_cast<unsigned>(type) < 12 ? sizes[type] : 0;
}

// Moves what can be moved now; whether anything was.
bool moved(ncclComm_t comm, int plane, Transfer& transfer) {
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

bool over(const Transfer& transfer) { return transfer.done == transfer.total && !transfer.waiting; }

// Everything at once; between two ranks, in order.
void progress(ncclComm_t comm, int plane, std::vector<Transfer> transfers) {
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

// -- groups ---------------------------------------------------------------------------------------------------------

ncclResult_t flush() {
  std::vector<Request> requests = std::move(here.requests);
  here.requests.clear();
  auto births = std::move(here.births);
  here.births.clear();
  const ncclResult_t error = here.error;
  here.error = ncclSuccess;
  if (error != ncclSuccess) return error;
  std::vector<std::thread> joining;
  for (auto& [where, birth] : births) joining.emplace_back([where = where, birth = birth] { *where = birth(); });
  for (std::thread& thread : joining) thread.join();
  for (auto& [where, birth] : births)
    if (*where == nullptr) return ncclSystemError;
  std::vector<Request> merged;  // the messages of a communicator are one kernel
  for (Request& request : requests) {
    auto same = std::find_if(merged.begin(), merged.end(), [&](const Request& other) {
      return other.comm == request.comm && !other.collective && !request.collective;
    });
    if (same == merged.end())
      merged.push_back(std::move(request));
    else
      same->transfers.insert(same->transfers.end(), request.transfers.begin(), request.transfers.end());
  }
  for (Request& request : merged) {
    if (request.comm->error != ncclSuccess) return static_cast<ncclResult_t>(request.comm->error.load());
    if (request.collective) {
      standin::enqueue(request.stream, request.collective);
      continue;
    }
    std::map<std::pair<bool, int>, std::uint32_t> numbers, totals;
    for (const Transfer& transfer : request.transfers) ++totals[{transfer.send, transfer.peer}];
    for (Transfer& transfer : request.transfers) {
      transfer.index = numbers[{transfer.send, transfer.peer}]++;
      transfer.of = totals[{transfer.send, transfer.peer}];
    }
    standin::enqueue(request.stream,
                     [comm = request.comm, transfers = request.transfers] { progress(comm, 0, transfers); });
  }
  return ncclSuccess;
}

ncclResult_t asked(Request request) {
  if (request.comm == nullptr) return ncclInvalidArgument;
  if (request.comm->aborted) return ncclInvalidUsage;  // another thread may have aborted it at any moment
  if (request.comm->ended) standin::misuse("a communicator used after its end");
  here.requests.push_back(std::move(request));
  return here.depth > 0 ? ncclSuccess : flush();
}

ncclResult_t message(bool send, const void* at, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
  if (comm == nullptr || peer < 0 || peer >= comm->nranks || bytes_of(type) == 0) {
    here.error = ncclInvalidArgument;
    return ncclInvalidArgument;
  }
  if (peer == comm->rank) standin::misuse("a message to oneself");
  if (send) ++sends;
  if (count == 0) return ncclSuccess;
  Transfer transfer{send, peer, 100u + type, 0, 1, static_cast<char*>(const_cast<void*>(at)), count * bytes_of(type)};
  return asked({comm, stream, {transfer}, nullptr});
}

// All inputs go to all ranks, and each takes what it needs.
ncclResult_t collective(std::uint32_t kind, const void* send, std::size_t bytes, ncclComm_t comm, cudaStream_t stream,
                        std::function<void(const std::vector<std::vector<char>>&)> take) {
  if (comm == nullptr) return ncclInvalidArgument;
  ++collective_calls;
  auto work = [=] {
    if (bytes == 0) return;
    std::vector<std::vector<char>> inputs(comm->nranks, std::vector<char>(bytes));
    if (send != nullptr) std::memcpy(inputs[comm->rank].data(), send, bytes);
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < comm->nranks; ++peer) {
      if (peer == comm->rank) continue;
      transfers.push_back({true, peer, kind, 0, 1, inputs[comm->rank].data(), bytes});
      transfers.push_back({false, peer, kind, 0, 1, inputs[peer].data(), bytes});
    }
    progress(comm, 1, transfers);
    if (comm->error == ncclSuccess) take(inputs);
  };
  return asked({comm, stream, {}, work});
}

void reduced(const std::vector<std::vector<char>>& inputs, std::size_t offset, char* out, std::size_t count,
             ncclDataType_t type, int op, float factor) {
  const std::size_t bytes = count * bytes_of(type);
  std::vector<char> sum(inputs[0].begin() + offset, inputs[0].begin() + offset + bytes);
  for (std::size_t rank = 1; rank < inputs.size(); ++rank)
    teccl_kernel::combine_any(sum.data(), sum.data(), inputs[rank].data() + offset, count, type, op, 0, 1);
  if (op == ncclAvg)
    teccl_kernel::scale_any(sum.data(), sum.data(), count, type, static_cast<int>(inputs.size()), 0, 1);
  if (op >= ncclNumOps)
    for (std::size_t i = 0; i < count; ++i) reinterpret_cast<float*>(sum.data())[i] *= factor;
  std::memcpy(out, sum.data(), bytes);
}

// -- communicators --------------------------------------------------------------------------------------------------

ncclComm_t joined(const std::string& name, int rank, int nranks, int device, bool blocking, ncclComm_t into = nullptr) {
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return nullptr;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  ncclComm_t comm = into != nullptr ? into : new ncclComm;
  comm->name = name;
  comm->rank = rank;
  comm->nranks = nranks;
  comm->device = device;
  comm->blocking = blocking;
  comm->shared = static_cast<Shared*>(memory);
  comm->shared->pids[rank] = getpid();
  ++comm->shared->joined;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (comm->shared->joined < nranks) {
    if (std::chrono::steady_clock::now() > until) return nullptr;
    usleep(50);
  }
  if (rank == 0) shm_unlink(name.c_str());
  return comm;
}

std::string name_of(const ncclUniqueId& id) {
  return std::string(id.internal, strnlen(id.internal, NCCL_UNIQUE_ID_BYTES));
}

bool blocking_of(const ncclConfig_t* config, bool inherited) {
  return config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT ? inherited : config->blocking != 0;
}

ncclResult_t born(ncclComm_t* where, const std::string& name, int rank, int nranks, bool blocking) {
  const int device = standin::current_device();
  if (device < 0) return ncclUnhandledCudaError;
  if (nranks > most_ranks || rank < 0 || rank >= nranks) return ncclInvalidArgument;
  *where = nullptr;
  if (!blocking) {
    ncclComm_t comm = new ncclComm;
    comm->error = ncclInProgress;
    *where = comm;
    std::thread([=] {
      comm->error = joined(name, rank, nranks, device, false, comm) != nullptr ? ncclSuccess : ncclSystemError;
    }).detach();
    return ncclInProgress;
  }
  auto birth = [=] { return joined(name, rank, nranks, device, true); };
  if (here.depth > 0) {
    here.births.emplace_back(where, birth);
    return ncclSuccess;
  }
  *where = birth();
  return *where != nullptr ? ncclSuccess : ncclSystemError;
}

}  // namespace

extern "C" {

long standin_count(const char* what) {
  return std::strcmp(what, "sends") == 0 ? sends.load() : collective_calls.load();
}

ncclResult_t ncclGetVersion(int* version) {
  const char* text = std::getenv("STANDIN_NCCL_VERSION");
  *version = text != nullptr ? std::atoi(text) : 23203;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/standin-nccl-%d-%08x%08x", getpid(), random(), random());
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++here.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (here.depth == 0) return ncclInvalidUsage;
  return --here.depth > 0 ? ncclSuccess : flush();
}
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) {
  if (here.depth == 0) return ncclInvalidUsage;
  if (--here.depth == 0) here.requests.clear();
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* at, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return message(true, at, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* at, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return message(false, at, count, type, peer, comm, stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  if (comm == nullptr || bytes_of(type) == 0) return ncclInvalidArgument;
  const std::size_t bytes = count * bytes_of(type);
  return collective(1, send, bytes, comm, stream, [=](const auto& inputs) {
    for (std::size_t rank = 0; rank < inputs.size(); ++rank)
      std::memcpy(static_cast<char*>(receive) + rank * bytes, inputs[rank].data(), bytes);
  });
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  if (comm == nullptr || root < 0 || root >= comm->nranks || bytes_of(type) == 0) return ncclInvalidArgument;
  const std::size_t bytes = count * bytes_of(type);
  return collective(2, comm->rank == root ? send : nullptr, bytes, comm, stream,
                    [=](const auto& inputs) { std::memcpy(receive, inputs[root].data(), bytes); });
}
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return collective(3, send, bytes * comm->nranks, comm, stream, [=](const auto& inputs) {
    for (std::size_t rank = 0; rank < inputs.size(); ++rank)
      std::memcpy(static_cast<char*>(receive) + rank * bytes, inputs[rank].data() + comm->rank * bytes, bytes);
  });
}
ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return collective(4, send, bytes, comm, stream, [=](const auto& inputs) {
    for (std::size_t rank = 0; rank < inputs.size() && comm->rank == root; ++rank)
      std::memcpy(static_cast<char*>(receive) + rank * bytes, inputs[rank].data(), bytes);
  });
}
ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return collective(5, comm->rank == root ? send : nullptr, bytes * comm->nranks, comm, stream,
                    [=](const auto& inputs) { std::memcpy(receive, inputs[root].data() + comm->rank * bytes, bytes); });
}
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (comm == nullptr || bytes_of(type) == 0) return ncclInvalidArgument;
  return collective(6, send, count * bytes_of(type), comm, stream, [=](const auto& inputs) {
    reduced(inputs, 0, static_cast<char*>(receive), count, type, op, op >= ncclNumOps ? comm->operators.at(op) : 1);
  });
}
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return collective(7, send, count * bytes_of(type), comm, stream, [=](const auto& inputs) {
    if (comm->rank == root) reduced(inputs, 0, static_cast<char*>(receive), count, type, op, 1);
  });
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return collective(8, send, bytes * comm->nranks, comm, stream, [=](const auto& inputs) {
    reduced(inputs, comm->rank * bytes, static_cast<char*>(receive), count, type, op, 1);
  });
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, int, ncclComm_t comm) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(comm->operators.size()));
  comm->operators[*op] = *static_cast<float*>(scalar);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return born(comm, name_of(id), rank, nranks, blocking_of(config, true));
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
  return ncclCommInitRankConfig(comm, nranks, ids[0], rank, config);
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int number, const int* devices) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::vector<std::thread> joining;
  for (int rank = 0; rank < number; ++rank)
    joining.emplace_back(
        [=] { comms[rank] = joined(name_of(id), rank, number, devices != nullptr ? devices[rank] : rank, true); });
  for (std::thread& thread : joining) thread.join();
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  auto& table = comm->shared->splits[comm->splits];
  table.color[comm->rank] = color;
  table.key[comm->rank] = key;
  ++table.came;
  while (table.came < comm->nranks) usleep(50);
  const std::string name = comm->name + "-s" + std::to_string(comm->splits++) + "-" + std::to_string(color);
  *made = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  int rank = 0, nranks = 0;
  for (int other = 0; other < comm->nranks; ++other) {
    if (table.color[other] != color) continue;
    ++nranks;
    if (std::make_pair(table.key[other], other) < std::make_pair(key, comm->rank)) ++rank;
  }
  return born(made, name, rank, nranks, blocking_of(config, comm->blocking));
}
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int number, ncclComm_t* made, ncclConfig_t* config, int) {
  int rank = 0;
  for (int other = 0; other < comm->rank; ++other)
    rank += std::find(excluded, excluded + number, other) == excluded + number;
  return born(made, comm->name + "-k" + std::to_string(comm->children++), rank, comm->nranks - number,
              blocking_of(config, comm->blocking));
}
ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId* id) { return ncclGetUniqueId(id); }
ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* made,
                          ncclConfig_t* config) {
  ncclUniqueId known;
  if (id != nullptr) known = *id;
  if (comm != nullptr && id != nullptr) {
    std::memcpy(comm->shared->grow_id, id->internal, sizeof known.internal);
    comm->shared->grown = 1;
  } else if (comm != nullptr) {
    while (comm->shared->grown == 0) usleep(50);
    std::memcpy(known.internal, comm->shared->grow_id, sizeof known.internal);
  }
  return born(made, name_of(known), comm != nullptr ? comm->rank : rank, nranks,
              blocking_of(config, comm == nullptr || comm->blocking));
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->ended.exchange(true)) standin::misuse("a communicator destroyed twice");
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  return ncclCommDestroy(comm);
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  comm->aborted = true;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = static_cast<ncclResult_t>(comm->error.load());
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  if (comm->error == ncclInProgress) standin::misuse("a communicator asked before it is ready");
  *count = comm->nranks;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

}  // extern "C"
