// Host memory in the place of a GPU: the driver calls that the interposer and the driver program make, and NVRTC.
// Streams are threads, so that what is not ordered by a stream happens in any order.
#include "standin_cuda.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "reduction_kernel.h"

using Work = std::function<void()>;

struct CUstream_st;
std::mutex streams_mutex;
std::set<CUstream_st*>& streams = *new std::set<CUstream_st*>;

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  bool busy = false, closing = false;
  bool capturing = false;
  unsigned long long capture = 0;
  std::vector<Work> captured;
  std::thread thread;

  CUstream_st() : thread([this] { run(); }) {
    const std::lock_guard<std::mutex> lock(streams_mutex);
    streams.insert(this);
  }
  ~CUstream_st() {
    {
      const std::lock_guard<std::mutex> lock(streams_mutex);
      streams.erase(this);
    }
    {
      const std::lock_guard<std::mutex> lock(mutex);
      closing = true;
    }
    changed.notify_all();
    thread.join();
  }
  void drain() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !busy; });
  }
  void run() {
    const char* wanted = std::getenv("STANDIN_JITTER");
    unsigned random = static_cast<unsigned>(getpid()) * 2654435761u;
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return closing || !queue.empty(); });
      if (queue.empty()) return;
      Work work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      random = random * 1664525u + 1013904223u;
      if (wanted != nullptr && (random >> 24) < 64) usleep(random >> 24);
      work();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

struct CUctx_st {
  int device;
};
struct CUfunc_st {
  bool scales;
};
struct Graph {
  std::vector<Work> works;
};

namespace {

constexpr int devices = 16;
CUctx_st contexts[devices];
thread_local std::vector<CUcontext> stack;
thread_local int capture_mode = 0;  // global: allocating while any stream is captured is an error
std::atomic<int> captures{0};
std::atomic<unsigned long long> capture_ids{1};
CUfunc_st functions[2] = {{false}, {true}};

CUstream_st& stream_of(cudaStream_t stream) {
  static CUstream_st& null_stream = *new CUstream_st;
  return stream == nullptr ? null_stream : *stream;
}

}  // namespace

namespace standin {

void misuse(const char* what) {
  std::fprintf(stderr, "stand-in: misuse: %s\n", what);
  std::fflush(stderr);
  std::abort();
}

void enqueue(cudaStream_t handle, Work work) {
  CUstream_st& stream = stream_of(handle);
  const std::lock_guard<std::mutex> lock(stream.mutex);
  if (stream.capturing) {
    stream.captured.push_back(std::move(work));
  } else {
    stream.queue.push_back(std::move(work));
    stream.changed.notify_all();
  }
}

int current_device() { return stack.empty() ? -1 : stack.back()->device; }

}  // namespace standin

