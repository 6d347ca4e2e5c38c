#include "gpu.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "interpret.hpp"

namespace teccl::device {
namespace {

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not the next call's
  throw CudaError(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

// Cooperative: all threadblocks are resident, so that one that waits never keeps out the one that it waits for.
__global__ void __launch_bounds__(512) interpret(const __grid_constant__ Job job) {
  Interpreter(job, static_cast<std::int32_t>(blockIdx.x), Group{}).run();
}

// The largest threadblock with which all of them are resident.
int threads_for(int device, std::size_t blocks) {
  int multiprocessors = 0, cooperative = 0, most = 0, each = 0;
  must(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  must(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device), "cooperative launch");
  if (!cooperative) throw CudaError("CUDA: this GPU cannot launch cooperatively");
  for (int threads : {512, 256, 128, 64}) {
    must(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, interpret, threads, 0), "occupancy");
    if (static_cast<std::size_t>(each) * static_cast<std::size_t>(multiprocessors) >= blocks) return threads;
    most = std::max(most, each);
  }
  throw TooManyBlocks(std::to_string(blocks) + " threadblocks must be on the GPU at once, and it holds " +
                      std::to_string(multiprocessors) + " multiprocessors × " + std::to_string(most) + " = " +
                      std::to_string(multiprocessors * most));
}

template <class T>
std::unique_ptr<GpuMemory> table(int device, const std::vector<T>& rows) {
  auto memory = std::make_unique<GpuMemory>(device, std::max<std::size_t>(1, rows.size() * sizeof(T)));
  if (!rows.empty()) memory->upload(rows.data(), rows.size() * sizeof(T));
  return memory;
}

template <class T>
T* in(const std::unique_ptr<GpuMemory>& memory) {
  return memory ? reinterpret_cast<T*>(memory->begin()) : nullptr;
}

class Event {
 public:
  Event() { must(cudaEventCreate(&event_), "event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { must(cudaEventRecord(event_, stream), "event"); }
  double seconds_since(const Event& earlier) const {
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "event");
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cudaEvent_t event_;
};

}  // namespace

int gpus(std::string& why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    int driver = 0;
    const bool none = cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
    why = none ? "there is no NVIDIA driver" : cudaGetErrorString(error);
    return 0;
  }
  if (count == 0) why = "none is visible";
  return count;
}

GpuMemory::GpuMemory(int device, std::size_t bytes) : device_(device), bytes_(bytes) {
  must(cudaSetDevice(device), "device");
  void* begin = nullptr;
  must(cudaMalloc(&begin, std::max<std::size_t>(bytes, 1)), "memory");
  begin_ = static_cast<std::byte*>(begin);
  cudaError_t error = cudaMemset(begin, 0, bytes);
  if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);  // whatever stream or process uses it next
  if (error != cudaSuccess) {
    cudaFree(begin);
    must(error, "memory");
  }
}

GpuMemory::~GpuMemory() {
  cudaSetDevice(device_);
  cudaFree(begin_);
}

void GpuMemory::upload(const void* from, std::size_t bytes) {
  must(cudaMemcpy(begin_, from, bytes, cudaMemcpyHostToDevice), "copy to the GPU");
}

void GpuMemory::download(void* to, std::size_t bytes) const {
  must(cudaMemcpy(to, begin_, bytes, cudaMemcpyDeviceToHost), "copy from the GPU");
}

double device_copy_seconds(int device, std::size_t bytes, int times) {
  const GpuMemory from(device, bytes), to(device, bytes);
  Event start, end;
  double best = 0;
  for (int time = 0; time <= times; ++time) {  // the first warms up
    start.record(nullptr);
    must(cudaMemcpyAsync(to.begin(), from.begin(), bytes, cudaMemcpyDeviceToDevice, nullptr), "copy");
    end.record(nullptr);
    must(cudaStreamSynchronize(nullptr), "copy");
    const double seconds = end.seconds_since(start);
    if (time == 1 || (time > 1 && seconds < best)) best = seconds;
  }
  return best;
}

struct GpuRun::Tables {
  std::unique_ptr<GpuMemory> steps, blocks, lines, ranks, signalled, finished, stop, stuck, times;
};

GpuRun::GpuRun(Prepared prepared, int device, bool measure)
    : prepared_(std::move(prepared)), device_(device), tables_(std::make_unique<Tables>()) {
  must(cudaSetDevice(device), "device");
  threads_ = threads_for(device, prepared_.blocks.size());
  std::size_t here = 0;
  std::vector<std::byte*> begin;
  const std::size_t ranks = prepared_.ranks.size();
  std::vector<bool> mine(ranks, false);
  for (const FlatBlock& block : prepared_.blocks) mine[static_cast<std::size_t>(block.rank)] = true;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const bool local = mine[rank] || prepared_.only < 0;
    arenas_.push_back(local ? std::make_unique<GpuMemory>(device, prepared_.arenas[rank].bytes) : nullptr);
    begin.push_back(local ? arenas_.back()->begin() : nullptr);
    here += local;
  }
  single_ = here < ranks;
  const std::size_t blocks = prepared_.blocks.size();
  tables_->steps = table(device, prepared_.steps);
  tables_->blocks = table(device, prepared_.blocks);
  tables_->ranks = table(device, prepared_.ranks);
  tables_->signalled = std::make_unique<GpuMemory>(device, blocks * sizeof(std::uint64_t));
  tables_->finished = std::make_unique<GpuMemory>(device, ranks * sizeof(std::uint64_t));
  tables_->stop = std::make_unique<GpuMemory>(device, sizeof(std::uint64_t));
  tables_->stuck = std::make_unique<GpuMemory>(device, blocks * sizeof(Stuck));
  if (measure) tables_->times = std::make_unique<GpuMemory>(device, prepared_.steps.size() * sizeof(StepTime));
  if (!single_) tables_->lines = table(device, prepared_.lines_in(begin));
}

