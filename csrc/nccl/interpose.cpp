// NCCL's functions as a preloaded job calls them: collectives with a program run as it says, all else goes to the real
// library.
#include <cstdlib>
#include <cstring>
#include <string>

#include "execute.hpp"

namespace teccl::nccl {

namespace {

// A communicator that a call has been asked to make: its handle is there when the call, or its group, has ended.
struct Born {
  ncclComm_t* handle;
  bool blocking;
};

struct Thread {
  int depth = 0;        // of the user's groups
  bool inside = false;  // the real library is being called, and may call exported functions itself
  std::vector<Work> waiting;
  std::vector<Born> born;
};
thread_local Thread thread;

struct Inside {
  Inside() { thread.inside = true; }
  ~Inside() { thread.inside = false; }
};

template <typename... PARAMETERS>
ncclResult_t delegated(const char* name, ncclResult_t (*function)(PARAMETERS...), PARAMETERS... arguments) {
  if (function == nullptr) {
    warn(real().version == 0 ? "no NCCL was found: is libnccl.so.2 loaded, or on the library path?"
                             : std::string("this NCCL has no ") + name);
    return real().version == 0 ? ncclSystemError : ncclInvalidUsage;
  }
  if (thread.inside) return function(arguments...);
  const Inside inside;
  return function(arguments...);
}
#define DELEGATED(name, ...) delegated(#name, real().name, __VA_ARGS__)

std::string described(const Call& call) {
  const std::size_t bytes = call.count * element_bytes(call.type);
  return std::string(collective_names[std::size_t(call.collective)]) + " of " + std::to_string(bytes) +
         " bytes a share";
}

// Whether the call is done, or waits for its group to end; its result is `result` then.
bool served(const Call& call, ncclResult_t& result) {
  if (thread.inside) return false;
  Communicator* communicator = find(call.communicator);
  std::uint32_t program = 0;
  const Outcome outcome = communicator != nullptr ? communicator->select(call, program) : Outcome::unknown_communicator;
  const bool first = ledger().count(call.collective, outcome);
  if (outcome != Outcome::custom) {
    if (first && informing()) inform(described(call) + ": delegated, " + reason(outcome));
    return false;
  }
  if (informing() && communicator->first_of(program))
    inform("rank " + std::to_string(communicator->rank) + ": " + described(call) + ": custom, " +
           communicator->programs->programs()[program].name);
  if (thread.depth > 0) {
    thread.waiting.push_back({call, communicator, program});
    result = ncclSuccess;
    return true;
  }
  const Inside inside;
  result = execute({{call, communicator, program}});
  return true;
}

// -- communicators ------------------------------------------------------------------------------------------------

bool blocks(const ncclConfig_t* config) {
  if (const char* forced = std::getenv("NCCL_COMM_BLOCKING")) return std::strcmp(forced, "0") != 0;
  return config == nullptr || config->magic != NCCL_API_MAGIC || config->blocking != 0;
}

// As its parent, where the configuration does not say.
bool blocks_as(ncclComm_t parent, const ncclConfig_t* config) {
  const Communicator* known = parent != nullptr ? find(parent) : nullptr;
  if (known == nullptr ||
      (config != nullptr && config->magic == NCCL_API_MAGIC && config->blocking != NCCL_CONFIG_UNDEF_INT))
    return blocks(config);
  return known->blocking;
}

ncclResult_t welcome(const std::vector<Born>& born, bool one_process) {
  std::vector<Communicator*> fresh;
  for (const Born& each : born)
    if (*each.handle != nullptr) fresh.push_back(add(std::make_unique<Communicator>(*each.handle, each.blocking)));
  const Inside inside;
  return agree(fresh, one_process);
}

// After the real library was asked for a communicator.
ncclResult_t made(ncclResult_t result, ncclComm_t* handle, bool blocking) {
  if (thread.inside || handle == nullptr || (result != ncclSuccess && result != ncclInProgress)) return result;
  const Born born = {handle, blocking && result == ncclSuccess};
  if (thread.depth > 0) {
    thread.born.push_back(born);
    return result;
  }
  const ncclResult_t agreed = welcome({born}, false);
  return agreed != ncclSuccess ? agreed : result;
}

void ended(ncclComm_t handle) {
  if (Communicator* communicator = thread.inside ? nullptr : find(handle)) communicator->verdict = Outcome::ended;
}

// The real function ends the communicator; then its scratch is free. Other threads may still be in its calls: PyTorch's
// watchdog aborts so.
ncclResult_t gone(const char* name, ncclResult_t (*function)(ncclComm_t), ncclComm_t handle, bool aborted) {
  std::unique_ptr<Communicator> taken = thread.inside ? nullptr : take(handle);
  const ncclResult_t result = delegated(name, function, handle);
  if (taken != nullptr) taken->end();
  if (taken != nullptr && aborted) keep(std::move(taken));
  return result;
}

// -- groups -------------------------------------------------------------------------------------------------------

ncclResult_t group_ended(ncclResult_t result) {
  if (thread.depth > 0) --thread.depth;
  if (thread.depth > 0) return result;
  const std::vector<Work> waiting = std::move(thread.waiting);
  const std::vector<Born> born = std::move(thread.born);
  thread.waiting.clear();
  thread.born.clear();
  if (result != ncclSuccess && result != ncclInProgress) return result;
  if (!born.empty()) {
    const ncclResult_t agreed = welcome(born, false);
    if (agreed != ncclSuccess) return agreed;
  }
  if (!waiting.empty()) {
    const Inside inside;
    const ncclResult_t executed = execute(waiting);
    if (executed != ncclSuccess) return executed;
  }
  return result;
}

}  // namespace
}  // namespace teccl::nccl

