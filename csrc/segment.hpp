// A rank's memory that the other ranks of its host see: what it publishes, and how far it is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace teccl {

// A view of shared memory that began as zeros. Work goes in rounds, numbered from 1, which take the two banks in turns:
// a slot's flag says in which round the owner has filled it, and `finished` up to which round the owner has read all
// that it will of the others' slots. A slot may be filled again once everyone has finished the round before the last.
class Segment {
 public:
  static constexpr std::size_t most_slots = 1024;

  struct alignas(64) Flag {
    std::atomic<std::uint32_t> round;
    std::uint64_t bytes;
  };
  struct alignas(64) Header {
    std::atomic<std::uint32_t> finished;
    std::atomic<std::uint32_t> waiters;  // processes asleep on a word of this segment, or about to be
    std::atomic<std::uint32_t> broken;   // the owner has given up
  };

  Segment(std::byte* begin, std::size_t bytes);  // throws std::invalid_argument for fewer than bytes_for(1)
  static std::size_t bytes_for(std::size_t bank_bytes) { return sizeof(Header) + 2 * (flags_bytes + bank_bytes); }

  Header& header() const { return *reinterpret_cast<Header*>(begin_); }
  Flag& flag(std::uint32_t round, std::size_t slot) const {
    return reinterpret_cast<Flag*>(begin_ + sizeof(Header) + (round % 2) * flags_bytes)[slot];
  }
  std::byte* bank(std::uint32_t round) const {
    return begin_ + sizeof(Header) + 2 * flags_bytes + (round % 2) * bank_bytes_;
  }
  std::size_t bank_bytes() const { return bank_bytes_; }

  // Store `value` in a word of this segment and wake whoever sleeps on it.
  void tell(std::atomic<std::uint32_t>& word, std::uint32_t value) const;
  // Sleep until the word is told or `milliseconds` have passed, unless it is no longer `seen`.
  void sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t seen, int milliseconds) const;

 private:
  static constexpr std::size_t flags_bytes = most_slots * sizeof(Flag);
  std::byte* begin_;
  std::size_t bank_bytes_;
};

}  // namespace teccl
