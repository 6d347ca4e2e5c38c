// The ranks of a new communicator settle whether they run programs: all of them the same ones, or none any.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "communicator.hpp"

namespace teccl::nccl {

namespace {

// What a rank tells the others. All of it but the host and the kernel must be the same on all.
struct Record {
  Digest programs;  // zeros: none
  std::uint64_t scratch;
  std::uint32_t interface;
  std::uint32_t unused;
  std::uint64_t host;
  std::uint32_t kernel;
  std::uint32_t rest;
};
static_assert(sizeof(Record) == 64, "the same on all ranks, whatever built them");
constexpr std::size_t common = offsetof(Record, host);
constexpr std::uint32_t interface_version = 1;

std::uint64_t this_host() {
  std::string name;
  if (const char* named = std::getenv("NCCL_HOSTID")) {
    name = named;
  } else {
    std::ifstream boot("/proc/sys/kernel/random/boot_id");
    std::getline(boot, name);
  }
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
  return hash;
}

std::string programs_path() {
  const char* path = std::getenv("TECCL_NCCL_PROGRAMS");
  return path != nullptr ? path : "";
}

// The programs that are named, read once.
const Programs* loaded() {
  static const std::optional<Programs> programs = []() -> std::optional<Programs> {
    const std::string path = programs_path();
    if (path.empty()) return std::nullopt;
    try {
      return Programs(path);
    } catch (const std::exception& error) {
      warn(error.what());
      return std::nullopt;
    }
  }();
  return programs ? &*programs : nullptr;
}

CUcontext context_of(int device_number, CUdevice& device) {
  static std::mutex mutex;
  static std::map<int, CUcontext> contexts;  // retained while the process lives
  if (cuda()->cuDeviceGet(&device, device_number) != 0) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  CUcontext& context = contexts[device_number];
  if (context == nullptr && cuda()->cuDevicePrimaryCtxRetain(&context, device) != 0) context = nullptr;
  return context;
}

// Where the ranks must lie: those with equal numbers on one host, others on different ones.
bool same_partition(const std::vector<std::uint32_t>& wanted, const std::vector<Record>& records) {
  std::map<std::uint32_t, std::uint64_t> there;
  std::map<std::uint64_t, std::uint32_t> back;
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    if (there.emplace(wanted[rank], records[rank].host).first->second != records[rank].host) return false;
    if (back.emplace(records[rank].host, wanted[rank]).first->second != wanted[rank]) return false;
  }
  return true;
}

// One communicator's exchange, on a stream of its own.
struct Exchange {
  Communicator* communicator;
  Record mine{};
  std::vector<Record> all;
  CUdeviceptr memory = 0;
  cudaStream_t stream = nullptr;
  bool started = false;

  // Whether everything needed could be had.
  bool begin(std::size_t nranks) {
    const Cuda& driver = *cuda();
    all.resize(nranks);
    return driver.cuMemAlloc(&memory, (nranks + 1) * sizeof(Record)) == 0 &&
           driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0 &&
           driver.cuMemcpyAsync(memory + nranks * sizeof(Record), reinterpret_cast<CUdeviceptr>(&mine), sizeof mine,
                                stream) == 0;
  }

