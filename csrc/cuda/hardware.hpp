// What the kernel needs of the machine, twice: of a GPU, where a threadblock is a group of threads in warps, and of the
// host, where it is one thread.
#pragma once

#include <cstdint>

#ifndef __CUDACC__
#include <chrono>
#include <thread>
#endif

#ifdef __CUDACC__
#define TECCL_DEVICE __device__ __forceinline__
#define TECCL_DEVICE_CALL __device__ __noinline__
#else
#define TECCL_DEVICE inline
#define TECCL_DEVICE_CALL inline
#endif

namespace teccl::device {

#ifdef __CUDACC__

// Acquire and release among all threads of this GPU, or of the whole system (PTX memory model, sm_70 and later).
TECCL_DEVICE std::uint64_t load_acquire(const std::uint64_t* p, bool whole_system) {
  std::uint64_t value;
  if (whole_system)
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  else
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
TECCL_DEVICE void store_release(std::uint64_t* p, std::uint64_t value, bool whole_system) {
  if (whole_system)
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
  else
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}
// One whole word, in no order with any other.
TECCL_DEVICE std::uint64_t load_relaxed(const std::uint64_t* p) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
TECCL_DEVICE void store_relaxed(std::uint64_t* p, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}
TECCL_DEVICE std::uint64_t add_one(std::uint64_t* p) {  // acquire and release; what was there before
  __threadfence();
  const auto before = atomicAdd(reinterpret_cast<unsigned long long*>(p), 1ull);
  __threadfence();
  return before;
}
TECCL_DEVICE std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
TECCL_DEVICE void pause(unsigned) {}

struct Group {
  TECCL_DEVICE unsigned rank() const { return threadIdx.x; }
  TECCL_DEVICE unsigned size() const { return blockDim.x; }
  TECCL_DEVICE bool any(bool mine) const { return __syncthreads_or(mine); }  // and everyone is here, writes seen
  // Half warps: a half moves one LL128 line, 8 bytes a lane.
  static constexpr unsigned kLanes = 16;
  TECCL_DEVICE unsigned lane() const { return threadIdx.x % kLanes; }
  TECCL_DEVICE unsigned half() const { return threadIdx.x / kLanes; }
  TECCL_DEVICE unsigned halves() const { return blockDim.x / kLanes; }
  TECCL_DEVICE unsigned lanes_mask() const { return 0xffffu << (threadIdx.x % 32 / kLanes * kLanes); }
  TECCL_DEVICE bool all_lanes(bool mine) const { return __all_sync(lanes_mask(), mine); }  // and everyone is here
};

#else

inline std::uint64_t load_acquire(const std::uint64_t* p, bool) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline void store_release(std::uint64_t* p, std::uint64_t value, bool) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
inline std::uint64_t load_relaxed(const std::uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline void store_relaxed(std::uint64_t* p, std::uint64_t value) { __atomic_store_n(p, value, __ATOMIC_RELAXED); }
inline std::uint64_t add_one(std::uint64_t* p) { return __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL); }
inline std::uint64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}
inline void pause(unsigned spins) {  // far more threadblocks than cores
  if (spins < 64) std::this_thread::yield();
  else std::this_thread::sleep_for(std::chrono::microseconds(20));
}

struct Group {
  unsigned rank() const { return 0; }
  unsigned size() const { return 1; }
  bool any(bool mine) const { return mine; }
  static constexpr unsigned kLanes = 1;
  unsigned lane() const { return 0; }
  unsigned half() const { return 0; }
  unsigned halves() const { return 1; }
  bool all_lanes(bool mine) const { return mine; }
};

#endif

}  // namespace teccl::device
