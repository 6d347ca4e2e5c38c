// Spanning trees for every chunk, packed so that the busiest link has little to carry.
#pragma once

#include <cstdint>
#include <vector>

#include "network.hpp"

namespace teccl {

struct PackingOptions {
  double depth_weight = 0;  // what time from root to leaf counts against load
  int rounds = 10;          // times that every tree is torn out and grown anew, about
  double enough_us = 0;     // stop once no link carries more than this
  std::uint64_t seed = 0;
};

struct Packing {
  std::vector<ChunkSend> sends;  // chunk by chunk, in an order in which data flows, timed as if links were not shared
  double busiest_us = 0;         // the longest time for which a link is occupied
};

// One tree per chunk, on the paths of `network`: out of the origin of a copied chunk to all who want it; into the one
// GPU that wants a reduced one from all that have a part; for a reduced chunk that several want, into a GPU of our
// choice and out of it again. Trees grow by Prim's rule, some mended for
// arcs that have a direction, under link prices that rise exponentially with load
// (Plotkin, Shmoys and Tardos, Math. of OR 20, 1995) and trees across the busiest links are torn out and grown anew
// until `rounds` are over. Throws std::invalid_argument when a GPU cannot be reached.
// O(rounds · chunks · (paths · path length + GPUs²)).
Packing pack_trees(const Network& network, const std::vector<DemandedChunk>& chunks, const PackingOptions& options);

}  // namespace teccl
