// Forward–backward improvement of a schedule whose routes are given.
#pragma once

#include <cstdint>
#include <vector>

#include "network.hpp"

namespace teccl {

// Reorders the sends on the links, in place, without changing who sends what on which path, so that the last arrival
// comes earlier: all sends are moved as late as the finish allows, in the order of their arrivals, then as early as
// data and gaps on the links allow, in the order of their starts, until that helps no more (double justification of
// resource-constrained projects: Valls, Ballestín and Quintanilla, EJOR 165, 2005). With `noise`, a share of the
// finish, `rounds` such descents start from the best order so far, shaken by `seed`. The sends must come in an order in
// which each can start once those before it have arrived; where their times let links carry several at once
// (`shared`), they count as the order to begin with only; with
// `rounds` < 0 that order is played and nothing more. Returns the finish, else never later than before.
// O(rounds · passes · sends · (log sends + path length · gaps)).
double justify(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
               bool shared, int rounds, double noise, std::uint64_t seed);

}  // namespace teccl
