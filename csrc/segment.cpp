#include "segment.hpp"

#include <climits>
#include <stdexcept>
#include <string>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#else
#include <chrono>
#include <thread>
#endif

namespace teccl {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "words are shared between processes");
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "the system waits on the word itself");

Segment::Segment(std::byte* begin, std::size_t bytes) : begin_(begin) {
  if (bytes < bytes_for(64)) throw std::invalid_argument("a segment of " + std::to_string(bytes) + " bytes is too small");
  bank_bytes_ = (bytes - bytes_for(0)) / 2 / 64 * 64;
}

void Segment::tell(std::atomic<std::uint32_t>& word, std::uint32_t value) const {
  word.store(value, std::memory_order_seq_cst);
  // A sleeper counts itself before it looks at the word a last time: either it sees the value, or this sees it.
  if (header().waiters.load(std::memory_order_seq_cst) == 0) return;
#ifdef __linux__
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}

void Segment::sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t seen, int milliseconds) const {
#ifdef __linux__
  header().waiters.fetch_add(1, std::memory_order_seq_cst);
  const timespec limit{milliseconds / 1000, milliseconds % 1000 * 1000000L};
  syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
  header().waiters.fetch_sub(1, std::memory_order_seq_cst);
#else
  static_cast<void>(milliseconds);
  if (word.load(std::memory_order_acquire) == seen) std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

}  // namespace teccl
