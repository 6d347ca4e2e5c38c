// Ruin and recreate: chunks taken out of a schedule and put back where the links have gaps.
#pragma once

#include <cstdint>
#include <vector>

#include "network.hpp"

namespace teccl {

struct RerouteOptions {
  double target_us = 0;  // chunks that arrive later are late
  int moves = 1000;
  bool regrow = true;  // whether a copied chunk may get another tree
  std::uint64_t seed = 0;
};

// Improves `sends` in place: a late chunk, and sometimes others, are torn out of the timelines of the links and put
// back one after the other, on their old trees or on trees of earliest arrival (Prim's rule on the timelines, links
// priced by load), every send at the first gap that its data and its path leave it (Schrimpf et al., J. Comput. Phys.
// 159, 2000). What makes late chunks later, in the sum of squares, is undone. The sends must be feasible
// and in an order in which data flows. Returns the finish of the best schedule met, which never is later than before.
// O(moves · (sends per chunk or paths) · path length · gaps passed).
double reroute(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
               const RerouteOptions& options);

}  // namespace teccl
