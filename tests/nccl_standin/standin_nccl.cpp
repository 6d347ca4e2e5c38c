// Host memory in the place of NCCL: ranks are processes (or threads) that share a file. Messages are taken as late as
// NCCL may take them: a send is over when its receive is. Misuse — mismatched counts, groups that pair otherwise on
// the two sides, a use after the end — ends the process. A rank that has died is an asynchronous ncclRemoteError.
#include "standin_messages.hpp"

using namespace standin;

namespace {

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
