// What is known of a communicator: whether its ranks agreed on programs, which one serves a call, and its scratch.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ledger.hpp"
#include "libraries.hpp"
#include "programs.hpp"
#include "reduction.hpp"

namespace teccl::nccl {

// A call of a collective; `root` is -1 where there is none.
struct Call {
  Collective collective;
  const void* send;
  void* receive;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  ncclComm_t communicator;
  cudaStream_t stream;
};

std::size_t most_scratch();  // bytes that a call may use: TECCL_NCCL_SCRATCH, else 1 GiB

class Communicator {
 public:
  // `blocking`: its calls return when they are enqueued.
  Communicator(ncclComm_t handle, bool blocking);

  // Of a call: custom and the program's number, or why not. The same on all ranks.
  Outcome select(const Call& call, std::uint32_t& program) const;

  // Device memory for a call on `stream`, which is the next call's there, too. Calls on other streams, and graphs, have
  // their own: nothing orders them after one another. Null where there is none.
  char* scratch(cudaStream_t stream, std::size_t bytes);
  void free_scratch();

  // Around the execution of a call. False for a communicator that is gone: another thread may abort it meanwhile.
  bool enter();
  void leave();  // the last one out of a communicator that is gone frees its scratch
  // It is gone: no call enters any more, and the scratch is freed as soon as none is under way.
  void end();

  // Whether this is the first call of the program.
  bool first_of(std::uint32_t program);

  ncclComm_t handle;
  int rank = -1, nranks = 0;
  CUcontext context = nullptr;
  std::atomic<Outcome> verdict{Outcome::no_programs};  // custom: programs are used
  bool blocking;
  const Programs* programs = nullptr;
  std::vector<RankProgram> mine;
  Reduction reduction;
  bool all_reduce_here = false;  // every rank has the reduction kernel

 private:
  friend ncclResult_t agree(const std::vector<Communicator*>& fresh, bool one_process);
  void index_entries();

  std::vector<std::pair<std::int32_t, std::vector<Entry>>> entries_[collectives];  // by root, by size
  std::mutex mutex_;
  // By stream, by the thread where every thread has a stream of that name, and by the capture (0: none).
  using Place = std::tuple<cudaStream_t, std::thread::id, unsigned long long>;
  std::map<Place, std::pair<CUdeviceptr, std::size_t>> scratch_;
  std::vector<CUdeviceptr> outgrown_;
  std::vector<bool> seen_;
  std::atomic<int> under_way_{0};
  std::atomic<bool> gone_{false};
};

// All ranks of each of `fresh`, communicators that this thread has just made, settle whether they use their programs:
// the same ones, on the hosts they are for. Collective over each of them, unless all ranks are in this process.
ncclResult_t agree(const std::vector<Communicator*>& fresh, bool one_process);

// The process' communicators. Lookups are lock-free while none is made or ended.
Communicator* find(ncclComm_t handle);
Communicator* add(std::unique_ptr<Communicator> made);
std::unique_ptr<Communicator> take(ncclComm_t handle);
// What was taken, while other threads may still have found it: it stays in memory, without its scratch.
void keep(std::unique_ptr<Communicator> taken);

}  // namespace teccl::nccl
