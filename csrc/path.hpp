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
// The head crosses every link in its α, and the tail leaves a link no earlier than α after it left the link before, so
// that a fast link behind a slow one is occupied late, to its end, and delays nobody behind it:
//   end_k = max(Σ_{j<k} α_j + occupancy_k,  end_{k−1} + α_{k−1}),  start_k = end_k − occupancy_k
// Fills offset[0 … hops−1] and returns arrival − s = Σα + bytes / min bandwidth. O(hops).
inline double cut_through(const LinkFigures* path, std::size_t hops, double bytes, double* offset) {
  double head = 0, tail = 0;  // when they reach the link
  for (std::size_t k = 0; k < hops; ++k) {
    const double occupancy = occupancy_us(bytes, path[k]);
    offset[k] = std::max(head, tail - occupancy);
    head += path[k].alpha_us;
    tail = offset[k] + occupancy + path[k].alpha_us;
  }
  return tail;
}

}  // namespace teccl