  // Waits; NCCL's error where a rank is lost, or where time is up.
  ncclResult_t wait(std::chrono::steady_clock::time_point until) const {
    while (true) {
      const CUresult status = cuda()->cuStreamQuery(stream);
      ncclResult_t error = ncclSuccess;  // asked after the stream, which an error may end, too
      real().ncclCommGetAsyncError(communicator->handle, &error);
      if (error != ncclSuccess && error != ncclInProgress) return error;
      if (status != CUDA_ERROR_NOT_READY) return status == 0 ? ncclSuccess : ncclUnhandledCudaError;
      if (std::chrono::steady_clock::now() > until) return ncclSystemError;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  bool finish() {
    const Cuda& driver = *cuda();
    const bool copied = driver.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(all.data()), memory,
                                             all.size() * sizeof(Record), stream) == 0;
    while (driver.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    driver.cuStreamDestroy(stream);
    driver.cuMemFree(memory);
    return copied;
  }
};

// With everybody's records: what becomes of the communicator.
Outcome judged(const Communicator& communicator, const Record& mine, const std::vector<Record>& all) {
  bool any = false;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    any = any || all[rank].programs != Digest{};
    if (std::memcmp(&all[rank], &mine, common) == 0) continue;
    warn("rank " + std::to_string(communicator.rank) + ": rank " + std::to_string(rank) +
         " has other programs or settings; all collectives are left to NCCL");
    return Outcome::others_differ;
  }
  if (!any) return programs_path().empty() ? Outcome::no_programs : Outcome::unreadable;
  if (communicator.programs == nullptr) return Outcome::other_nranks;
  if (same_partition(communicator.programs->hosts(), all)) return Outcome::custom;
  if (communicator.rank == 0)
    warn("the programs are for ranks that lie on other hosts than these; all collectives are left to NCCL");
  return Outcome::other_hosts;
}

std::chrono::seconds patience() {
  const char* text = std::getenv("TECCL_NCCL_TIMEOUT");
  const long seconds = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
  return std::chrono::seconds(seconds > 0 ? seconds : 120);
}

struct Current {  // a context for as long as this lives
  explicit Current(CUcontext context) { cuda()->cuCtxPushCurrent(context); }
  ~Current() {
    CUcontext before;
    cuda()->cuCtxPopCurrent(&before);
  }
};

// What this rank knows by itself. False where it cannot take part.
bool prepared(Communicator& communicator, Record& record, std::size_t most_scratch) {
  int device_number = 0;
  if (real().ncclCommCount(communicator.handle, &communicator.nranks) != ncclSuccess ||
      real().ncclCommUserRank(communicator.handle, &communicator.rank) != ncclSuccess ||
      real().ncclCommCuDevice(communicator.handle, &device_number) != ncclSuccess)
    return false;
  CUdevice device = 0;
  communicator.context = context_of(device_number, device);
  if (communicator.context == nullptr) return false;
  const Programs* programs = loaded();
  record.interface = interface_version;
  record.scratch = most_scratch;
  record.host = this_host();
  if (programs == nullptr) return true;
  record.programs = programs->digest();
  if (programs->nranks() != static_cast<std::uint32_t>(communicator.nranks)) return true;
  try {
    communicator.mine = programs->of_rank(static_cast<std::uint32_t>(communicator.rank));
  } catch (const std::exception& error) {
    warn(error.what());
    record.programs = {};
    return true;
  }
  communicator.programs = programs;
  if (programs->reduces()) {
    const Current current(communicator.context);
    communicator.reduction = reduction_for(device);
  }
  record.kernel = communicator.reduction ? 1 : 0;
  return true;
}

}  // namespace

ncclResult_t agree(const std::vector<Communicator*>& fresh, bool one_process) {
  std::vector<Exchange> exchanges;
  for (Communicator* communicator : fresh) {
    if (!communicator->blocking) continue;
    if (!real().known()) {
      communicator->verdict = Outcome::unknown_version;
      continue;
    }
    Exchange exchange{communicator, {}, {}, 0, nullptr, false};
    if (cuda() == nullptr || !prepared(*communicator, exchange.mine, most_scratch())) {
      communicator->verdict = Outcome::no_driver;
      warn("no CUDA driver to talk to; all collectives are left to NCCL");
      continue;
    }
    exchanges.push_back(std::move(exchange));
  }

  const auto until = std::chrono::steady_clock::now() + patience();
  if (one_process) {
    for (Exchange& exchange : exchanges)
      for (const Exchange& other : exchanges) exchange.all.push_back(other.mine);
  } else if (!exchanges.empty()) {
    ncclResult_t result = real().ncclGroupStart();
    for (Exchange& exchange : exchanges) {
      const Current current(exchange.communicator->context);
      const auto nranks = static_cast<std::size_t>(exchange.communicator->nranks);
      if (result == ncclSuccess && !exchange.begin(nranks)) result = ncclUnhandledCudaError;
      if (result != ncclSuccess) break;
      result = real().ncclAllGather(reinterpret_cast<const void*>(exchange.memory + nranks * sizeof(Record)),
                                    reinterpret_cast<void*>(exchange.memory), sizeof(Record), ncclUint8,
                                    exchange.communicator->handle, exchange.stream);
    }
    const ncclResult_t ended = real().ncclGroupEnd();
    if (result == ncclSuccess) result = ended;
    for (Exchange& exchange : exchanges) {
      const Current current(exchange.communicator->context);
      if (result == ncclSuccess) result = exchange.wait(until);
      if (result == ncclSuccess && !exchange.finish()) result = ncclUnhandledCudaError;
    }
    if (result != ncclSuccess) {
      for (Exchange& exchange : exchanges) exchange.communicator->verdict = Outcome::others_differ;
      warn("the ranks of a new communicator could not compare their programs (NCCL error " + std::to_string(result) +
           "); is the library preloaded on all of them?");
      return result;
    }
  }

  for (Exchange& exchange : exchanges) {
    Communicator& communicator = *exchange.communicator;
    communicator.verdict = judged(communicator, exchange.mine, exchange.all);
    communicator.all_reduce_here = true;
    for (const Record& record : exchange.all)
      communicator.all_reduce_here = communicator.all_reduce_here && record.kernel != 0;
    if (communicator.verdict == Outcome::custom) communicator.index_entries();
    inform("rank " + std::to_string(communicator.rank) + " of " + std::to_string(communicator.nranks) +
           ": a new communicator" +
           (communicator.verdict == Outcome::custom
                ? " with programs"
                : std::string(" without programs: ") + reason(communicator.verdict)));
  }
  return ncclSuccess;
}

}  // namespace teccl::nccl
