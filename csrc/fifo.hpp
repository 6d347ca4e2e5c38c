// The FIFO of one connection: a ring of message slots between one producer and one consumer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace teccl {

// Single producer, single consumer, wait-free. A message stays in its slot until the consumer pops it, so the slots
// are the connection's credits: a producer finds the ring full until the far end has consumed. A message may also lie
// elsewhere (`lend`), in memory that stays as it is until it is popped: the slot is taken, but no byte is copied.
class Fifo {
 public:
  Fifo(std::size_t slots, std::size_t slot_bytes)
      : slot_bytes_(slot_bytes), messages_(slots), memory_(new std::byte[slots * slot_bytes]) {}

  std::size_t slots() const { return messages_.size(); }
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::byte* slot(std::size_t index) const { return memory_.get() + index * slot_bytes_; }

  // Producer's side.
  bool full() const {
    return pushed_.load(std::memory_order_relaxed) - popped_.load(std::memory_order_acquire) == slots();
  }
  std::byte* back() const { return slot(pushed_.load(std::memory_order_relaxed) % slots()); }
  void push(std::size_t bytes) { lend(back(), bytes); }
  void lend(std::byte* message, std::size_t bytes) {
    const auto pushed = pushed_.load(std::memory_order_relaxed);
    messages_[pushed % slots()] = {message, bytes};
    pushed_.store(pushed + 1, std::memory_order_release);
  }

  // Consumer's side.
  bool empty() const {
    return pushed_.load(std::memory_order_acquire) == popped_.load(std::memory_order_relaxed);
  }
  const std::byte* front() const { return at(popped_.load(std::memory_order_relaxed)).begin; }
  void pop() { popped_.store(popped_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  // Messages since the beginning; message k takes slot k mod slots().
  std::uint64_t pushed() const { return pushed_.load(std::memory_order_acquire); }
  std::uint64_t popped() const { return popped_.load(std::memory_order_acquire); }
  struct Message {
    std::byte* begin;
    std::size_t bytes;
  };
  const Message& at(std::uint64_t message) const { return messages_[message % slots()]; }

 private:
  std::size_t slot_bytes_;
  std::vector<Message> messages_;
  std::unique_ptr<std::byte[]> memory_;  // pages are touched only as far as messages reach
  alignas(64) std::atomic<std::uint64_t> pushed_{0};
  alignas(64) std::atomic<std::uint64_t> popped_{0};
};

}  // namespace teccl
