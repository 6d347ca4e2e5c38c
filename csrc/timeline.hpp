// When each link is busy: where a transfer fits in, at the earliest or at the latest.
#pragma once

#include <vector>

#include "network.hpp"

namespace teccl {

class Timeline {
 public:
  explicit Timeline(std::size_t links) : busy_(links) {}

  // The least start ≥ from at which every link of the path is free as the transfer crosses it. O(path · gaps passed).
  double earliest(const DirectPath& path, const PathTiming& timing, double from) const;

  // The greatest start ≤ until of that kind; may be negative.
  double latest(const DirectPath& path, const PathTiming& timing, double until) const;

  void add(const DirectPath& path, const PathTiming& timing, double start);
  void remove(const DirectPath& path, const PathTiming& timing, double start);

 private:
  struct Interval {
    double begin;
    double end;
  };
  using Busy = std::vector<Interval>;  // disjoint, in order, with gaps that are no rounding

  std::vector<Busy> busy_;  // per link
};

}  // namespace teccl
