// The schedule's clock: every send as early as its data and its links allow, in the order given.
#pragma once

#include <vector>

#include "network.hpp"

namespace teccl {

// Fills start and arrival of `sends`, in place. A link serves sends in their order here; a copied chunk leaves a GPU
// once it has arrived, a reduced one once everything sent there before has. Throws std::invalid_argument when a
// send's GPU cannot hold its chunk. O(sends · path length).
void retime(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends);

}  // namespace teccl
