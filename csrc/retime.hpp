// The schedule's clock: every send as early as its data and its links allow, in the order given.
#pragma once

#include <vector>

#include "network.hpp"

namespace teccl {

// Fills start and arrival of `sends`, in place. A link serves sends in their order here; a copied chunk leaves a GPU
// once it has arrived, a reduced one once everything sent there before has. Throws std::invalid_argument when a
// send's GPU cannot hold its chunk. O(sends · path length).
void retime(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends);

// Moves the starts of `sends` as early as they go, in place, while every link serves them in the order it does now
// and every send waits for what it waits for now. (That is more than the order of the starts says: on paths of
// several links the one that starts later may cross a shared link first.) False, and nothing changed, when the
// given starts are not feasible. O(passes · sends · path length), passes ≤ sends, mostly 2.
bool left_shift(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends);

}  // namespace teccl