GpuRun::~GpuRun() {
  cudaSetDevice(device_);
  for (void* memory : opened_) cudaIpcCloseMemHandle(memory);
}

IpcHandle GpuRun::handle() const {
  IpcHandle handle{};
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof handle);
  const auto mine = std::find_if(arenas_.begin(), arenas_.end(), [](const auto& arena) { return arena != nullptr; });
  cudaIpcMemHandle_t native;
  must(cudaIpcGetMemHandle(&native, (*mine)->begin()), "share memory");
  std::memcpy(handle.data(), &native, sizeof native);
  return handle;
}

void GpuRun::connect(const std::vector<IpcHandle>& handles) {
  if (handles.size() != arenas_.size())
    throw std::invalid_argument(std::to_string(handles.size()) + " handles, and the program has " +
                                std::to_string(arenas_.size()) + " ranks");
  must(cudaSetDevice(device_), "device");
  std::vector<std::byte*> begin(arenas_.size(), nullptr);
  for (std::size_t rank = 0; rank < arenas_.size(); ++rank)
    if (arenas_[rank]) begin[rank] = arenas_[rank]->begin();
  for (int peer : prepared_.peers) {
    const auto rank = static_cast<std::size_t>(peer);
    if (begin[rank]) continue;
    cudaIpcMemHandle_t native;
    std::memcpy(&native, handles[rank].data(), sizeof native);
    void* memory = nullptr;
    must(cudaIpcOpenMemHandle(&memory, native, cudaIpcMemLazyEnablePeerAccess), "a peer's memory");
    opened_.push_back(memory);
    begin[rank] = static_cast<std::byte*>(memory);
  }
  tables_->lines = table(device_, prepared_.lines_in(begin));
}

GpuRun::Outcome GpuRun::run(void* stream_of_user, double timeout) {
  if (broken_) throw std::invalid_argument("an earlier run was blocked: messages are left over; prepare a new one");
  if (!tables_->lines) throw std::invalid_argument("the other processes' memory is not connected");
  if (prepared_.blocks.empty()) return {0, prepared_.lines_of({})};
  must(cudaSetDevice(device_), "device");
  auto stream = static_cast<cudaStream_t>(stream_of_user);
  Job job = prepared_.job();
  job.steps = in<const FlatStep>(tables_->steps);
  job.blocks = in<const FlatBlock>(tables_->blocks);
  job.lines = in<const FlatLine>(tables_->lines);
  job.ranks = in<const RankMemory>(tables_->ranks);
  job.signalled = in<std::uint64_t>(tables_->signalled);
  job.finished = in<std::uint64_t>(tables_->finished);
  job.stop = in<std::uint64_t>(tables_->stop);
  job.stuck = in<Stuck>(tables_->stuck);
  job.times = in<StepTime>(tables_->times);
  job.run = runs_++;
  job.timeout_ns = static_cast<std::uint64_t>(timeout * 1e9);
  job.whole_system = single_;

  Event start, end;
  must(cudaMemsetAsync(job.stuck, 0, tables_->stuck->bytes(), stream), "clear");
  start.record(stream);
  void* arguments[] = {&job};
  broken_ = true;  // unless it goes well
  must(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(interpret), dim3(static_cast<unsigned>(job.nblocks)),
                                   dim3(static_cast<unsigned>(threads_)), arguments, 0, stream),
       "launch");
  end.record(stream);
  must(cudaStreamSynchronize(stream), "kernel");
  std::vector<Stuck> stuck(prepared_.blocks.size());
  tables_->stuck->download(stuck.data(), stuck.size() * sizeof(Stuck));
  Outcome outcome{end.seconds_since(start), prepared_.lines_of(stuck)};
  broken_ = !outcome.blocked.empty();
  return outcome;
}

std::vector<StepTime> GpuRun::times() const {
  std::vector<StepTime> times(prepared_.steps.size());
  if (tables_->times && !times.empty()) tables_->times->download(times.data(), times.size() * sizeof(StepTime));
  return times;
}

}  // namespace teccl::device
