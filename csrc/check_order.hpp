// Happens-before, by vector clocks: within one rank, and across ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "check_wiring.hpp"

namespace teccl {

// Order within one rank: program order and dependencies.
class LocalOrder {
 public:
  // `steps`: the rank's, as one execution ended them. Throws std::length_error beyond 2^27 clock entries.
  LocalOrder(const Wiring& wiring, int rank, const std::vector<std::int32_t>& steps);

  // Whether `before` has ended when `after`, a step of another threadblock of the rank, begins.
  bool ordered(std::int32_t before, std::int32_t after) const;

 private:
  const Wiring& wiring_;
  std::int32_t first_step_;
  std::int32_t first_tb_;
  std::size_t width_;
  std::vector<std::int32_t> clock_of_;  // per step of the rank: which clock holds at its begin
  std::vector<std::int32_t> clocks_;    // width_ entries each: steps known to have ended, as one past the last
};

// Order through messages too, for pairs of steps. What a receive touches comes after its sender's step began, and
// after it ended where that step is one transfer; a receive ends after its send ended.
class GlobalOrder {
 public:
  GlobalOrder(const Wiring& wiring, const std::vector<std::int32_t>& order) : wiring_(wiring), order_(order) {}

  struct Pair {
    std::int32_t before;
    std::int32_t after;
  };
  // For each pair, whether `before` has ended when `after` touches its data.
  std::vector<bool> ordered(const std::vector<Pair>& pairs) const;

 private:
  const Wiring& wiring_;
  const std::vector<std::int32_t>& order_;
};

}  // namespace teccl
