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
// The head reaches a link α after it entered the link before, and the tail leaves it no earlier than α after it
// left the link before, so that a fast link behind a slow one starts late enough to stay busy to its end:
//   start_k = max(start_{k−1} + α_{k−1},  end_{k−1} + α_{k−1} − occupancy_k)
// Fills offset[0 … hops−1] and returns arrival − s = Σα + bytes / min bandwidth. O(hops).
inline double cut_through(const LinkFigures* path, std::size_t hops, double bytes, double* offset) {
  double start = 0, end = 0, alpha = 0;  // of the link before
  for (std::size_t k = 0; k < hops; ++k) {
    const double occupancy = occupancy_us(bytes, path[k]);
    offset[k] = k == 0 ? 0 : std::max(start + alpha, end + alpha - occupancy);
    start = offset[k];
    end = start + occupancy;
    alpha = path[k].alpha_us;
  }
  return end + alpha;
}

}  // namespace teccl