extern "C" {

CUresult cuInit(unsigned) { return 0; }
CUresult cuDeviceGet(CUdevice* device, int number) {
  if (number < 0 || number >= devices) return 101;
  *device = number;
  return 0;
}
CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 4 : 9;
  return 0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  contexts[device].device = device;
  *context = &contexts[device];
  return 0;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  stack.push_back(context);
  return 0;
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (stack.empty()) standin::misuse("no context to pop");
  *context = stack.back();
  stack.pop_back();
  return 0;
}
CUresult cuMemAlloc_v2(CUdeviceptr* memory, size_t size) {
  if (stack.empty()) return 201;
  if (captures > 0 && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) standin::misuse("memory allocated in a capture");
  const char* limit = std::getenv("STANDIN_MEMORY");
  if (limit != nullptr && size > std::strtoull(limit, nullptr, 10)) return 2;
  void* found = nullptr;
  if (posix_memalign(&found, 256, size) != 0) return 2;
  std::memset(found, 0xCD, size);
  *memory = reinterpret_cast<CUdeviceptr>(found);
  return 0;
}
CUresult cuMemFree_v2(CUdeviceptr memory) {
  {  // as on a GPU, freeing waits for all that is enqueued
    const std::lock_guard<std::mutex> lock(streams_mutex);
    for (CUstream_st* stream : streams) stream->drain();
  }
  std::free(reinterpret_cast<void*>(memory));
  return 0;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, cudaStream_t stream) {
  if (stack.empty()) return 201;
  const char *low = reinterpret_cast<const char*>(std::min(to, from)),
             *high = reinterpret_cast<const char*>(std::max(to, from));
  if (low + size > high) standin::misuse("a copy between places that overlap");
  standin::enqueue(stream,
                   [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size); });
  return 0;
}
CUresult cuStreamCreate(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return 0;
}
CUresult cuStreamSynchronize(cudaStream_t handle) {
  CUstream_st& stream = stream_of(handle);
  std::unique_lock<std::mutex> lock(stream.mutex);
  if (stream.capturing) standin::misuse("a captured stream synchronized");
  stream.changed.wait(lock, [&] { return stream.queue.empty() && !stream.busy; });
  return 0;
}
CUresult cuStreamDestroy_v2(cudaStream_t stream) {
  delete stream;
  return 0;
}
CUresult cuStreamQuery(cudaStream_t handle) {
  CUstream_st& stream = stream_of(handle);
  const std::lock_guard<std::mutex> lock(stream.mutex);
  return stream.queue.empty() && !stream.busy ? 0 : CUDA_ERROR_NOT_READY;
}
CUresult cuStreamGetCaptureInfo_v2(cudaStream_t handle, int* status, unsigned long long* id, void*, const void*,
                                   size_t*) {
  CUstream_st& stream = stream_of(handle);
  const std::lock_guard<std::mutex> lock(stream.mutex);
  *status = stream.capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : 0;
  if (stream.capturing) *id = stream.capture;
  return 0;
}
CUresult cuStreamBeginCapture_v2(cudaStream_t stream, int) {
  const std::lock_guard<std::mutex> lock(stream->mutex);
  stream->capturing = true;
  stream->capture = capture_ids++;
  ++captures;
  return 0;
}
CUresult cuStreamEndCapture(cudaStream_t stream, void** graph) {
  const std::lock_guard<std::mutex> lock(stream->mutex);
  stream->capturing = false;
  *graph = new Graph{std::move(stream->captured)};
  stream->captured.clear();
  --captures;
  return 0;
}
CUresult cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = graph;
  return 0;
}
CUresult cuGraphLaunch(void* executable, cudaStream_t stream) {
  for (const Work& work : static_cast<Graph*>(executable)->works) standin::enqueue(stream, work);
  return 0;
}
CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return 0;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (std::strcmp(static_cast<const char*>(image), "stand-in cubin") != 0) return 200;
  *module = nullptr;
  return stack.empty() ? 201 : 0;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = &functions[std::strcmp(name, "teccl_scale") == 0];
  return 0;
}
CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        cudaStream_t stream, void** arguments, void**) {
  if (stack.empty()) return 201;
  void* out = *static_cast<void**>(arguments[0]);
  const void* a = *static_cast<const void**>(arguments[1]);
  if (function->scales) {
    const auto count = *static_cast<unsigned long long*>(arguments[2]);
    const int type = *static_cast<int*>(arguments[3]), n = *static_cast<int*>(arguments[4]);
    standin::enqueue(stream, [=] { teccl_kernel::scale_any(out, a, count, type, n, 0, 1); });
  } else {
    const void* b = *static_cast<const void**>(arguments[2]);
    const auto count = *static_cast<unsigned long long*>(arguments[3]);
    const int type = *static_cast<int*>(arguments[4]), op = *static_cast<int*>(arguments[5]);
    standin::enqueue(stream, [=] { teccl_kernel::combine_any(out, a, b, count, type, op, 0, 1); });
  }
  return 0;
}

int nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = nullptr;
  return std::strstr(source, "teccl_combine") == nullptr;
}
int nvrtcDestroyProgram(nvrtcProgram*) { return 0; }
int nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return std::getenv("STANDIN_NO_COMPILER") != nullptr; }
int nvrtcGetCUBINSize(nvrtcProgram, size_t* size) {
  *size = sizeof "stand-in cubin";
  return 0;
}
int nvrtcGetCUBIN(nvrtcProgram, char* cubin) {
  std::strcpy(cubin, "stand-in cubin");
  return 0;
}

}  // extern "C"
