#include "communicator.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <shared_mutex>
#include <unordered_map>

namespace teccl::nccl {

Communicator::Communicator(ncclComm_t handle, bool blocking) : handle(handle), blocking(blocking) {
  if (!blocking) verdict = Outcome::non_blocking;
}

void Communicator::index_entries() {
  for (const Entry& entry : programs->entries()) {
    auto& roots = entries_[entry.collective];
    auto found = std::find_if(roots.begin(), roots.end(), [&](const auto& each) { return each.first == entry.root; });
    if (found == roots.end()) found = roots.insert(roots.end(), {entry.root, {}});
    found->second.push_back(entry);
  }
  for (auto& roots : entries_)
    for (auto& [root, some] : roots)
      std::sort(some.begin(), some.end(), [](const Entry& a, const Entry& b) { return a.min_bytes < b.min_bytes; });
  seen_.assign(programs->programs().size(), false);
}

std::size_t most_scratch() {
  static const std::size_t most = [] {
    const char* text = std::getenv("TECCL_NCCL_SCRATCH");
    char* end = nullptr;
    const unsigned long long bytes = text != nullptr ? std::strtoull(text, &end, 10) : 0;
    return text != nullptr && end != text && *end == '\0' ? static_cast<std::size_t>(bytes) : std::size_t(1) << 30;
  }();
  return most;
}

Outcome Communicator::select(const Call& call, std::uint32_t& program) const {
  if (const Outcome settled = verdict.load(std::memory_order_acquire); settled != Outcome::custom) return settled;
  if (call.count == 0) return Outcome::no_elements;
  const std::size_t bytes = element_bytes(call.type);
  if (bytes == 0) return Outcome::unknown_type;
  if (is_reducing(call.collective)) {
    if (call.op >= ncclNumOps || call.op < 0) return Outcome::user_operator;
    if (!all_reduce_here) return Outcome::no_kernel;
  }
  if (call.collective == Collective::alltoall && call.send == call.receive) return Outcome::in_place_alltoall;
  const bool shares = has_shared_input(call.collective) || has_shared_output(call.collective);
  const std::size_t share = call.count * bytes, size = share * (shares ? static_cast<std::size_t>(nranks) : 1);
  for (const auto& [root, some] : entries_[std::size_t(call.collective)]) {
    if (root != call.root) continue;
    auto after = std::upper_bound(some.begin(), some.end(), size,
                                  [](std::size_t value, const Entry& entry) { return value < entry.min_bytes; });
    if (after == some.begin() || size >= (--after)->max_bytes) return Outcome::no_program;
    const Program& chosen = programs->programs()[after->program];
    // At most, on any rank and in any mode, so that all ranks decide alike.
    std::size_t scratch = (share / chosen.parts + bytes + 255) * chosen.scratch;
    const bool averages = call.op == ncclAvg && is_reducing(call.collective) && !is_integer(call.type);
    if (chosen.writes_input || !chosen.in_place || averages) scratch += size;
    if (call.collective == Collective::reduce || call.collective == Collective::gather) scratch += size;
    if (scratch > most_scratch()) return Outcome::too_much_scratch;
    program = after->program;
    return Outcome::custom;
  }
  return Outcome::no_program;
}

bool Communicator::first_of(std::uint32_t program) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool first = !seen_[program];
  seen_[program] = true;
  return first;
}

char* Communicator::scratch(cudaStream_t stream, std::size_t bytes) {
  const Cuda& driver = *cuda();
  int status = 0;
  unsigned long long capture = 0;
  if (driver.cuStreamGetCaptureInfo(stream, &status, &capture, nullptr, nullptr, nullptr) != 0 ||
      status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    capture = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool per_thread = stream == reinterpret_cast<cudaStream_t>(2);  // cudaStreamPerThread
  auto& [memory, size] = scratch_[{stream, per_thread ? std::this_thread::get_id() : std::thread::id(), capture}];
  if (size < bytes) {
    // What is outgrown may still be in use by calls that are enqueued, and freeing would wait for the device.
    if (memory != 0) outgrown_.push_back(memory);
    const std::size_t wanted = std::max(bytes, 2 * size);
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;  // allocate beside a capture, not in it
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    memory = 0;
    const bool failed = driver.cuMemAlloc(&memory, wanted) != 0;
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    size = failed ? 0 : wanted;
    if (failed) memory = 0;
  }
  return reinterpret_cast<char*>(memory);
}

bool Communicator::enter() {
  ++under_way_;  // before the look: either this sees the end, or the end sees this
  if (!gone_) return true;
  leave();
  return false;
}

void Communicator::leave() {
  if (--under_way_ == 0 && gone_) free_scratch();
}

void Communicator::end() {
  gone_ = true;
  if (under_way_ == 0) free_scratch();
}

void Communicator::free_scratch() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, held] : scratch_)
    if (held.first != 0) outgrown_.push_back(held.first);
  scratch_.clear();
  if (outgrown_.empty()) return;
  const Cuda& driver = *cuda();
  CUcontext before = nullptr;
  if (driver.cuCtxPushCurrent(context) != 0) return;
  for (const CUdeviceptr memory : outgrown_) driver.cuMemFree(memory);
  outgrown_.clear();
  driver.cuCtxPopCurrent(&before);
}

// -- the process' communicators -----------------------------------------------------------------------------------

namespace {

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<ncclComm_t, std::unique_ptr<Communicator>> by_handle;
  std::vector<std::unique_ptr<Communicator>> kept;
  std::atomic<std::uint64_t> generation{1};
};

Registry& registry() {
  static Registry& only = *new Registry;  // never destroyed: calls may come while the process ends
  return only;
}

}  // namespace

Communicator* find(ncclComm_t handle) {
  thread_local struct {
    std::uint64_t generation = 0;
    ncclComm_t handle = nullptr;
    Communicator* found = nullptr;
  } last;
  Registry& all = registry();
  const std::uint64_t generation = all.generation.load(std::memory_order_acquire);
  if (last.generation != generation || last.handle != handle) {
    const std::shared_lock<std::shared_mutex> lock(all.mutex);
    const auto found = all.by_handle.find(handle);
    last = {generation, handle, found == all.by_handle.end() ? nullptr : found->second.get()};
  }
  return last.found;
}

Communicator* add(std::unique_ptr<Communicator> made) {
  Registry& all = registry();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  Communicator* here = made.get();
  all.by_handle[here->handle] = std::move(made);
  all.generation.fetch_add(1, std::memory_order_release);
  return here;
}

std::unique_ptr<Communicator> take(ncclComm_t handle) {
  Registry& all = registry();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  const auto found = all.by_handle.find(handle);
  if (found == all.by_handle.end()) return nullptr;
  std::unique_ptr<Communicator> taken = std::move(found->second);
  all.by_handle.erase(found);
  all.generation.fetch_add(1, std::memory_order_release);
  return taken;
}

void keep(std::unique_ptr<Communicator> taken) {
  Registry& all = registry();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  all.kept.push_back(std::move(taken));
}

}  // namespace teccl::nccl