using namespace teccl::nccl;

#define EXPORTED extern "C" __attribute__((visibility("default"))) ncclResult_t

EXPORTED ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                       cudaStream_t stream) {
  ncclResult_t result;
  if (served({Collective::allgather, send, receive, count, type, ncclSum, -1, comm, stream}, result)) return result;
  return DELEGATED(ncclAllGather, send, receive, count, type, comm, stream);
}

EXPORTED ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t result;
  if (served({Collective::reduce_scatter, send, receive, count, type, op, -1, comm, stream}, result)) return result;
  return DELEGATED(ncclReduceScatter, send, receive, count, type, op, comm, stream);
}

EXPORTED ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                       ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t result;
  if (served({Collective::allreduce, send, receive, count, type, op, -1, comm, stream}, result)) return result;
  return DELEGATED(ncclAllReduce, send, receive, count, type, op, comm, stream);
}

EXPORTED ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  ncclResult_t result;
  if (served({Collective::broadcast, send, receive, count, type, ncclSum, root, comm, stream}, result)) return result;
  return DELEGATED(ncclBroadcast, send, receive, count, type, root, comm, stream);
}

EXPORTED ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t result;
  if (served({Collective::broadcast, buffer, buffer, count, type, ncclSum, root, comm, stream}, result)) return result;
  return DELEGATED(ncclBcast, buffer, count, type, root, comm, stream);
}

EXPORTED ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                    ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t result;
  if (served({Collective::reduce, send, receive, count, type, op, root, comm, stream}, result)) return result;
  return DELEGATED(ncclReduce, send, receive, count, type, op, root, comm, stream);
}

EXPORTED ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                      cudaStream_t stream) {
  ncclResult_t result;
  if (served({Collective::alltoall, send, receive, count, type, ncclSum, -1, comm, stream}, result)) return result;
  return DELEGATED(ncclAlltoAll, send, receive, count, type, comm, stream);
}

EXPORTED ncclGather(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                    cudaStream_t stream) {
  ncclResult_t result;
  if (served({Collective::gather, send, receive, count, type, ncclSum, root, comm, stream}, result)) return result;
  return DELEGATED(ncclGather, send, receive, count, type, root, comm, stream);
}

EXPORTED ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                     cudaStream_t stream) {
  ncclResult_t result;
  if (served({Collective::scatter, send, receive, count, type, ncclSum, root, comm, stream}, result)) return result;
  return DELEGATED(ncclScatter, send, receive, count, type, root, comm, stream);
}

EXPORTED ncclGroupStart(void) {
  const ncclResult_t result = delegated("ncclGroupStart", real().ncclGroupStart);
  if (!thread.inside && result == ncclSuccess) ++thread.depth;
  return result;
}

EXPORTED ncclGroupEnd(void) {
  const ncclResult_t result = delegated("ncclGroupEnd", real().ncclGroupEnd);
  return thread.inside ? result : group_ended(result);
}

EXPORTED ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  const ncclResult_t result = DELEGATED(ncclGroupSimulateEnd, info);
  if (thread.inside) return result;
  thread.waiting.clear();  // nothing was to run
  return group_ended(result);
}

EXPORTED ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return made(DELEGATED(ncclCommInitRank, comm, nranks, id, rank), comm, blocks(nullptr));
}

EXPORTED ncclCommInitAll(ncclComm_t* comms, int number, const int* devices) {
  ncclResult_t result = DELEGATED(ncclCommInitAll, comms, number, devices);
  if (thread.inside || comms == nullptr || (result != ncclSuccess && result != ncclInProgress)) return result;
  std::vector<Born> born;
  for (int rank = 0; rank < number; ++rank) born.push_back({comms + rank, blocks(nullptr) && result == ncclSuccess});
  const ncclResult_t agreed = welcome(born, true);
  return agreed != ncclSuccess ? agreed : result;
}

EXPORTED ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return made(DELEGATED(ncclCommInitRankConfig, comm, nranks, id, rank, config), comm, blocks(config));
}

EXPORTED ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int nids, ncclUniqueId* ids,
                                  ncclConfig_t* config) {
  return made(DELEGATED(ncclCommInitRankScalable, comm, nranks, rank, nids, ids, config), comm, blocks(config));
}

EXPORTED ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made_comm, ncclConfig_t* config) {
  const bool blocking = blocks_as(comm, config);
  return made(DELEGATED(ncclCommSplit, comm, color, key, made_comm, config),
              color == NCCL_SPLIT_NOCOLOR ? nullptr : made_comm, blocking);
}

EXPORTED ncclCommShrink(ncclComm_t comm, int* excluded, int number, ncclComm_t* made_comm, ncclConfig_t* config,
                        int flags) {
  const bool blocking = blocks_as(comm, config);
  return made(DELEGATED(ncclCommShrink, comm, excluded, number, made_comm, config, flags), made_comm, blocking);
}

EXPORTED ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* made_comm,
                      ncclConfig_t* config) {
  const bool blocking = blocks_as(comm, config);
  return made(DELEGATED(ncclCommGrow, comm, nranks, id, rank, made_comm, config), made_comm, blocking);
}

EXPORTED ncclCommFinalize(ncclComm_t comm) {
  ended(comm);
  return DELEGATED(ncclCommFinalize, comm);
}

EXPORTED ncclCommRevoke(ncclComm_t comm, int flags) {
  ended(comm);
  return DELEGATED(ncclCommRevoke, comm, flags);
}

EXPORTED ncclCommDestroy(ncclComm_t comm) { return gone("ncclCommDestroy", real().ncclCommDestroy, comm, false); }

EXPORTED ncclCommAbort(ncclComm_t comm) { return gone("ncclCommAbort", real().ncclCommAbort, comm, true); }
