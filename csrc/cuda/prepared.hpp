// A program made ready for the kernel: checked, and flattened into tables; where they lie is the backend's business.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "../element.hpp"
#include "../interpreter.hpp"
#include "job.hpp"

namespace teccl::device {

// The memory for connections that a rank holds: the slots and counts by which it receives, and the counts of what others
// took from it; to begin with, all zero. The same on every rank that asks, so that a peer's can be found in its memory.
struct Arena {
  std::size_t bytes = 0;
};

struct Prepared {
  // Blocks of `only` (−1: of every rank). Throws as require_executable does.
  Prepared(const Setting& setting, ElementType type, Reduction reduction, const std::vector<Memory>& memory, int only);

  // The tables' connections with every rank's arena where `begin` says (null where no block here needs it).
  std::vector<FlatLine> lines_in(const std::vector<std::byte*>& begin) const;
  // A job without tables: a backend fills in the pointers.
  Job job() const;
  // A line for each block that gave up, or for messages that nobody takes.
  std::vector<std::string> lines_of(const std::vector<Stuck>& stuck) const;
  // (rank, threadblock, step, begin, end) in µs, counted from the first; steps that never ran are left out.
  using Timed = std::tuple<std::int32_t, std::int32_t, std::int32_t, double, double>;
  std::vector<Timed> named(const std::vector<StepTime>& times) const;
  std::size_t fifo_bytes() const;

  Setting setting;
  ElementType type;
  Reduction reduction;
  Protocol protocol;
  int only;
  std::vector<FlatStep> steps;
  std::vector<FlatBlock> blocks;
  std::vector<RankMemory> ranks;
  std::vector<Arena> arenas;  // by rank
  std::vector<int> peers;     // ranks whose arenas the blocks here touch

 private:
  struct Line {
    Connection connection;
    std::size_t slots_at, pushed_at, popped_at;  // in the receiver's arena, and the last in the sender's
    std::uint64_t slot_bytes, sent, taken;
  };
  std::vector<Line> lines_;
};

}  // namespace teccl::device
