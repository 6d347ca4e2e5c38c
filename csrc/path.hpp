// How one transfer occupies the links of its path: cut-through, head and tail both respecting the link before.
// Units everywhere: µs and bytes; 1 GB/s = 1e3 bytes/µs.
#pragma once

#include <algorithm>
#include <cstddef>

namespace teccl {

struct LinkFigures {
  double bandwidth_GBps;
  double alpha_us;
};

// Time for which `bytes` occupy a link (β).
inline double occupancy_us(double bytes, const LinkFigures& link) { return bytes / (1e3 * link.bandwidth_GBps); }

// A transfer of `bytes` that starts at s occupies path[k] during [s + offset[k], s + offset[k] + occupancy_us(k)].
// Data streams at the rate of the slowest link so far: its tail leaves link k at Σα before k + the longest occupancy
// so far. A fast link behind a slow one carries it at a fraction of its bandwidth; what that takes of the link is
// booked as one stretch at full bandwidth that ends with the tail:
//   offset_k = Σ_{j<k} α_j + max_{j≤k} occupancy_j − occupancy_k
// Fills offset[0 … hops−1] and returns arrival − s = Σα + bytes / min bandwidth. O(hops).
inline double cut_through(const LinkFigures* path, std::size_t hops, double bytes, double* offset) {
  double alpha = 0, longest = 0;
  for (std::size_t k = 0; k < hops; ++k) {
    const double occupancy = occupancy_us(bytes, path[k]);
    longest = std::max(longest, occupancy);
    offset[k] = alpha + longest - occupancy;
    alpha += path[k].alpha_us;
  }
  return alpha + longest;
}

}  // namespace teccl
