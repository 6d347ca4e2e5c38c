// The kernel on a GPU. Plain C++ outside, so that only gpu.cu needs nvcc.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "prepared.hpp"

namespace teccl::device {

// What the CUDA runtime said, and of what.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// More threadblocks than the GPU holds at once.
struct TooManyBlocks : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How many GPUs this process sees; 0 with `why` where there is none.
int gpus(std::string& why);

// Memory of a GPU, all zero at first.
class GpuMemory {
 public:
  GpuMemory(int device, std::size_t bytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* begin() const { return begin_; }
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from, std::size_t bytes);
  void download(void* to, std::size_t bytes) const;

 private:
  int device_;
  std::size_t bytes_;
  std::byte* begin_ = nullptr;
};

// Seconds that the GPU takes to copy so many bytes within its memory, the best of `times`.
double device_copy_seconds(int device, std::size_t bytes, int times);

using IpcHandle = std::array<char, 64>;

class GpuRun {
 public:
  // All ranks of `prepared` on one GPU; or, where it holds one rank's blocks, that rank: then connect() comes first.
  // Throws TooManyBlocks, with the arithmetic, and CudaError.
  GpuRun(Prepared prepared, int device, bool measure);
  ~GpuRun();
  GpuRun(const GpuRun&) = delete;
  GpuRun& operator=(const GpuRun&) = delete;

  IpcHandle handle() const;                             // of this rank's arena, for its peers
  void connect(const std::vector<IpcHandle>& handles);  // every rank's, by rank

  struct Outcome {
    double seconds;                    // between events around the kernel
    std::vector<std::string> blocked;  // empty: every threadblock finished and every message was taken
  };
  // Runs the program once on a stream (a cudaStream_t) and waits for it. After a run that was blocked it cannot again.
  Outcome run(void* stream, double timeout);

  std::vector<StepTime> times() const;  // of the last run, if measured
  const Prepared& prepared() const { return prepared_; }
  int threads() const { return threads_; }  // of a threadblock

 private:
  struct Tables;

  Prepared prepared_;
  int device_, threads_ = 0;
  bool single_;  // one rank of several processes
  std::vector<std::unique_ptr<GpuMemory>> arenas_;  // by rank; null: a peer's
  std::vector<void*> opened_;
  std::unique_ptr<Tables> tables_;
  std::uint64_t runs_ = 0;
  bool broken_ = false;
};

}  // namespace teccl::device
